"""The acts of the demo: what they claim is so, for any dice, and a broken library is found out."""

from itertools import pairwise
from typing import Any

import pytest

from millpond import Bulkhead, Millpond, fifo
from millpond.core.admit import Take
from millpond.core.spec import Order
from millpond.demo import bulkhead_act, flood_act, pressure_act, run_act
from millpond.demo.report import Show, give
from millpond.demo.story import Act, Columns, Row, Spark, Stack, Strip
from millpond.store.verbs import submit as memory_submit


@pytest.fixture(scope="module")
def show() -> Show:
    return give(1)


def broken(act: Act[Any]) -> set[str]:
    """Return what was promised and not kept."""
    return {promise.promise for promise in act.ending.promises if not promise.kept}


def rows_of(act: Act[Any]) -> list[tuple[Row, ...]]:
    """Return the rows of each frame, columns taken apart."""
    return [
        tuple(
            row
            for one in frame.rows
            for row in ((*one.left, *one.right) if isinstance(one, Columns) else (one,))
        )
        for frame in act.frames
    ]


# The show


def test_the_same_seed_gives_the_same_show(show: Show) -> None:
    """Frames, figures and promises are values of the seed alone."""
    assert show == give(1)


def test_another_seed_gives_another_show(show: Show) -> None:
    """The dice matter: it is no film."""
    assert show.report() != give(2).report()


@pytest.mark.parametrize("seed", [0, *range(2, 12), 99, 114])
def test_every_promise_is_kept_for_any_seed(seed: int) -> None:
    """Nothing that is claimed depends on lucky dice."""
    assert [] == [promise for promise in give(seed).promises if not promise.kept]


def test_it_takes_half_a_minute_to_watch(show: Show) -> None:
    """The acts' own seconds are those of the audience at normal speed."""
    assert 20 <= sum(act.frames[-1].at for act in show.acts) <= 32


def test_frames_are_in_order_of_time(show: Show) -> None:
    """Each act begins at 0, never goes back, and is looked at ten times a second."""
    for act in show.acts:
        moments = [frame.at for frame in act.frames]
        assert sorted(set(moments)) == moments
        assert 0 == moments[0]
        gaps = [after - before for before, after in pairwise(moments)]
        assert max(gaps) <= 0.11


# Act 1: fifo and fair side by side


def test_fifo_lets_the_quiet_tenants_wait_and_fair_does_not(show: Show) -> None:
    """Same tasks, same slots: seconds against a moment, at the same throughput."""
    seen = show.flood.ending.figures
    assert "A" * 48 == seen.fifo.starts[:48]
    assert sorted(seen.fifo.starts) == sorted(seen.fair.starts)
    assert seen.fifo.quiet.median > 4
    assert seen.fair.quiet.worst < 1
    assert seen.fair.seconds == pytest.approx(seen.fifo.seconds, abs=0.75)
    assert f"{seen.fifo.quiet.median:.1f} s with fifo" in show.headline


def test_no_pool_runs_more_than_its_slots_and_each_task_ends_once(show: Show) -> None:
    """Counted from the audit, and the pools' snapshots say the same."""
    for seen in (show.flood.ending.figures.fifo, show.flood.ending.figures.fair):
        assert (4, 64, 64, True) == (
            seen.most_running,
            seen.completed,
            seen.ended_once,
            seen.books_agree,
        )


def test_the_strips_show_the_starts(show: Show) -> None:
    """What is drawn is what was measured."""
    seen = show.flood.ending.figures
    strips = [row.letters for row in rows_of(show.flood)[-1] if isinstance(row, Strip)]
    assert [seen.fifo.starts, seen.fair.starts] == strips


def test_the_printed_picture_is_that_of_the_largest_difference(show: Show) -> None:
    """After five seconds fifo has served none of the quiet tenants, and fair nearly all."""
    rows = rows_of(show.flood)[show.flood.frames.index(show.flood.telling)]
    done = [row.done for row in rows if isinstance(row, Stack) and row.label != "acme"]
    assert 5.0 == pytest.approx(show.flood.telling.at, abs=0.1)
    assert [0, 0] == done[:2]
    assert min(done[2:]) >= 5


def test_a_pool_that_is_not_fair_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the order of arrival on both sides the flood passes by, and it is told."""

    def not_fair(*_: object) -> Order:
        return fifo()

    monkeypatch.setattr(flood_act, "fair_round_robin", not_fair)
    assert {
        "The quiet do not wait for the flood",
        "One turn each while others wait",
    } == broken(flood_act.PIECE.perform(1))


# Act 2: everybody pushes


def test_starts_are_shared_by_weight(show: Show) -> None:
    """Three tenants that all have work waiting get 3 : 2 : 1, within a turn of each."""
    seen = show.pressure.ending.figures
    assert seen.starts_compared > 50
    assert seen.turns_apart <= 0
    assert seen.promised == pytest.approx(seen.shares, abs=0.03)


def test_every_offer_is_taken_or_refused_with_a_reason(show: Show) -> None:
    """Both bounds and the closing refuse; nobody is left without an answer."""
    seen = show.pressure.ending.figures
    assert seen.offered == seen.accepted + sum(seen.refused.values())
    assert {"closed", "queue_full"} == {*seen.refused}
    assert seen.refused["queue_full"] == sum(seen.refused_by_bound.values())
    assert {"pool", "tenant"} == {*seen.refused_by_bound}
    assert (24, 6) == (seen.most_waiting, seen.most_running)


def test_a_failed_attempt_comes_back_later_and_not_for_ever(show: Show) -> None:
    """Pauses are 0.4 s and then twice that, give or take the jitter; one task is given up."""
    seen = show.pressure.ending.figures
    assert len(seen.pauses) == seen.retried > 0
    assert all(0.36 <= pause <= 0.44 or 0.72 <= pause <= 0.88 for pause in seen.pauses)
    assert 1 == sum(pause > 0.7 for pause in seen.pauses)
    assert (1, seen.accepted - 1) == (seen.gave_up, seen.completed)


def test_a_pool_without_its_weights_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal turns are not 3 : 2 : 1."""
    monkeypatch.setattr(Order, "stride", lambda *_: 1 << 20)
    assert {"Starts are shared 3 : 2 : 1"} == broken(pressure_act.PIECE.perform(1))


def test_a_queue_that_takes_everything_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit shows more waiting than the bound, and no refusal for it."""
    monkeypatch.setattr(memory_submit, "admit", lambda *_: Take())
    found = broken(pressure_act.PIECE.perform(1))
    assert {"Never more than 24 wait, nor 6 run", "Who is refused is told why"} == found


# Act 3: a run that grows


def test_a_run_grows_and_is_drained(show: Show) -> None:
    """One page becomes all of them, each fetched once, with nothing left when drain returns."""
    seen = show.run.ending.figures
    assert seen.pages == seen.total == seen.completed == seen.fetched_once
    assert seen.links > seen.pages
    assert seen.retried > 0
    assert (0, 8) == (seen.left, seen.most_running)


def test_the_plot_rises_and_falls(show: Show) -> None:
    """It begins with nothing waiting, has its peak on the way, and ends with nothing."""
    plot = next(row for row in rows_of(show.run)[-1] if isinstance(row, Spark))
    assert (0, 0) == (plot.values[0], plot.values[-1])
    assert show.run.ending.figures.deepest == max(plot.values) > 20


def test_a_run_that_fetches_pages_again_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a known key does not answer for its task, a page with two links is fetched twice."""
    monkeypatch.setattr(memory_submit, "answers_for", lambda *_: False)
    assert "Each page once, however many links" in broken(run_act.PIECE.perform(1))


# Act 4: a bulkhead


def test_without_a_bulkhead_the_api_breaks(show: Show) -> None:
    """One call too many fails all in flight; every caller is counted once."""
    seen = show.bulkhead.ending.figures.without_bulkhead
    assert bulkhead_act.ROOM + 1 == seen.most_in_flight
    assert seen.callers == seen.answered + seen.failed
    assert seen.failed > seen.callers / 2


def test_with_a_bulkhead_nobody_fails_and_the_refused_know_why(show: Show) -> None:
    """Five inside, ten waiting in order, the rest refused in no time; nothing left behind."""
    seen = show.bulkhead.ending.figures.with_bulkhead
    assert (0, 5, 10) == (seen.failed, seen.most_in_flight, seen.most_waiting)
    assert {"queue_limit": seen.callers - seen.answered} == seen.refused
    assert seen.slowest_refusal == 0.0
    assert seen.in_order
    assert (0, 0) == (seen.left, seen.anomalies)


def test_a_bulkhead_that_lets_one_too_many_in_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API counts for itself what the bulkhead promises."""

    def one_more(name: str, limit: int, **options: Any) -> Bulkhead:
        return Bulkhead(name, limit + 1, **options)

    monkeypatch.setattr(bulkhead_act, "Bulkhead", one_more)
    assert "Never more than 5 in flight" in broken(bulkhead_act.PIECE.perform(1))


# All pools


@pytest.mark.parametrize(
    ("module", "promise"),
    [
        (flood_act, "Never more than 4 run"),
        (pressure_act, "Never more than 24 wait, nor 6 run"),
        (run_act, "A growing run still runs 8 at a time"),
    ],
)
def test_a_pool_that_runs_one_too_many_is_found_out(
    monkeypatch: pytest.MonkeyPatch, module: Any, promise: str
) -> None:
    """Starts are counted from the audit, not from what the pool was told."""

    class Lavish(Millpond):
        def pool(self, name: str, *, max_concurrent: int | None = None, **options: Any) -> Any:
            return super().pool(name, max_concurrent=(max_concurrent or 0) + 1, **options)

    monkeypatch.setattr(module, "Millpond", Lavish)
    assert promise in broken(module.PIECE.perform(1))
