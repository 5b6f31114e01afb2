"""A batch of tasks that are alike is sent and answered as any other."""

from __future__ import annotations

from array import array as packed
from typing import Any

import pytest

from millpond.core.lifecycle import Status
from millpond.core.task import Call, NewTask
from millpond.store.postgres.encoding import array, array_of_bigints
from millpond.store.postgres.fast_submit import FastSubmit, FastSubmitAnswer, why_not_submit
from millpond.store.protocol import Admission, Batch, InOrder

OPTIONS: list[dict[str, Any]] = [
    {},
    {"key": "k"},
    {"key": "k", "share": "k"},
    {"share": "s", "priority": 4, "attempts": 9, "weight": 2},
    {"delay": 2.5, "expires_in": 7.0},
    {"run_at": 12.0},
    {"run": 77},
]


def batch(*, alike: bool, keyed: bool = False, **options: Any) -> Batch:
    """Return three tasks that differ by their ids, payloads and idempotency keys."""
    return Batch(
        tasks=tuple(
            NewTask(
                id=n << 33,
                pool="p",
                call=Call("f", b"%d" % n),
                idempotency_key=f"key {n}" if keyed else None,
                fingerprint=n if keyed else 0,
                **options,
            )
            for n in (1, 2, 3)
        ),
        alike=alike,
    )


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_batch_of_tasks_that_are_alike_is_encoded_as_any(
    options: dict[str, Any], keyed: bool
) -> None:
    """Its fields count for all of them."""
    one, other = (batch(alike=alike, keyed=keyed, **options) for alike in (True, False))
    assert why_not_submit([one]) == why_not_submit([other])
    assert _arguments(one) == _arguments(other)


def _arguments(given: Batch) -> list[Any]:
    return FastSubmit("p", [[given]], 1.0).arguments(lambda: None)


@pytest.mark.parametrize("is_fifo", [True, False])
def test_admissions_in_order_are_those_of_each_task(is_fifo: bool) -> None:
    """They are made when they are asked for, by index or one after another."""
    nothing = [None] * 12
    answer = FastSubmitAnswer(None, 1.0, 40, 6, 8, is_fifo, *nothing)
    given = batch(alike=True)
    (said,) = FastSubmit("p", [[given]], 1.0).answers(answer)
    admissions = said.batches[0].admissions
    expected = [
        Admission(
            task=new.id,
            status=Status.QUEUED,
            sequence=41 + n,
            position=6 + n if is_fifo else None,
            depth=9 + n,
        )
        for n, new in enumerate(given.tasks)
    ]
    assert type(admissions) is InOrder
    assert expected == list(admissions)
    assert tuple(expected) == admissions
    assert expected[-1] == admissions[-1]
    assert tuple(expected[1:]) == admissions[1:]
    with pytest.raises(IndexError):
        admissions[3]


def test_numbers_are_encoded_in_the_binary_format_of_the_server() -> None:
    """Each with its length before it, the highest octet first."""
    numbers = [0, 1, -1, -(1 << 63), (1 << 63) - 1]
    encoded, form = array_of_bigints(packed("q", numbers))
    assert form == 1
    assert encoded is not None
    items = [encoded[at : at + 12] for at in range(20, len(encoded), 12)]
    assert [b"\0\0\0\x08" + one.to_bytes(8, "big", signed=True) for one in numbers] == items
    assert encoded[:20] == bytes.fromhex("00000001 00000000 00000014 00000005 00000001")
    assert array([]) == array_of_bigints(packed("q"))
