"""A wait for a pool that no worker serves is logged once."""

import asyncio
import logging
from pathlib import Path

import pytest

from millpond import ConfigError, Millpond
from millpond.runtime.fleet import unserved_pools


async def nothing() -> None:
    """End at once."""


async def test_a_wait_for_an_unserved_pool_is_logged_once_after_five_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A Millpond without a worker logs the name of the pool, and then no more about that wait."""
    mp = Millpond(work=False)
    pool = mp.pool("lonely")
    task = pool.task(nothing)
    async with mp:
        first = await task.submit()
        waits = [asyncio.ensure_future(first.wait()) for _ in range(3)]
        await asyncio.sleep(4.9)
        assert [] == [record for record in caplog.records if "MILL-026" in record.getMessage()]
        await asyncio.sleep(60)
        warnings = [record for record in caplog.records if "MILL-026" in record.getMessage()]
        assert 1 == len(warnings)
        assert logging.WARNING == warnings[0].levelno
        assert "'lonely'" in warnings[0].getMessage()
        async with mp.worker():
            await asyncio.gather(*waits)


@pytest.mark.real_loop
async def test_a_run_that_no_worker_of_a_file_serves_is_logged(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block of a run ends with its tasks, so it would wait for ever."""
    monkeypatch.setattr(unserved_pools, "UNSERVED_AFTER", 0.0)
    mp = Millpond(f"sqlite:///{tmp_path / 'work.db'}")
    pool = mp.pool("lonely")
    task = pool.task(nothing)
    async with mp:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5), pool.run() as run:
                await run.submit(task.bind())
    assert 1 == caplog.text.count("MILL-026")
    assert "start one with `millpond worker module:app`" in caplog.text


async def test_a_closure_without_a_worker_is_refused_with_the_reason() -> None:
    """Only this process has its code, and it has no worker: the closure could never start."""
    mp = Millpond(work=False)
    pool = mp.pool("lonely")
    async with mp:
        with pytest.raises(ConfigError, match=r"has no worker: open one"):
            await pool.submit(nothing)


async def test_a_wait_for_a_served_pool_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Slow work causes no warning."""
    mp = Millpond()
    pool = mp.pool("busy")

    async def long() -> None:
        await asyncio.sleep(600)

    async with mp:
        await (await pool.submit(long))
    assert "MILL-026" not in caplog.text


async def test_a_worker_for_other_pools_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    """A worker for another pool does not end this wait."""
    mp = Millpond(work=False)
    mp.pool("served")
    pool = mp.pool("lonely")
    task = pool.task(nothing)
    async with mp, mp.worker(["served"]):
        handle = await task.submit()
        with pytest.raises(TimeoutError):
            await handle.wait(timeout=10)
    assert 1 == caplog.text.count("MILL-026")
