"""The clock of a PostgreSQL server is set while workers are at work.

All statements ask one function for the server's clock, `millpond_clock`; the tests replace it. So
the clock steps for all of them at once, as when an operator sets it or another host takes over.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.waiting import eventually

from millpond import Millpond, Rate, Retry

pytestmark = pytest.mark.real_loop

HOUR, DAY = 3600.0, 86_400.0

_WORKER = """
import asyncio, sys
from pathlib import Path
from millpond import Millpond

mp = Millpond(sys.argv[1], lease=4.0)
pool = mp.pool("held", max_concurrent=1)

@pool.task(name="work")
async def work(n: int) -> str:
    Path(sys.argv[2]).write_text("began")
    await asyncio.sleep(600)
    return "hung"

async def main():
    async with mp, mp.worker():
        await asyncio.sleep(600)

asyncio.run(main())
"""


def set_clock(url: str, seconds: float) -> None:
    """Set the server's clock, as far as the store can see."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE OR REPLACE FUNCTION millpond.millpond_clock() RETURNS double precision "  # noqa: S608
            "LANGUAGE sql VOLATILE AS $$ SELECT extract(epoch FROM clock_timestamp())"
            f"::double precision + ({seconds!r}) $$"
        )


@contextmanager
def elsewhere(url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker that shares no folder with others of this host, as in a container."""
    private = folder / "run"
    private.mkdir(mode=0o700)
    where = {"XDG_RUNTIME_DIR": str(private), "TMPDIR": str(private)}
    script = [sys.executable, "-c", _WORKER, url, str(folder / "began")]
    worker = subprocess.Popen(script, env=os.environ | where)
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.rows("TR-07")
@pytest.mark.parametrize("back", [300.0, HOUR, 400 * DAY])
async def test_the_clock_steps_back_and_leases_delays_retries_and_rates_go_on(
    direct: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, back: float
) -> None:
    """A dead worker is found by its lease, a delay and a retry take seconds, a rate keeps pace."""
    caplog.set_level(logging.WARNING)
    mp = Millpond(direct, lease=4.0)
    held = mp.pool("held", max_concurrent=1)
    pool = mp.pool("p", max_concurrent=4, retry=Retry(attempts=3, initial=1.0))
    slow = mp.pool("slow", max_concurrent=4, rate=Rate(1, per=1.0))
    tries: list[int] = []

    @held.task(name="work")
    async def work(n: int) -> str:
        return f"done {n}"

    @pool.task
    async def flaky(n: int) -> int:
        tries.append(n)
        if 1 == len(tries):
            raise ValueError(n)
        return n

    @pool.task
    async def later(n: int) -> int:
        return n

    @slow.task
    async def paced(n: int) -> int:
        return n

    async with mp:
        with elsewhere(direct, tmp_path) as other:
            handle = await work.submit(1)
            await eventually((tmp_path / "began").exists, 60.0)
            async with mp.worker():
                delayed = await later.options(delay=3.0).submit(3)
                rated = [await paced.submit(n) for n in range(4)]
                await rated[0]
                set_clock(direct, -back)
                retried = await flaky.submit(2)
                other.kill()
                async with asyncio.timeout(90):
                    assert 3 == await delayed
                    assert 2 == await retried
                    assert [0, 1, 2, 3] == [await one for one in rated]
                    assert "done 1" == await handle
    said = [record.getMessage() for record in caplog.records if "set back" in record.getMessage()]
    assert 1 <= len(said) <= 2, said


def leases(url: str) -> list[tuple[Any, ...]]:
    """Return until when each worker's lease is."""
    query = "SELECT id, expires_at FROM millpond.millpond_worker ORDER BY id, turn"
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.rows("TR-07")
async def test_a_process_that_opens_right_after_the_clock_was_set_forward_believes_the_workers(
    direct: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker renews that was there before: so the time cannot have passed, and nothing is due."""
    first = Millpond(direct, lease=4.0)
    held = first.pool("held", max_concurrent=1)

    @held.task(name="work")
    async def work(n: int) -> str:
        return f"done {n}"

    with elsewhere(direct, tmp_path) as other:
        async with first:
            await work.submit(1)
            await work.options(delay=HOUR).submit(2)
            await eventually((tmp_path / "began").exists, 60.0)
            granted = leases(direct)
            await eventually(lambda: leases(direct) != granted)  # it has renewed by itself
            other.send_signal(signal.SIGSTOP)
        try:
            set_clock(direct, 400 * DAY)
            fresh = Millpond(direct, lease=4.0)
            side = fresh.pool("side", max_concurrent=1)
            with caplog.at_level(logging.WARNING):
                async with fresh:
                    await side.pause()
                    await side.resume()
        finally:
            other.send_signal(signal.SIGCONT)
    said = [line for line in caplog.messages if "ahead of what has passed" in line]
    assert 1 == len(said), caplog.messages
    with psycopg.connect(direct) as connection:
        ((latest, behind),) = connection.execute(
            "SELECT latest, behind FROM millpond.millpond_meta ORDER BY turn DESC LIMIT 1"
        ).fetchall()
    assert abs(latest - time.time()) < 120.0
    assert abs(behind - 400 * DAY) < 120.0
