"""Dead workers of other hosts are found by their sessions, long before their leases end.

No lock files are shared here: each process has a folder of its own, as on another host.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.waiting import eventually
from verify.servers.fault_proxy import FaultProxy
from verify.servers.postgres import OwnServer, programs_here

from millpond import Millpond, Pool
from millpond.pool.internals import internals_of
from millpond.runtime.fleet.dead_workers import GRACE, Absences
from millpond.runtime.session_times import STOP_AFTER

pytestmark = pytest.mark.real_loop

FOUND_WITHIN = 8.0

_WORKER = """
import asyncio, sys
from pathlib import Path
from millpond import Millpond

mp = Millpond(sys.argv[1], lease=60.0)
pool = mp.pool("p", max_concurrent=1)

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


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's own lock files."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private(tmp_path / "here")))


def private(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


def application(url: str, lease: float = 60.0) -> tuple[Millpond, Pool]:
    """The same pool here, with a handler that ends."""
    mp = Millpond(url, lease=lease)
    pool = mp.pool("p", max_concurrent=1)

    @pool.task(name="work")
    async def work(n: int) -> str:
        return f"done {n}"

    return mp, pool


@asynccontextmanager
async def worker_elsewhere(url: str, tmp_path: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Run a worker on what looks like another host, until its handler has begun."""
    folder = str(private(tmp_path / "there"))
    began = tmp_path / "began"
    other = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", _WORKER, url, str(began)],
        env=os.environ | {"XDG_RUNTIME_DIR": folder, "TMPDIR": folder},
    )
    try:
        await eventually(began.exists, 40)
        yield other
    finally:
        other.kill()
        other.wait()


@pytest.mark.rows("TR-06")
@pytest.mark.parametrize("first", ["the one that dies", "the one that lives"])
async def test_a_worker_killed_on_another_host_is_found_by_its_session(
    first: str, direct: str, tmp_path: Path
) -> None:
    """Also the one that led and watched the others: its locks end with its session."""
    mp, pool = application(direct)
    async with mp:
        if first == "the one that lives":
            async with mp.worker(pools=[]):
                await _killed(mp, pool, direct, tmp_path)
        else:
            await _killed(mp, pool, direct, tmp_path)


async def _killed(mp: Millpond, pool: Pool, url: str, tmp_path: Path) -> None:
    handle = await mp.tasks["work"].submit(1)
    async with worker_elsewhere(url, tmp_path) as other, mp.worker():
        began = time.monotonic()
        other.kill()
        assert "done 1" == await asyncio.wait_for(handle, 30)
        assert GRACE <= time.monotonic() - began + 1.0 <= FOUND_WITHIN + 1.0
        assert 2 == handle.attempt


@pytest.mark.rows("TR-06")
async def test_a_stopped_worker_keeps_its_session_and_is_left_to_its_lease(
    direct: str, tmp_path: Path
) -> None:
    """It is not dead: its kernel answers for it."""
    mp, pool = application(direct)
    async with mp:
        await mp.tasks["work"].submit(1)
        async with worker_elsewhere(direct, tmp_path) as other, mp.worker():
            other.send_signal(signal.SIGSTOP)
            await asyncio.sleep(GRACE + 2.5)  # what must not happen gives no event
            seen = await pool.snapshot()
            assert (1, 0) == (seen.running, seen.queued)


@pytest.fixture
def restarted() -> Iterator[OwnServer]:
    """Give a server for one test: to stop that of all tests would end sessions of the others."""
    with OwnServer(programs_here()) as server:
        yield server


async def test_after_a_restart_of_the_server_no_worker_that_comes_back_is_dead(
    restarted: OwnServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All sessions end at once, and begin again; workers keep their names."""
    caplog.set_level(logging.INFO)
    mp, _ = application(restarted.tcp_url)
    async with mp:
        await mp.tasks["work"].submit(1)
        async with worker_elsewhere(restarted.tcp_url, tmp_path) as other, mp.worker():
            before = await internals_of(mp).runtime.view.workers()
            assert all("~session" in name for name in before)
            await asyncio.to_thread(restarted.stop)
            await asyncio.to_thread(restarted.start)
            await eventually(lambda: internals_of(mp).runtime.session.is_open, 40)
            await asyncio.sleep(GRACE + 2.0)  # what must not happen gives no event
            assert before == await internals_of(mp).runtime.view.workers()
            assert other.poll() is None
    assert not [one for one in caplog.records if "is dead" in one.getMessage()]


class Runs:
    """When handlers of each process ran."""

    def __init__(self) -> None:
        self.spans: dict[str, list[float]] = {}

    def application(self, url: str, name: str, seconds: float) -> Millpond:
        """A process whose handler notes when it began and when it ended."""
        mp = Millpond(url, lease=60.0)
        pool = mp.pool("p", max_concurrent=1)

        @pool.task(name="work")
        async def work(n: int) -> str:
            span = self.spans[name] = [time.monotonic()]
            try:
                await asyncio.sleep(seconds)  # the work itself
            finally:
                span.append(time.monotonic())
            return name

        return mp


@pytest.mark.rows("TR-06")
async def test_a_worker_behind_a_cut_network_stops_before_another_takes_over(
    direct: str, proxy: FaultProxy
) -> None:
    """So no two handlers of a task run at the same time, and limits hold."""
    runs = Runs()
    lost = runs.application(proxy.through(direct), "lost", 600)
    other = runs.application(direct, "other", 0.1)
    async with other, lost, lost.worker():
        handle = await other.tasks["work"].submit(1)
        await eventually(lambda: "lost" in runs.spans, 40)
        async with other.worker():
            began = time.monotonic()
            proxy.refuse()
            proxy.cut()
            assert "other" == await asyncio.wait_for(handle, 30)
            assert time.monotonic() - began <= FOUND_WITHIN + 1.0
            stopped = runs.spans["lost"][1]
            assert stopped - began <= STOP_AFTER + 1.0
            assert stopped < runs.spans["other"][0]
            proxy.accept()


@pytest.mark.rows("TR-06")
async def test_a_worker_that_hears_nothing_of_its_server_stops_its_handlers(
    direct: str, proxy: FaultProxy
) -> None:
    """The network takes what is sent and passes nothing on: no connection ends."""
    runs = Runs()
    lost = runs.application(proxy.through(direct), "lost", 600)
    async with lost, lost.worker():
        await lost.tasks["work"].submit(1)
        await eventually(lambda: "lost" in runs.spans, 40)
        began = time.monotonic()
        proxy.silence()
        await eventually(lambda: len(runs.spans["lost"]) == 2, 20)
        assert runs.spans["lost"][1] - began <= STOP_AFTER + 1.5
        proxy.cut()
        proxy.heal()


async def test_a_short_break_of_the_network_stops_no_handler(
    direct: str, proxy: FaultProxy
) -> None:
    """The session is opened again in time, and the worker renews."""
    runs = Runs()
    mp = runs.application(proxy.through(direct), "here", 6)
    async with mp, mp.worker():
        handle = await mp.tasks["work"].submit(1)
        await eventually(lambda: "here" in runs.spans, 40)
        proxy.cut()
        assert "here" == await asyncio.wait_for(handle, 40)
        assert 1 == handle.attempt


async def test_without_a_session_to_watch_a_lease_alone_counts(direct: str) -> None:
    """listen=0, and a pooler, leave no session: the worker does not claim to keep one."""
    sign = "&" if "?" in direct else "?"
    for options in ("listen=0", "pooler=1"):
        mp, _ = application(f"{direct}{sign}{options}")
        async with mp, mp.worker():
            runtime = internals_of(mp).runtime
            assert not runtime.session.is_open
            assert not [one for one in await runtime.view.workers() if "~session" in one]


def test_a_renewal_ends_an_absence() -> None:
    """Only one without a session and without a renewal for the whole grace is dead."""
    absences = Absences(grace=5.0)
    assert [] == absences.seen([("a", 30.0), ("b", 30.0)], now=1.0)
    assert [] == absences.seen([("a", 40.0), ("b", 30.0)], now=5.9)
    assert [("b", 30.0)] == absences.seen([("a", 40.0), ("b", 30.0)], now=6.0)
    assert [] == absences.seen([("a", 40.0)], now=10.8)
    absences.forget()
    assert [] == absences.seen([("a", 40.0)], now=11.0)
    assert [("a", 40.0)] == absences.seen([("a", 40.0)], now=16.0)
