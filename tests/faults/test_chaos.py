"""The chaos harness: its judge notices each violation, and a short run is clean."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from verify.chaos.faults import FAULTS, chosen
from verify.chaos.judge import Phases, Verdict, judged
from verify.chaos.load import POOL, Load
from verify.chaos.report import HEAD, complaints, report, row, table
from verify.chaos.scenario import scenario
from verify.servers.postgres import OwnServer
from verify.torture.ledger import AnyEntry, AttemptBegan, SubmitConfirmed

from millpond import Millpond
from millpond.core.audit import Record
from millpond.core.lifecycle import Status, Transition
from millpond.core.task import Task
from millpond.pool.internals import internals_of

LOAD = Load(url="", home="", slots=4, seconds=0.1)


class Story:
    """Twenty seconds of correct work; a test changes them before the judge reads them."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.rows: dict[int, Task] = {}
        self.lines: list[AnyEntry] = []
        self.specs: dict[str, Any] = {}
        self.exits = 0

    def verdict(self) -> Verdict:
        """Return the judge's verdict on a fault from the sixth second to the tenth."""
        start = self.records[0].at
        phases = Phases(start, start + 6.0, start + 10.0, start + 20.0)
        return judged(
            "a fault",
            phases,
            offered=20.0,
            records=self.records,
            specs=self.specs,
            lines=self.lines,
            rows=self.rows,
            exits=self.exits,
        )

    def late(self, since: float, until: float) -> None:
        """Move all work between two moments to the second of them."""
        start = self.records[0].at

        def moved(record: Record) -> Record:
            if record.event is not Transition.SUBMIT and since <= record.at - start < until:
                return msgspec.structs.replace(record, at=start + until)
            return record

        self.records = sorted(map(moved, self.records), key=lambda record: record.at)


async def clean_story() -> Story:
    """Run a steady load for twenty seconds on a pool in memory; return its records."""
    story, mp = Story(), Millpond()
    pool = LOAD.declare(mp)

    @pool.task
    async def work(n: int) -> int:
        await asyncio.sleep(LOAD.seconds)
        return n

    line: dict[str, Any] = {"pid": 1, "wall": 0.0, "mono": 0.0}
    async with mp:
        for n in range(400):
            handle = await work.options(key=str(n % LOAD.keys)).submit(n)
            story.lines.append(
                SubmitConfirmed(item=n, task=handle.id, duplicate=False, submitter=0, **line)
            )
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        story.records = [record async for record in mp.audit() if record.task is not None]
        page = await internals_of(mp).runtime.view.tasks(POOL, after=0, limit=1000)
        story.rows = {task.new.id: task for task in page.tasks}
    story.specs = {POOL: pool.spec}
    story.lines += [
        AttemptBegan(task=r.task or 0, attempt=1, token=r.token, pool=POOL, item="", **line)
        for r in story.records
        if r.event is Transition.LEASE
    ]
    return story


async def test_the_judge_calls_correct_work_clean() -> None:
    """Twenty tasks a second end before, during and after the fault."""
    verdict = (await clean_story()).verdict()
    assert verdict.clean, list(complaints(verdict))
    assert 20.0 == pytest.approx(verdict.baseline, abs=1.0)
    assert (400, 0, 0, 0) == (verdict.accepted, verdict.lost, verdict.doubled, verdict.run_again)
    assert 0.0 == verdict.recovery
    assert 1.0 == pytest.approx(verdict.after, abs=0.05)
    assert verdict.slowest < 0.3
    assert [] == list(complaints(verdict))


async def test_the_judge_measures_a_standstill_and_its_recovery() -> None:
    """Recovery lasts from the end of the fault until the backlog is gone."""
    story = await clean_story()
    story.late(7.0, 12.0)
    # The judge would complain of a hundred tasks at once: raise the limit.
    story.specs = {POOL: msgspec.structs.replace(story.specs[POOL], max_concurrent=200)}
    verdict = story.verdict()
    assert 5.0 == pytest.approx(verdict.standstill, abs=0.2)
    assert verdict.recovery is not None
    assert 1.0 <= verdict.recovery <= 2.1
    assert 5.0 == pytest.approx(verdict.slowest, abs=0.3)


async def test_the_judge_complains_of_a_fleet_that_does_not_recover() -> None:
    """The fleet never reaches its earlier rate, and a backlog is left."""
    story = await clean_story()
    story.late(8.0, 21.0)
    verdict = story.verdict()
    assert verdict.recovery is None
    assert not verdict.clean
    assert "it never did as much as before, with nothing left over" in complaints(verdict)
    assert "never" in row(verdict)


async def test_the_judge_counts_an_accepted_task_that_is_missing_as_lost() -> None:
    """It counts one that did not complete, too."""
    story = await clean_story()
    story.rows.pop(story.lines[0].task)  # type: ignore[union-attr]
    other = story.lines[1].task  # type: ignore[union-attr]
    story.rows[other] = msgspec.structs.replace(story.rows[other], status=Status.FAILED)
    verdict = story.verdict()
    assert 2 == verdict.lost
    assert "2 tasks were lost" in complaints(verdict)


async def test_the_judge_counts_an_item_that_became_two_tasks_as_doubled() -> None:
    """So it does a task that completed twice, which breaks the lifecycle, too."""
    story = await clean_story()
    (last,) = [r for r in story.records if r.event is Transition.COMPLETE][-1:]
    story.records.append(last)
    story.rows[1] = next(iter(story.rows.values()))
    verdict = story.verdict()
    assert 2 == verdict.doubled
    assert verdict.broken
    assert not verdict.clean


async def test_the_judge_finds_a_start_above_a_limit() -> None:
    """It replays the audit against the limits in force."""
    story = await clean_story()
    story.specs = {POOL: msgspec.structs.replace(story.specs[POOL], max_concurrent=1)}
    verdict = story.verdict()
    assert verdict.broken
    assert not verdict.clean


async def test_the_judge_complains_of_a_process_that_ends_by_itself() -> None:
    """It does so even if all work completed."""
    story = await clean_story()
    story.exits = 1
    assert ["1 processes ended by themselves"] == list(complaints(story.verdict()))


async def test_the_report_has_a_row_for_each_verdict() -> None:
    """It is clean if all of them are."""
    verdict = (await clean_story()).verdict()
    lines = list(table([verdict, verdict]))
    assert 4 == len(lines)
    assert {len(HEAD)} == {line.count("|") - 1 for line in lines}
    full = report("PostgreSQL 18", 8.0, LOAD, [verdict])
    assert full.clean
    worse = msgspec.structs.replace(verdict, lost=1)
    assert not report("PostgreSQL 18", 8.0, LOAD, [verdict, worse]).clean


def test_scenarios_are_chosen_by_words() -> None:
    """All of them, if nothing is said."""
    assert list(FAULTS) == list(chosen(None))
    assert ["worker kill", "backend kill", "burst"] == list(chosen("worker, backend,burst"))
    assert [] == list(chosen("flood"))


@pytest.mark.real_loop
@pytest.mark.timeout(180)  # where four processes take long to start
def test_a_short_chaos_loses_nothing(own: OwnServer, tmp_path: Path) -> None:
    """Sessions are ended four times a second; how fast it goes is for `make chaos` to judge."""
    with own.database() as url:
        load = Load(url=url, home=str(tmp_path), workers=1, offered=0.2)
        verdict = scenario("backend kill", own, load, seconds=0.8, seed=1)
    assert verdict.accepted > 10
    assert (0, 0, [], 0) == (verdict.lost, verdict.doubled, verdict.broken, verdict.exits)
