"""The nouns: what a task derives from what it was told."""

import pytest
from tests.core.making import new_task, queued

from millpond.core.spec import PoolSpec, fifo
from millpond.core.task import Dedupe, Fence, key_of


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
