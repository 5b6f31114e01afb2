"""A day of virtual time on one file: processes come, crash and come again, and nothing is lost."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from tests.pool.fleet import Fleet
from verify.servers.sqlite_files import InlineStore

from millpond import Context, Keep, Millpond, Outcome, Retry, RetryLater
from millpond.store.sqlite.consistency import check_tables

HOUR = 3600.0
DAY = 24 * HOUR
KEEP = Keep(completed=HOUR, failed=2 * HOUR, keys=3 * HOUR, audit=HOUR)
LIMITS = {"mail": 4, "calls": 3, "hooks": 3}


class Day:
    """A fleet on one file, and what its handlers did."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.dice = random.Random(seed)
        self.fleet = Fleet(path)
        self.processes: list[Millpond] = []
        self.accepted: set[int] = set()
        self.ran: Counter[int] = Counter()
        self.called_back: Counter[int] = Counter()
        self.inside: Counter[str] = Counter()
        self.broken: list[str] = []
        self.crashes = 0

    async def start(self) -> None:
        """Start one more process, as every process of the application is."""
        mp = self.fleet.millpond(work=True, keep=KEEP, lease=600.0)
        dice = self.dice
        retry = Retry.constant(30.0, attempts=4)
        mp.pool("mail", max_concurrent=LIMITS["mail"], retry=retry)
        mp.pool("calls", max_concurrent=LIMITS["calls"], max_per_key=1, retry=retry)
        mp.pool("hooks", lanes=LIMITS["hooks"], retry=retry)

        @mp.task
        async def on_end(outcome: Outcome) -> None:
            self.called_back[outcome.task_id] += 1

        @mp.task
        async def work(ctx: Context) -> None:
            self.ran[ctx.task_id] += 1
            unit = f"{ctx.pool} {ctx.key}"
            self.inside.update((ctx.pool, unit))
            self.look(ctx.pool, unit)
            try:
                await asyncio.sleep(dice.choice((0.0, 1.0, 20.0, 120.0)))
                if dice.random() < 0.1:
                    raise OSError("no luck")
                if dice.random() < 0.05:
                    raise RetryLater(dice.choice((1.0, 600.0)))
            finally:
                self.inside.subtract((ctx.pool, unit))

        await mp.__aenter__()
        self.processes.append(mp)

    def look(self, pool: str, unit: str) -> None:
        """Object if more run than may."""
        if self.inside[pool] > LIMITS[pool]:
            self.broken.append(f"{self.inside[pool]} of {pool} at once")
        if pool == "calls" and self.inside[unit] > 1:
            self.broken.append(f"{self.inside[unit]} of {unit} at once")

    async def submit(self) -> None:
        """Submit one task through any process."""
        mp, dice = self.dice.choice(self.processes), self.dice
        call = mp.tasks["work"].bind().options(key=dice.choice("abc"))
        if dice.random() < 0.2:
            call = call.options(delay=dice.choice((10.0, HOUR)))
        if dice.random() < 0.3:
            call = call.options(on_complete=mp.tasks["on_end"].bind())
        if dice.random() < 0.1:
            call = call.options(idempotency_key=f"k{dice.randrange(50)}")
        handle = await mp.get_pool(dice.choice(list(LIMITS))).submit(call)
        if not handle.duplicate:
            self.accepted.add(handle.id)

    async def one_goes(self) -> None:
        """Let a process crash, most of the time, or leave in good order; another one comes."""
        mp = self.processes.pop(self.dice.randrange(len(self.processes)))
        if self.dice.random() < 0.7:
            self.crashes += 1
            await self.fleet.crash(mp, found_dead=self.dice.random() < 0.3)
        else:
            await mp.__aexit__(None, None, None)
        await self.start()

    async def live(self) -> None:
        """Live through the day, and let everything come to its end."""
        loop = asyncio.get_running_loop()
        for _ in range(2):
            await self.start()
        while loop.time() < DAY:
            await asyncio.sleep(self.dice.expovariate(1 / 90.0))
            await self.submit()
            if self.dice.random() < 0.03:
                await self.one_goes()
        await asyncio.sleep(2.5 * HOUR)

    async def end(self) -> None:
        """Close everything."""
        for mp in self.processes:
            await mp.__aexit__(None, None, None)


@pytest.mark.rows("DE-T24", "DE-R03")
async def test_a_day_with_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task accepted came to its end, limits held, and the file is as small as Keep says."""
    # They do not notify each other, and polling each second would take too long.
    monkeypatch.setattr("millpond.runtime.fleet.poll.POLL_FLOOR", 120.0)
    monkeypatch.setattr("millpond.runtime.fleet.prune.PRUNE_EVERY", 600.0)
    day = Day(tmp_path / "work.db", seed=1)
    await day.live()
    mp = day.processes[0]
    snapshots = [await mp.get_pool(name).snapshot() for name in LIMITS]
    assert [(0, 0)] * 3 == [(one.queued, one.running) for one in snapshots]
    assert len(day.accepted) == sum(one.completed + one.failed for one in snapshots)
    assert day.accepted == set(day.ran)
    assert [] == day.broken
    assert day.crashes > 10
    assert len(day.accepted) > 700
    await sizes(day)
    await day.end()


async def sizes(day: Day) -> None:
    """Object if anything is left of what is long over."""
    store = InlineStore(day.path, asyncio.get_running_loop().time)
    file = store._open()
    now = asyncio.get_running_loop().time()

    def one(statement: str) -> float:
        found = file.execute(statement).fetchone()[0]
        return now if found is None else float(found)

    assert [] == check_tables(file)
    counts = {
        table: one(f"SELECT count(*) FROM millpond_{table}")  # noqa: S608
        for table in ("task", "live", "group", "unit", "seat", "key", "run", "worker")
    }
    assert {"live": 0, "group": 0, "run": 0} == {k: counts[k] for k in ("live", "group", "run")}
    assert len(day.processes) == counts["worker"]
    assert counts["unit"] <= 9
    assert counts["key"] <= 50
    assert one("SELECT min(finished_at) FROM millpond_ended") >= now - 2 * HOUR - 700
    assert one("SELECT min(at) FROM millpond_audit") >= now - HOUR - 700
    assert counts["task"] == one("SELECT count(*) FROM millpond_ended") <= len(day.accepted) / 6
    file.close()
    await store.close()
