"""A worker is killed: the others of its host find it by its lock file, long before its lease."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import eventually

from millpond import Millpond

pytestmark = pytest.mark.real_loop

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


@pytest.mark.rows("TR-06")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_killed_worker_is_found_long_before_its_lease_and_a_stopped_one_is_left_alone(
    kind: str, direct: str, tmp_path: Path
) -> None:
    """Its lock is free once it is dead; while it is only stopped, it is held."""
    url = direct if kind == "postgresql" else f"sqlite:///{tmp_path / 'work.db'}"
    mp = Millpond(url, lease=60.0)
    pool = mp.pool("p", max_concurrent=1)

    @pool.task(name="work")
    async def work(n: int) -> str:
        return f"done {n}"

    async with mp:
        handle = await work.submit(1)
        began = tmp_path / "began"
        other = subprocess.Popen([sys.executable, "-c", _WORKER, url, str(began)])  # noqa: ASYNC220
        try:
            await eventually(began.exists, within=40)
            async with mp.worker():
                other.send_signal(signal.SIGSTOP)
                await asyncio.sleep(1.5)  # it looks for lock files several times meanwhile
                seen = await pool.snapshot()
                assert (1, 0) == (seen.running, seen.queued)
                other.kill()
                async with asyncio.timeout(10):
                    assert "done 1" == await handle
        finally:
            other.kill()
            other.wait()


@pytest.mark.rows("TR-06")
async def test_a_worker_that_shares_the_host_but_not_the_folder_is_not_taken_for_gone(
    direct: str, tmp_path: Path
) -> None:
    """Containers may share a host's name and no files: then only the lease counts."""
    mp = Millpond(direct, lease=60.0)
    pool = mp.pool("p", max_concurrent=1)

    @pool.task(name="work")
    async def work(n: int) -> str:
        return f"done {n}"

    private = tmp_path / "run"
    private.mkdir(mode=0o700)
    env = os.environ | {"XDG_RUNTIME_DIR": str(private), "TMPDIR": str(private)}
    async with mp:
        await work.submit(1)
        began = tmp_path / "began"
        script = [sys.executable, "-c", _WORKER, direct, str(began)]
        other = subprocess.Popen(script, env=env)  # noqa: ASYNC220
        try:
            await eventually(began.exists, within=40)
            async with mp.worker():
                await asyncio.sleep(2.0)  # it looks for lock files several times meanwhile
                seen = await pool.snapshot()
                assert (1, 0) == (seen.running, seen.queued)
                assert other.poll() is None
        finally:
            other.kill()
            other.wait()
