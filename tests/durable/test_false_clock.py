"""Real processes use one SQLite store, and the clock of one of them, or of all, is wrong."""

import asyncio
import contextlib
import logging
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millpond import Keep, Millpond
from millpond.pool.internals import internals_of
from millpond.store.clock import ForwardClock
from millpond.store.sqlite import SqliteStore

pytestmark = pytest.mark.real_loop

DAY = 86_400.0

_WITH_A_FALSE_CLOCK = """
import asyncio, sys, time

honest = time.time
time.time = lambda: honest() + 400 * 86_400

from millpond import Millpond

mp = Millpond(sys.argv[1])
pool = mp.pool("p", max_concurrent=2)

@pool.task(name="work")
async def work(n: int) -> int:
    return n

async def main():
    async with mp, mp.worker():
        assert 7 == await (await work.submit(7))

asyncio.run(main())
"""

_A_WORKER = """
import asyncio, sys

from millpond import Keep, Millpond

mp = Millpond(sys.argv[1], lease=4.0, keep=Keep())
pool = mp.pool("p", max_concurrent=2)

@pool.task(name="work")
async def work(n: int) -> int:
    return n

async def main():
    async with mp, mp.worker():
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


@contextlib.contextmanager
def good_worker(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process whose clock is right, that works until it is let go."""
    script = [sys.executable, "-c", _A_WORKER, url]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        try:
            assert b"ready\n" == worker.stdout.readline()
            yield worker
        finally:
            worker.kill()


def stored_clock(path: Path) -> tuple[float, float]:
    """Return the store's time as it was last written, and how far it is behind the clock."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ((latest, behind),) = connection.execute("SELECT latest, behind FROM millpond_meta")
    return latest, behind


@pytest.mark.rows("TR-08")
async def test_one_process_with_a_false_clock_changes_nothing_for_the_others(
    tmp_path: Path,
) -> None:
    """Two others stay open: what is due in an hour stays so, keys and dead letters stay."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    mp = Millpond(url, keep=Keep())
    pool = mp.pool("p", max_concurrent=2)

    @pool.task(name="work")
    async def work(n: int) -> int:
        return n

    with good_worker(url) as other:
        async with mp:
            due = datetime.now(UTC) + timedelta(hours=1)
            later = await work.options(run_at=due).submit(1)
            assert 2 == await (await work.options(idempotency_key="once").submit(2))
            script = [sys.executable, "-c", _WITH_A_FALSE_CLOCK, url]
            ran = await asyncio.to_thread(
                subprocess.run, script, capture_output=True, check=False, timeout=120
            )
            assert 0 == ran.returncode, ran.stderr
            again = await work.options(idempotency_key="once").submit(2)
            assert again.duplicate
            assert 3 == await (await work.submit(3))
            assert other.poll() is None
        assert abs(stored_clock(tmp_path / "work.db")[0] - time.time()) < 60.0
        with contextlib.closing(sqlite3.connect(tmp_path / "work.db")) as connection:
            query = "SELECT running, grp FROM millpond_live WHERE id = ?"
            assert [(0, 0)] == connection.execute(query, [later.id]).fetchall()
    assert b"ahead of the kernel's" in ran.stderr


@pytest.mark.rows("TR-08")
async def test_a_process_that_opens_after_the_machines_clock_was_set_believes_the_workers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker lives that renewed a moment ago: so no time has passed, whatever the clock says."""
    path = tmp_path / "work.db"
    url = f"sqlite:///{path}"
    mp = Millpond(url)
    pool = mp.pool("p", max_concurrent=2)
    with good_worker(url), caplog.at_level(logging.WARNING):
        wrong = ForwardClock(lambda: time.time() + 400 * DAY)
        internals_of(mp).owner.make_store = lambda: SqliteStore(path, clock=wrong)
        async with mp:
            await pool.pause()
            await pool.resume()
        latest, _ = stored_clock(path)
    assert abs(latest - time.time()) < 60.0
    said = [line for line in caplog.messages if "ahead of what has passed" in line]
    assert 1 == len(said), caplog.messages


@pytest.mark.rows("TR-08")
async def test_a_process_that_opens_when_all_others_are_dead_takes_the_clock_at_its_word(
    tmp_path: Path,
) -> None:
    """The dead processes renew no lease, so all that is due by the clock is due at once."""
    path = tmp_path / "work.db"
    url = f"sqlite:///{path}"
    mp = Millpond(url)
    pool = mp.pool("p", max_concurrent=2)
    with good_worker(url):
        pass
    later = ForwardClock(lambda: time.time() + 3 * DAY)
    internals_of(mp).owner.make_store = lambda: SqliteStore(path, clock=later)
    async with mp:
        await pool.pause()
        await pool.resume()
    assert abs(stored_clock(path)[0] - time.time() - 3 * DAY) < 60.0
