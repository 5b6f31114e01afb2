"""An interrupt reaches a handler in another process: at once, or by its renewal."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.durable import endless

from millpond.store.postgres import notify as postgres
from millpond.store.protocol import Hint
from millpond.store.sqlite import wake as sqlite

pytestmark = pytest.mark.real_loop

PATIENCE = 30.0
LONG, SHORT = 60.0, 1.5
"""Seconds of a lease whose renewal comes too late to interrupt, and of one renewed often."""


class Runner:
    """The other process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def says(self, word: str) -> None:
        """Wait until it says something, which must be this."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            said = await self._process.stdout.readline()
        assert word == said.decode().strip()

    async def kill(self) -> None:
        """End it."""
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def running(url: str, lease: float) -> AsyncIterator[Runner]:
    """Start a process that works on a store."""
    runner = Runner(
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.durable.endless", url, str(lease)),
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)},
        )
    )
    try:
        yield runner
    finally:
        await runner.kill()


@pytest.mark.rows("CX-03")
async def test_an_interrupt_stops_a_handler_that_reads_no_signal(url: str) -> None:
    """It does so long before the other process renews its lease."""
    async with running(url, LONG) as runner, endless.make(url, LONG, work=False) as mp:
        handle = await mp.tasks["endless"].submit()
        await runner.says("begun")
        began = time.monotonic()
        assert await mp.cancel(handle.id, mode="interrupt")
        assert "cancelled" == (await handle.wait(timeout=PATIENCE)).status
        assert time.monotonic() - began < LONG / 6
        await runner.says("stopped")


@pytest.mark.rows("CX-03")
async def test_a_renewal_reports_cancelled_tasks_without_a_hint(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All hints of the process that cancels are lost."""
    async with running(url, SHORT) as runner, endless.make(url, SHORT, work=False) as mp:
        handle = await mp.tasks["endless"].submit()
        await runner.says("begun")
        lost: list[Hint | None] = []
        for wakes in (sqlite.SqliteHintChannel, postgres.PostgresHintChannel):
            monkeypatch.setattr(wakes, "send", lambda _, hint=None: lost.append(hint))
        assert await mp.cancel(handle.id, mode="interrupt")
        assert "cancelled" == (await handle.wait(timeout=PATIENCE)).status
        await runner.says("stopped")
        assert [(handle.id,)] == [hint.interrupted for hint in lost if hint and hint.cancelled]
