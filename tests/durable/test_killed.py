"""kill -9: acknowledged tasks are stored, running tasks run again, and the store opens."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.durable import victim
from tests.durable.looking import looked_at
from tests.pool.fleet import until
from tests.waiting import eventually

from millpond import Millpond, Pool, TaskFailed
from millpond.pool.internals import internals_of

PATIENCE = 30.0


class Victim:
    """A process that does one thing on a store until it is killed."""

    def __init__(self, url: str, what: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.durable.victim", url, what],
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)},
        )
        self.said: list[str] = []

    def until(self, words: str, times: int = 1) -> None:
        """Read on until it has said something so many times."""
        assert self._process.stdout is not None
        while sum(words in line for line in self.said) < times:
            line = self._process.stdout.readline()
            assert line, f"it ended without {words!r}: {self.said}"
            self.said.append(line.strip())

    def kill(self) -> None:
        """Kill it, and read what it said until then; safe twice."""
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            self._process.kill()
            self.said += [line.strip() for line in self._process.stdout if line.endswith("\n")]
            self._process.wait(PATIENCE)
            self._process.stdout.close()


@pytest.fixture
def kill_at(url: str) -> object:
    """Let a victim do something, and kill it once it has said a word so many times."""
    victims: list[Victim] = []

    def kill(what: str, words: str, times: int = 1) -> list[str]:
        one = Victim(url, what)
        victims.append(one)
        one.until(words, times)
        one.kill()
        return one.said

    yield kill
    for one in victims:
        one.kill()


Kill = Callable[..., list[str]]


def survivor(url: str) -> tuple[Millpond, list[str]]:
    """Return the same application for this process, where handlers return."""
    notes: list[str] = []
    return victim.make(url, notes), notes


async def ended(pool: Pool, count: int) -> bool:
    """Return whether nothing waits or runs, and so many ever ended."""
    snapshot = await pool.snapshot()
    return (0, count) == (snapshot.queued + snapshot.running, snapshot.total)


@pytest.mark.rows("DP-19", "DP-20")
@pytest.mark.real_loop
async def test_a_named_run_goes_on_in_the_next_process(url: str, kill_at: Kill) -> None:
    """It is not seeded again, and counts what the dead one did; what ran is charged."""
    await asyncio.to_thread(kill_at, "run", "job", 2)
    mp, notes = survivor(url)
    async with mp:
        report = await mp.get_pool("jobs").drain(mp.tasks["job"].each(range(4)), run="nightly")
    assert (True, 4, 4) == (report.resumed, report.total, report.completed)
    assert ["job 2 2", "job 3 2"] == sorted(notes)


@pytest.mark.rows("HN-19")
@pytest.mark.real_loop
async def test_closures_of_a_killed_process_are_found_stale(url: str, kill_at: Kill) -> None:
    """Those that ran and the one that waited: failed, readable, and never run again."""
    said = await asyncio.to_thread(kill_at, "closures", "both run")
    tasks = [int(line.split()[1]) for line in said if line.startswith("closure")]
    mp, notes = survivor(url)
    async with mp:
        pool = mp.get_pool("jobs")
        await until(lambda: ended(pool, len(tasks)), within=PATIENCE)
        for task in tasks:
            with pytest.raises(TaskFailed, match="stale"):
                await (await mp.handle(task))
        assert len(tasks) == (await pool.snapshot()).failed
    assert [] == notes


@pytest.mark.rows("HN-19")
@pytest.mark.real_loop
async def test_stored_calls_run_again_and_ended_tasks_are_there(url: str, kill_at: Kill) -> None:
    """A call is data: the next process runs it. What had ended can be read there."""
    await asyncio.to_thread(kill_at, "run", "job", 2)
    mp, notes = survivor(url)
    async with mp:
        pool = mp.get_pool("jobs")
        await until(lambda: ended(pool, 4), within=PATIENCE)
        tasks = await pool.tasks()
        results = {(info.attempt, await (await mp.handle(info.id))) for info in tasks}
    assert {(1, 0), (1, 1), (2, 4), (2, 9)} == results
    assert ["job 2 2", "job 3 2"] == sorted(notes)


@pytest.mark.rows("CX-17", "CX-18")
@pytest.mark.real_loop
async def test_the_next_process_runs_the_callback_of_a_killed_one(url: str, kill_at: Kill) -> None:
    """It was stored with the end of its task, so nothing of it was lost."""
    await asyncio.to_thread(kill_at, "callback", "callback")
    mp, notes = survivor(url)
    async with mp:
        await eventually(lambda: notes, within=PATIENCE)
    assert ["callback completed"] == notes


@pytest.mark.rows("DP-23", "DP-24")
@pytest.mark.parametrize(
    ("what", "words", "expected"),
    [("when_all", "sum", "sum 1 of 2"), ("held_run", "job 3", "sum 10 of 2")],
    ids=["in its callback", "before its end"],
)
@pytest.mark.real_loop
async def test_the_callback_of_a_run_survives(
    url: str, kill_at: Kill, what: str, words: str, expected: str
) -> None:
    """Killed before the run ended or in its callback: the next process runs it, as one task."""
    await asyncio.to_thread(kill_at, what, words)
    mp, noted = survivor(url)
    async with mp:
        await eventually(lambda: expected in noted, within=PATIENCE)
        await until_settled(mp)
        records = [one async for one in mp.audit() if one.pool == "jobs~callbacks"]
    assert 1 == len({one.task for one in records})
    assert 1 == noted.count(expected)


async def until_settled(mp: Millpond) -> None:
    """Wait until nothing waits or runs."""
    await mp.get_pool("jobs").drain(timeout=PATIENCE)


@pytest.mark.rows("HN-21", "TRAP-10", "DE-04")
@pytest.mark.real_loop
async def test_every_acknowledged_task_is_there_after_a_kill(url: str, kill_at: Kill) -> None:
    """Kill the process during its writes, several times: the store opens and holds all tasks.

    No task without its place in its lane, no place without its task, no number given twice.
    """
    stored: dict[int, tuple[str, int]] = {}
    for _ in range(4):
        said = await asyncio.to_thread(kill_at, "submits", "stored", 60)
        for line in said:
            _, task, lane, sequence = line.split()
            assert int(task) not in stored
            stored[int(task)] = (lane, int(sequence))
    assert len(stored) == len(set(stored.values()))
    mp, _ = survivor(url)
    internals_of(mp).owner.work = False
    async with mp:
        assert {"queued", "running", "completed"} >= set(await mp.status(stored))
    with looked_at(url) as look:
        tasks = set(look("SELECT place FROM millpond_task"))
        places = look("SELECT place FROM millpond_live")
        places += look("SELECT place FROM millpond_ended")
        assert (tasks, len(tasks)) == (set(places), len(places))
        ((lanes,),) = look("SELECT sum(sequence) FROM millpond_lane")
        assert len(tasks) == lanes >= len(stored)


@pytest.mark.rows("TR-12")
@pytest.mark.real_loop
async def test_a_kill_repeats_running_tasks_and_the_settlements_of_one_store_call(
    url: str, kill_at: Kill
) -> None:
    """Ends are stored at once, though more is claimed ahead than has ended so far."""
    said = await asyncio.to_thread(kill_at, "ahead", "ended", 12)
    over = {int(line.split()[1]) for line in said if line.startswith("ended")}
    mp, notes = survivor(url)
    async with mp:
        await until(lambda: ended(mp.get_pool("claimed"), 60), within=PATIENCE)
    again = {int(line.split()[1]) for line in notes}
    assert set(range(60)) == over | again
    assert len(over & again) <= 4
