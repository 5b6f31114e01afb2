"""The acts of the demo: what they claim is so, for any dice, and a broken library is found out."""

import contextlib
import sqlite3
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from millpond import Bulkhead, Millpond, fifo
from millpond.core.spec import Order
from millpond.demo import bulkhead_act, fleet_act, flood_act
from millpond.demo import fleet_app as depot
from millpond.demo import worker_processes as crew
from millpond.demo.report import Show
from millpond.demo.scenes import Act, CannotGoOn, Columns, Row, Scene, Stack, Strip
from millpond.store.sqlite.handler_connection import SqliteHandlerConnection


def broken(act: Act[Any]) -> set[str]:
    """Return the broken promises."""
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


def with_seed(seed: int, folder: Path) -> Scene:
    return Scene(seed=seed, file=folder / f"{seed}.db")


# The show


def test_the_show_keeps_its_promises(show: Show) -> None:
    """All of them, on a machine that may be busy with other tests."""
    assert [] == [promise for promise in show.promises if not promise.kept]


def test_the_same_seed_gives_the_same_acts(show: Show, scene: Scene) -> None:
    """Frames, figures and promises of what plays in virtual time are values of the seed alone."""
    assert show.bulkhead == bulkhead_act.PIECE.perform(scene)
    assert show.flood == flood_act.PIECE.perform(scene)


def test_another_seed_gives_other_acts(show: Show, tmp_path: Path) -> None:
    """The dice matter: it is no film."""
    scene = with_seed(2, tmp_path)
    assert show.bulkhead.ending != bulkhead_act.PIECE.perform(scene).ending
    assert show.flood.ending != flood_act.PIECE.perform(scene).ending


@pytest.mark.parametrize("seed", [0, *range(2, 8), 99, 114])
def test_every_promise_is_kept_for_any_seed(seed: int, tmp_path: Path) -> None:
    """Nothing that is claimed depends on lucky dice."""
    scene = with_seed(seed, tmp_path)
    assert set() == broken(bulkhead_act.PIECE.perform(scene))
    assert set() == broken(flood_act.PIECE.perform(scene))


def test_frames_are_in_order_of_time(show: Show) -> None:
    """Each act begins at 0, never goes back, and has ten frames per second."""
    for act in show.acts:
        moments = [frame.at for frame in act.frames]
        assert sorted(set(moments)) == moments
        assert 0 == moments[0]
    for act in (show.bulkhead, show.flood):
        gaps = [after.at - before.at for before, after in pairwise(act.frames)]
        assert max(gaps) <= 0.06


def test_the_pools_are_on_the_file(scene: Scene) -> None:
    """It exists after the act, with the tasks in it."""
    flood_act.PIECE.perform(scene)
    assert b"SQLite format 3" == scene.file.read_bytes()[:15]


# Act 1: a bulkhead


def test_without_a_bulkhead_the_api_breaks(show: Show) -> None:
    """One call too many fails all in flight; every caller is counted once."""
    seen = show.bulkhead.ending.figures.without_bulkhead
    assert bulkhead_act.ROOM + 1 == seen.most_in_flight
    assert seen.callers == seen.answered + seen.failed
    assert seen.failed > seen.callers / 2


def test_with_a_bulkhead_no_caller_fails_and_refusals_have_a_reason(show: Show) -> None:
    """Five inside, ten waiting in order, the rest refused in no time; nothing left behind."""
    seen = show.bulkhead.ending.figures.with_bulkhead
    assert (0, 5, 10) == (seen.failed, seen.most_in_flight, seen.most_waiting)
    assert {"queue_limit": seen.callers - seen.answered} == seen.refused
    assert seen.slowest_refusal == 0.0
    assert seen.in_order
    assert (0, 0) == (seen.left, seen.anomalies)


def test_a_bulkhead_that_lets_one_too_many_in_is_found_out(
    monkeypatch: pytest.MonkeyPatch, scene: Scene
) -> None:
    """The API counts for itself what the bulkhead promises."""

    def one_more(name: str, limit: int, **options: Any) -> Bulkhead:
        return Bulkhead(name, limit + 1, **options)

    monkeypatch.setattr(bulkhead_act, "Bulkhead", one_more)
    assert "Never more than 5 in flight" in broken(bulkhead_act.PIECE.perform(scene))


# Act 2: fifo and fair side by side


def test_fifo_lets_the_quiet_tenants_wait_and_fair_does_not(show: Show) -> None:
    """Same tasks, same slots: seconds against a moment, at the same throughput."""
    seen = show.flood.ending.figures
    assert "A" * 48 == seen.fifo.starts[:48]
    assert sorted(seen.fifo.starts) == sorted(seen.fair.starts)
    assert seen.fifo.quiet.median > 1.3
    assert seen.fair.quiet.worst < 0.3
    assert seen.fair.seconds == pytest.approx(seen.fifo.seconds, abs=0.25)


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
    """The picture shows the measured values."""
    seen = show.flood.ending.figures
    strips = [row.letters for row in rows_of(show.flood)[-1] if isinstance(row, Strip)]
    assert [seen.fifo.starts, seen.fair.starts] == strips


def test_the_printed_picture_is_that_of_the_largest_difference(show: Show) -> None:
    """After half of the time fifo has served none of the quiet tenants, and fair nearly all."""
    rows = rows_of(show.flood)[show.flood.frames.index(show.flood.key_frame)]
    done = [row.done for row in rows if isinstance(row, Stack) and row.label != "acme"]
    assert 1.7 == pytest.approx(show.flood.key_frame.at, abs=0.05)
    assert [0, 0] == done[:2]
    assert min(done[2:]) >= 5


def test_a_pool_that_is_not_fair_is_found_out(
    monkeypatch: pytest.MonkeyPatch, scene: Scene
) -> None:
    """With the order of arrival on both sides the flood goes first and breaks a promise."""

    def not_fair(*_: object) -> Order:
        return fifo()

    monkeypatch.setattr(flood_act, "fair_round_robin", not_fair)
    assert {
        "The quiet do not wait for the flood",
        "One turn each while others wait",
    } == broken(flood_act.PIECE.perform(scene))


def test_a_pool_that_runs_one_too_many_is_found_out(
    monkeypatch: pytest.MonkeyPatch, scene: Scene
) -> None:
    """Starts are counted from the audit, not from the pool's own counts."""

    class Lavish(Millpond):
        def pool(
            self, name: str | None = None, *, max_concurrent: Any = None, **options: Any
        ) -> Any:
            return super().pool(name, max_concurrent=(max_concurrent or 0) + 1, **options)

    monkeypatch.setattr(flood_act, "Millpond", Lavish)
    assert "Never more than 4 run" in broken(flood_act.PIECE.perform(scene))


# Act 3: a fleet, and a kill


def test_the_killed_worker_had_tasks_in_hand_and_none_of_them_is_lost(show: Show) -> None:
    """They came back charged with an attempt, and everything was done."""
    seen = show.fleet.ending.figures
    assert (240, 240, 240, 0) == (seen.submitted, seen.completed, seen.ended_once, seen.left)
    assert seen.in_hand >= 1
    assert (seen.in_hand, 0) == (seen.charged, seen.charged_others)
    assert seen.books_agree
    assert (240, 0) == (seen.effects, seen.effects_twice)


def test_the_workers_shared_the_limits_and_the_turns(show: Show) -> None:
    """Read from the audit of all three, in the order of commits."""
    seen = show.fleet.ending.figures
    assert 3 == seen.workers
    assert (12, 8) >= (seen.most_running, seen.most_of_a_tenant)
    assert seen.turns_apart <= 2


def test_events_are_listed_in_order(show: Show) -> None:
    """The kill, the find, and the last of the lost tasks done."""
    words = [getattr(row, "text", "") for row in rows_of(show.fleet)[-1]]
    output = [line for line in words if " s  " in line]
    assert ["kill -9 ", "its lock", "the last"] == [line.split(" s  ")[1][:8] for line in output]
    moments = [float(line.split()[0]) for line in output]
    assert sorted(moments) == moments


def test_a_fleet_without_workers_ends_the_demo(
    monkeypatch: pytest.MonkeyPatch, scene: Scene
) -> None:
    """With all workers killed the tasks stay, and the promise is broken."""
    kill, hands = crew.Hand.kill, list[crew.Hand]()

    def kill_all(self: crew.Hand) -> None:
        for hand in hands:
            kill(hand)

    def remembered(self: crew.Hand, *arguments: Any) -> None:
        made(self, *arguments)
        hands.append(self)

    made = crew.Hand.__init__
    monkeypatch.setattr(crew.Hand, "__init__", remembered)
    monkeypatch.setattr(crew.Hand, "kill", kill_all)
    monkeypatch.setattr(fleet_act, "OVER", 5.0)
    act = fleet_act.PIECE.perform(scene)
    assert act.ending.figures.left > 0
    assert "kill -9 loses nothing" in broken(act)
    assert "are left" in act.ending.said


def test_a_worker_that_leaves_by_itself_ends_the_show(
    monkeypatch: pytest.MonkeyPatch, scene: Scene
) -> None:
    """It says which, with what code, and its last words; none of the others stays."""
    crews: list[crew.WorkerProcesses] = []

    class Misled(crew.WorkerProcesses):
        def __init__(self, _url: str, *others: Any) -> None:
            super().__init__("sqlite:////no/such/folder/work.db", *others)
            crews.append(self)

    monkeypatch.setattr(fleet_act, "WorkerProcesses", Misled)
    with pytest.raises(CannotGoOn, match=r"worker \d left with exit code 4: .*no/such/folder"):
        fleet_act.PIECE.perform(scene)
    assert all(hand.gone for hand in crews[0].hands)


def test_a_worker_ends_with_the_demo(scene: Scene) -> None:
    """Also where the demo is killed: its end of the worker's stdin is closed."""
    url = fleet_act.url_of(scene)
    with crew.WorkerProcesses(url, scene.file, 1, 1) as staff:
        (hand,) = staff.hands
        hand.let_go()
        assert 0 == hand.left_with(30.0)


def test_the_ledger_shows_repeated_effects(tmp_path: Path) -> None:
    """It is a list, not a set: what came twice must be seen twice."""
    file = tmp_path / "work.db"
    depot.lay_out(file)
    assert [] == depot.entries(file)
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        for task in (7, 8, 7):
            depot.enter(SqliteHandlerConnection(database), task)
    assert [7, 8, 7] == depot.entries(file)
