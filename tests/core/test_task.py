"""The nouns: the values that a task derives from its options."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from tests.core.making import new_task, queued

from millpond.core import control as orders
from millpond.core.bounds import MAX_COUNT, MAX_KEY, MAX_MOMENT, MAX_SECONDS
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, fifo
from millpond.core.task import Dedupe, Fence, key_of
from millpond.errors import ConfigError


def test_the_unit_is_the_lane_where_there_is_one() -> None:
    """A lane limits a strict pool, a key any other; without both nothing does."""
    lanes = PoolSpec(name="p", lanes=4, order=fifo())
    assert queued(lanes, 1, key="acme").lane == queued(lanes, 1, key="acme").unit
    assert "acme" == queued(PoolSpec(name="p"), 1, key="acme").unit
    assert queued(PoolSpec(name="p"), 1).unit is None


def test_a_fence_is_task_attempt_and_token() -> None:
    """Two attempts of a task, or two claims of one attempt, have different fences."""
    task = queued(PoolSpec(name="p"), 3)
    task.attempt, task.token = 2, 99
    assert Fence(3, 2, 99) == task.fence
    task.token = 98
    assert Fence(3, 2, 99) != task.fence


@pytest.mark.parametrize(
    ("dedupe", "name"),
    [
        (Dedupe.FOREVER, ("k", None)),
        (Dedupe.SUCCESS, ("k", None)),
        (Dedupe.INFLIGHT, ("k", None)),
        (Dedupe.RUN, ("k", 7)),
    ],
)
def test_a_key_counts_per_run_only_where_it_says_so(
    dedupe: Dedupe, name: tuple[str, int | None]
) -> None:
    """The same key in two runs is two keys under `run`, one under any other way."""
    assert name == key_of(new_task(1, idempotency_key="k", dedupe=dedupe, run=7))


REFUSED: list[tuple[str, Any]] = [
    ("weight", 0),
    ("weight", -1),
    ("attempts", 0),
    ("delay", -1.0),
    ("delay", math.nan),
    ("delay", math.inf),
    ("delay", MAX_SECONDS + 1),
    ("delay", 1e305),
    ("expires_in", 1e300),
    ("timeout", MAX_SECONDS * 2),
    ("run_at", MAX_MOMENT + 1),
    ("run_at", -1e305),
    ("weight", MAX_COUNT + 1),
    ("attempts", 10**400),
    ("priority", 10**400),
    ("priority", -(10**400)),
    ("submitted_by", "a\udcff"),
    ("submitted_by", "a\0b"),
    ("submitted_by", "\u65e5" * 342),
    *(
        (field, value)
        for field in ("key", "share", "idempotency_key")
        for value in ("", "a\0b", "x" * (MAX_KEY + 1), "\u65e5" * 342, "a\udcff")
    ),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_what_cannot_be_queued_is_refused_by_name(field: str, value: object) -> None:
    """A value that some store could not keep, or that would never start, is no task."""
    with pytest.raises(ConfigError) as caught:
        new_task(1, **{field: value})
    assert field == caught.value.option


@pytest.mark.parametrize("field", ["key", "share", "idempotency_key"])
def test_a_long_key_is_a_key(field: str) -> None:
    """The longest one that is allowed, and the shortest."""
    for value in ("x", "x" * MAX_KEY, "\u00fc" * (MAX_KEY // 2), "\u65e5" * (MAX_KEY // 3)):
        assert value == getattr(new_task(1, **{field: value}), field)


@pytest.mark.parametrize("option", ["run_at", "expires_in", "timeout"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_times_are_finite(option: str, value: float) -> None:
    """A time that no clock can reach is refused at birth, not in the middle of a verb."""
    with pytest.raises(ConfigError, match=f"{option}="):
        new_task(1, **{option: value})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Settlement(fence=Fence(1, 1, 1), event=Transition.RETRY, delay=math.nan),
        lambda: orders.Hold("p", math.inf),
        lambda: orders.Register("w", 0.0),
        lambda: orders.Register("w", math.nan),
    ],
)
def test_orders_and_settlements_are_checked_at_birth(make: Callable[[], object]) -> None:
    """No order or settlement can be made that a store could only carry out in part."""
    with pytest.raises(ConfigError):
        make()
