"""The acts of the demo: what they claim is so, for any dice, and a broken library is found out."""

from typing import Any

import pytest

from millpond import Bulkhead
from millpond.core.lifecycle import Status
from millpond.core.task import Fence, Task
from millpond.demo import bulkhead_act, pool_act
from millpond.demo.report import Show, rehearse
from millpond.demo.story import Strip
from millpond.store.memory import settle as memory_settle


@pytest.fixture(scope="module")
def show() -> Show:
    return rehearse(1)


def test_the_same_seed_gives_the_same_show(show: Show) -> None:
    """Frames, figures and promises are values of the seed alone."""
    assert show == rehearse(1)


def test_another_seed_gives_another_show(show: Show) -> None:
    """The dice matter: it is no film."""
    assert show.report() != rehearse(2).report()


@pytest.mark.parametrize("seed", range(2, 12))
def test_every_promise_is_kept_for_any_seed(seed: int) -> None:
    """Nothing that is claimed depends on lucky dice."""
    broken = [promise for promise in rehearse(seed).promises if not promise.kept]
    assert broken == []


def test_without_a_bulkhead_the_api_breaks(show: Show) -> None:
    """One call too many fails all in flight; every caller is counted once."""
    flood = show.bulkhead.figures.without_bulkhead
    assert bulkhead_act.ROOM + 1 == flood.most_in_flight
    assert flood.callers == flood.answered + flood.failed
    assert flood.failed > flood.callers / 2


def test_with_a_bulkhead_nobody_fails_and_the_refused_know_why(show: Show) -> None:
    """Five inside, ten waiting in order, two out of patience, the rest refused in no time."""
    seen = show.bulkhead.figures.with_bulkhead
    assert (0, 5, 10) == (seen.failed, seen.most_in_flight, seen.most_waiting)
    assert {"queue_limit": 25, "timeout": 2} == seen.refused
    assert seen.slowest_refusal == 0.0
    assert seen.in_order
    assert 40 - 25 - 2 == seen.answered


def test_a_refund_lets_the_next_one_in(show: Show) -> None:
    """Weights stay within their budget, and what can never fit is refused at once."""
    seen = show.bulkhead.figures.weights
    assert seen.most_reserved <= seen.budget
    assert 1 == seen.entered_on_refund
    assert {"weight_limit": 1} == seen.refused


def test_limits_change_by_attrition_and_draining_leaves_nothing(show: Show) -> None:
    """Shrinking takes as long as work takes; raising is at once; closing refuses who waits."""
    seen = show.bulkhead.figures.resized
    assert 0 == seen.grants_over_limit
    assert seen.seconds_to_shrink > 0
    assert 6 == seen.entered_on_raise
    assert seen.admitted == seen.finished
    assert {"shutdown": seen.waiting_at_close + 1} == seen.refused
    assert (0, 0) == (seen.left_after_drain, seen.anomalies)


def test_fifo_lets_the_small_tenants_wait_and_fair_does_not(show: Show) -> None:
    """The start orders are those of the contract."""
    fifo, fair = show.pool.figures.fifo, show.pool.figures.fair
    assert "A" * 60 + "B" * 6 + "C" * 6 == fifo.starts
    assert fair.starts.startswith("ABCABC")
    assert sorted(fifo.starts) == sorted(fair.starts)
    assert fair.waits["B"].worst < fifo.waits["B"].mean


def test_no_order_runs_more_than_its_limits(show: Show) -> None:
    """Four at once, and in the fair pool two per tenant, counted from the audit."""
    fifo, fair = show.pool.figures.fifo, show.pool.figures.fair
    assert (4, 4) == (fifo.most_running, fair.most_running)
    assert {"A": 2, "B": 2, "C": 2} == fair.most_running_per_tenant
    assert (72, 72) == (fifo.completed, fair.completed)


def test_dead_and_undead_workers_change_no_outcome(show: Show) -> None:
    """Both lost tasks run again, the late settle is stale, each task completes once."""
    seen = show.pool.figures.trouble
    assert ("b", "c") == seen.recovered
    assert ("stale", 1) == (seen.zombie_settle, seen.stale_settles)
    assert seen.zombie_while_rerunning
    assert seen.tasks == seen.completed_once


def test_a_full_queue_refuses_and_a_failed_task_comes_back_later(show: Show) -> None:
    """The refusal has its reason and its numbers; pauses double, give or take the jitter."""
    seen = show.pool.figures.bounded
    assert {"queue_full": 4} == seen.refused
    assert (6, 6, 6) == (seen.taken, seen.depth, seen.bound)
    assert (3, "completed") == (seen.attempts, seen.outcome)
    assert [0.5, 1.0] == pytest.approx(seen.pauses, rel=0.11)


def test_the_strip_shows_the_starts(show: Show) -> None:
    """What is drawn is what was measured."""
    strip = show.pool.scenes[1].frames[-1].rows[0]
    assert isinstance(strip, Strip)
    assert show.pool.figures.fair.starts == strip.letters


def test_frames_are_in_order_of_time(show: Show) -> None:
    """Each scene begins at or after 0 and never goes back."""
    for _, scenes in show.acts:
        for scene in scenes:
            moments = [frame.at for frame in scene.frames]
            assert sorted(set(moments)) == moments
            assert moments[0] >= 0


def test_a_store_that_does_not_look_at_the_token_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a guard by status alone the zombie's settle is taken, and two promises break."""

    def by_status_alone(task: Task, _: Fence) -> bool:
        return task.status is Status.RUNNING

    monkeypatch.setattr(memory_settle, "is_current", by_status_alone)
    act = pool_act.play(1)
    assert "applied" == act.figures.trouble.zombie_settle
    broken = [promise.promise for promise in act.promises if not promise.kept]
    assert {"A zombie cannot settle its successor", "Every invariant, at every verb"} <= {*broken}


def test_a_bulkhead_that_lets_one_too_many_in_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API counts for itself what the bulkhead promises."""

    def one_more(name: str, limit: Any, **options: Any) -> Bulkhead:
        return Bulkhead(name, limit + 1 if limit == bulkhead_act.LIMIT else limit, **options)

    monkeypatch.setattr(bulkhead_act, "Bulkhead", one_more)
    broken = [promise.promise for promise in bulkhead_act.play(1).promises if not promise.kept]
    assert "Never more than 5 in flight" in broken
