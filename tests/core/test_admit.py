"""Admission: policy and depth make the verdict."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.making import new_task

from millpond.core.admit import (
    Depth,
    Drop,
    Evict,
    Full,
    Known,
    Reason,
    Take,
    admit,
    answers_for,
    conflicts,
    known_by,
    too_heavy,
    too_large,
)
from millpond.core.lifecycle import Status
from millpond.core.rate import Rate
from millpond.core.spec import Backpressure, PoolSpec, bounded, fail_fast, ring_buffer
from millpond.core.task import NO_FINGERPRINT, Call, Dedupe


def spec(backpressure: Backpressure | None = None, **options: Any) -> PoolSpec:
    """A pool with a bound."""
    return PoolSpec(name="p", backpressure=backpressure, **options)


ROOM, FULL, KEY_FULL, BOTH = Depth(2, 1), Depth(3, 1), Depth(2, 2), Depth(3, 2)

VERDICTS: list[tuple[Backpressure | None, Depth, object]] = [
    (None, Depth(10**9, 10**9), Take()),
    (fail_fast(), BOTH, Take()),
    (bounded(3, "block_submitter"), ROOM, Take()),
    (bounded(3, "block_submitter"), FULL, Full(of_key=False)),
    (bounded(3, "block_submitter"), KEY_FULL, Take()),
    (bounded(3, "block_submitter", 2), KEY_FULL, Full(of_key=True)),
    (bounded(3, "block_submitter", 2), BOTH, Full(of_key=True)),
    (bounded(3, "fail_submitter"), FULL, Full(of_key=False)),
    (bounded(3, "fail_submitter", 2), KEY_FULL, Full(of_key=True)),
    (bounded(3, "drop_newest"), ROOM, Take()),
    (bounded(3, "drop_newest"), FULL, Drop(Reason.DROP_NEWEST)),
    (bounded(3, "drop_newest", 2), KEY_FULL, Drop(Reason.DROP_NEWEST)),
    (bounded(3, "drop_oldest"), ROOM, Take()),
    (bounded(3, "drop_oldest"), FULL, Evict(of_key=False, reason=Reason.DROP_OLDEST)),
    (bounded(3, "drop_oldest", 2), KEY_FULL, Evict(of_key=True, reason=Reason.DROP_OLDEST)),
    (bounded(3, "drop_oldest", 2), BOTH, Evict(of_key=True, reason=Reason.DROP_OLDEST)),
    (ring_buffer(3), ROOM, Take()),
    (ring_buffer(3), FULL, Evict(of_key=False, reason=Reason.RING_BUFFER)),
]


@pytest.mark.parametrize(("policy", "depth", "verdict"), VERDICTS)
def test_policy_and_depth_make_the_verdict(
    policy: Backpressure | None, depth: Depth, verdict: object
) -> None:
    """The table: with room it is taken; without, the policy decides. A full key comes first."""
    assert verdict == admit(spec(policy), depth)


@given(
    st.sampled_from(["block_submitter", "drop_oldest", "drop_newest", "fail_submitter"]),
    st.integers(1, 5),
    st.none() | st.integers(1, 5),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_what_is_taken_stays_within_the_bound(
    on_full: str, bound: int, per_key: int | None, pool: int, key: int
) -> None:
    """A task is taken if and only if one more still fits both bounds."""
    key = min(key, pool)
    fits = pool < bound and (per_key is None or key < per_key)
    verdict = admit(spec(bounded(bound, on_full, per_key)), Depth(pool, key))
    assert fits == isinstance(verdict, Take)


def test_a_batch_larger_than_the_bound_is_refused() -> None:
    """Taken whole or not at all, it can be larger than the bound of the pool or of a key."""
    both = spec(bounded(5, "fail_submitter", 2))
    assert [None, 5, 2, 5] == [
        too_large(both, 5, 2),
        too_large(both, 6, 2),
        too_large(both, 5, 3),
        too_large(both, 6, 3),
    ]


@pytest.mark.parametrize(
    "policy",
    [None, fail_fast(), ring_buffer(1), bounded(1, "drop_oldest"), bounded(1, "drop_newest")],
)
def test_a_batch_taken_one_by_one_is_never_too_large(policy: Backpressure | None) -> None:
    """The drop policies decide about each task on its own."""
    assert too_large(spec(policy), 99, 99) is None


def test_a_task_heavier_than_a_burst_could_never_start() -> None:
    """Only rates of weight limit weights; the answer is the burst that the task exceeds."""
    pool = spec(rates=(Rate(2), Rate(100, of="weight", burst=50)))
    assert [None, 50] == [too_heavy(pool, new_task(1, weight=w)) for w in (50, 51)]
    assert too_heavy(spec(), new_task(1, weight=10**9)) is None


ANSWERS = {
    Dedupe.FOREVER: {*Status},
    Dedupe.RUN: {*Status},
    Dedupe.SUCCESS: {Status.QUEUED, Status.RUNNING, Status.COMPLETED},
    Dedupe.INFLIGHT: {Status.QUEUED, Status.RUNNING},
    Dedupe.WAITING: {Status.QUEUED},
    Dedupe.REPLACE: {Status.QUEUED},
}


@pytest.mark.parametrize("dedupe", list(Dedupe))
def test_how_long_a_key_answers(dedupe: Dedupe) -> None:
    """For ever, until it failed, or while it waits or runs."""
    assert ANSWERS[dedupe] == {status for status in Status if answers_for(dedupe, status)}


@pytest.mark.parametrize("dedupe", list(Dedupe))
def test_a_held_task_does_not_wait(dedupe: Dedupe) -> None:
    """A prefetched task is queued, and answers for all keys but those of waiting tasks."""
    assert dedupe.of_waiting != answers_for(dedupe, Status.QUEUED, held=True)


def test_the_same_key_for_other_work_is_a_conflict() -> None:
    """Function and arguments have to be the same; nothing else does."""
    known = known_by(new_task(1, fingerprint=5, priority=1), Status.QUEUED)
    assert Known(1, Status.QUEUED, "work", 5) == known
    assert [False, True, True] == [
        conflicts(known, new_task(2, fingerprint=5, priority=9)),
        conflicts(known, new_task(2, fingerprint=6)),
        conflicts(known, new_task(2, fingerprint=5, call=Call("other"))),
    ]


def test_a_task_submitted_in_sql_is_compared_by_function_only() -> None:
    """Its arguments are the same and look otherwise; on whichever side it stands."""
    for before, after in (
        (5, NO_FINGERPRINT),
        (NO_FINGERPRINT, 5),
        (NO_FINGERPRINT, NO_FINGERPRINT),
    ):
        known = known_by(new_task(1, fingerprint=before), Status.QUEUED)
        assert [False, True] == [
            conflicts(known, new_task(2, fingerprint=after)),
            conflicts(known, new_task(2, fingerprint=after, call=Call("other"))),
        ]
