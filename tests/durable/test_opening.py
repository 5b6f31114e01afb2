"""Opening a store: it makes what it needs, keeps what it has, and numbers do not wear out."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.durable.looking import looked_at
from tests.durable.test_damage import edit
from tests.pool.fleet import Fleet
from verify.servers.schemas import Schema

from millpond import Millpond
from millpond.pool.internals import internals_of
from millpond.store.sql.codec import SEQ_BITS
from millpond.store.sqlite.connect import connect


def application(url: str, *, work: bool = True) -> Millpond:
    """The application of these tests."""
    mp = Millpond(url, work=work)
    pool = mp.pool("jobs", lanes=1)

    @pool.task
    async def job(number: int) -> int:
        return number

    return mp


@pytest.mark.rows("DE-15", "CX-T25", "DP-18")
@pytest.mark.real_loop
async def test_the_first_submit_needs_no_set_up_and_is_there_afterwards(url: str) -> None:
    """The tables are made by opening it; what one opening stored, the next one finds and does."""
    async with application(url, work=False) as mp:
        task = (await mp.tasks["job"].submit(7)).id
    async with application(url) as mp:
        assert 7 == await (await mp.handle(task))
    async with application(url, work=False) as mp:
        assert ["completed"] == await mp.status([task])


@pytest.mark.rows("DE-15", "CX-T25")
def test_processes_that_open_a_new_store_at_once_make_it_once(url: str) -> None:
    """Each of them submits; the store refuses none, and makes no table twice."""
    script = (
        "import asyncio, sys\n"
        "from tests.durable.test_opening import application\n"
        "async def main():\n"
        "    async with application(sys.argv[1], work=False) as mp:\n"
        "        await mp.tasks['job'].submit(int(sys.argv[2]))\n"
        "asyncio.run(main())\n"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", script, url, str(n)], env=environment)
        for n in range(4)
    ]
    assert [0] * 4 == [process.wait(50) for process in processes]
    with looked_at(url) as look:
        assert [(4,)] == look("SELECT count(*) FROM millpond_live")
        made = look("SELECT version FROM millpond_schema ORDER BY version")
        assert [(number,) for number in range(1, len(made) + 1)] == made
        assert [(4,)] == look("SELECT sequence FROM millpond_lane")


@pytest.mark.rows("HN-21")
def test_a_commit_reaches_the_disk_before_it_is_acknowledged(tmp_path: Path) -> None:
    """`full` asks the system to write at each commit, `normal` at checkpoints; both are WAL."""
    for durability, level in (("full", 2), ("normal", 1)):
        with closing(connect(tmp_path / "work.db", durability=durability)) as file:  # type: ignore[arg-type]
            assert ("wal",) == file.execute("PRAGMA journal_mode").fetchone()
            assert (level,) == file.execute("PRAGMA synchronous").fetchone()


@pytest.mark.rows("DE-24")
async def test_sequences_are_64_bit_and_are_not_used_again(place: Path | Schema) -> None:
    """A lane goes on beyond 2^32, over restarts and purges, and gives no number twice."""
    fleet = Fleet(place)
    beyond = 1 << 40

    def process() -> Millpond:
        mp = fleet.millpond(work=False)
        pool = mp.pool("jobs", lanes=1)

        @pool.task
        async def job() -> None: ...

        return mp

    async with process() as mp:
        assert 1 == (await mp.tasks["job"].submit()).sequence
    edit(place, f"UPDATE millpond_lane SET sequence = {beyond}")  # noqa: S608 - a number
    last = (1 << SEQ_BITS) - 1000
    edit(place, f"UPDATE millpond_pool SET next_seq = {last}")  # noqa: S608 - a number
    given: list[int] = []
    for _ in range(2):
        async with process() as mp:
            handles = await mp.get_pool("jobs").submit_many([mp.tasks["job"].bind()] * 3)
            given += [handle.sequence for handle in handles]
            assert await mp.get_pool("jobs").purge()
            await asyncio.sleep(1)
    assert [beyond + n for n in range(1, 7)] == given


@pytest.mark.rows("CX-17", "DE-04")
async def test_rows_that_belong_together_are_written_in_one_transaction(tmp_path: Path) -> None:
    """Another reader sees a task and its place, or an end and its callback: both or neither."""
    path = tmp_path / "work.db"
    fleet = Fleet(path)
    mp = fleet.millpond(work=True)
    pool = mp.pool("jobs", lanes=1)

    @mp.task
    async def report(outcome: object) -> None: ...

    @pool.task
    async def job() -> None: ...

    seen: list[tuple[int, ...]] = []
    async with mp:
        await pool.pause(lane=0)
        with closing(sqlite3.connect(path, isolation_level=None)) as file:

            def look() -> None:
                """Look at the file from outside, after each of its commits."""
                query = (
                    "SELECT (SELECT count(*) FROM millpond_task WHERE place >> 40 = 1),"
                    " (SELECT coalesce(sum(sequence), 0) FROM millpond_lane),"
                    " (SELECT count(*) FROM millpond_ended WHERE pool = 1),"
                    " (SELECT count(*) FROM millpond_task WHERE place >> 40 = 2)"
                )
                seen.append(file.execute(query).fetchone())

            store = internals_of(mp).runtime.store
            for verb in ("submit", "settle"):
                _looking_after(store, verb, look)
            for _ in range(3):
                await job.options(on_complete=report.bind()).submit()
            await pool.resume(lane=0)
            await pool.drain()
    assert seen
    assert all(tasks == places for tasks, places, _, _ in seen)
    assert all(ended == callbacks for _, _, ended, callbacks in seen)
    assert (3, 3, 3, 3) == seen[-1]


def _looking_after(store: object, verb: str, look: object) -> None:
    """Call `look` after each call of a verb."""
    inner = getattr(store, verb)

    async def looked(*args: object, **kwargs: object) -> object:
        answer = await inner(*args, **kwargs)
        look()  # type: ignore[operator]
        return answer

    setattr(store, verb, looked)
