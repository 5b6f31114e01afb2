"""Effects exactly once, with real processes that are killed and frozen."""

import asyncio
import fcntl
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.pool.ledger_app import MAKE, App
from tests.waiting import eventually

pytestmark = pytest.mark.real_loop

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def stands_still(pid: int) -> bool:
    """Return whether every thread has stopped: the signal takes a while to act."""
    states = [
        task.read_text().rpartition(")")[2].split()[0]
        for task in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return all(state in "Tt" for state in states)


class Workers:
    """Worker processes on one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "ledger.db"
        self.up: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.pool.ledger_app", str(self.file), *options]
        worker = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        )
        self.up.append(worker)
        return worker

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        self.up.remove(worker)
        worker.kill()
        worker.wait()

    async def freeze(self, worker: subprocess.Popen[bytes]) -> None:
        """Stop a process, but not in the middle of a write, which would block all others."""
        while True:
            worker.send_signal(signal.SIGSTOP)
            await eventually(partial(stands_still, worker.pid))
            if self.is_free():
                return
            worker.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.02)  # it ends its write now; nothing shows when

    def is_free(self) -> bool:
        with (self.folder / "ledger.db-writers").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        connection = sqlite3.connect(self.file, timeout=0.2, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()
        return True

    def busy(self) -> list[subprocess.Popen[bytes]]:
        """Return those that run something, as the file says: workers are named by their process."""
        connection = sqlite3.connect(self.file)
        rows = connection.execute("SELECT DISTINCT worker FROM millpond_live WHERE running = 1")
        running = {int(worker.split("-")[-2]) for (worker,) in rows}
        connection.close()
        return [worker for worker in self.up if worker.pid in running]

    def ledger(self) -> list[tuple[int, int]]:
        connection = sqlite3.connect(self.file)
        rows = connection.execute("SELECT task, attempt FROM ledger").fetchall()
        connection.close()
        return rows

    async def seen(self, *names: str) -> str:
        """Wait for one of these files that handlers write."""
        await eventually(lambda: any((self.folder / name).exists() for name in names))
        return next(name for name in names if (self.folder / name).exists())


@contextmanager
def working(folder: Path) -> Iterator[Workers]:
    workers = Workers(folder)
    connection = sqlite3.connect(workers.file)
    connection.execute(MAKE)
    connection.close()
    try:
        yield workers
    finally:
        for worker in list(workers.up):
            workers.kill(worker)


@pytest.mark.rows("DE-18", "DP-10")
async def test_each_effect_happens_once_whichever_process_is_killed(tmp_path: Path) -> None:
    """Workers die at random moments; every task has one row in the ledger, and completed."""
    dice = random.Random(7)
    with working(tmp_path) as workers:
        app = App(str(workers.file), work=False)
        async with app.mp:
            works = [task.bind() for _ in range(60) for task in app.tasks]
            handles = await app.pool.submit_many(works)
            for _ in range(3):
                workers.start()
            kills = 0
            async with asyncio.timeout(50):
                while (done := (await app.pool.snapshot()).completed) < len(handles):
                    await asyncio.sleep(dice.uniform(0.0, 0.05))  # kills come at any moment
                    busy = workers.busy()
                    if done >= 15 * kills and kills < 8 and busy:
                        victim = dice.choice(busy)
                        await workers.freeze(victim)
                        # A frozen worker keeps its task, unless it had just completed it.
                        kills += victim in workers.busy()
                        workers.kill(victim)
                        workers.start()
            results = [await handle for handle in handles]
        assert [1, 2, 3] * 60 == results
        rows = workers.ledger()
        assert sorted(handle.id for handle in handles) == sorted(task for task, _ in rows)
        # The row is that of the attempt that completed.
        assert {handle.id: handle.attempt for handle in handles} == dict(rows)
        # On a slow machine many tasks end between two looks.
        assert kills >= 4
        assert any(attempt > 1 for _, attempt in rows)


@pytest.mark.parametrize("how", ["commit", "transaction"])
@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "unfenced"])
@pytest.mark.rows("TRAP-1", "CX-16")
async def test_a_zombie_writes_nothing(tmp_path: Path, how: str, fenced: bool) -> None:
    """A worker frozen for longer than its lease commits late; another attempt has completed.

    Where the fence is not asked its row is there: so this test would notice.
    """
    with working(tmp_path) as workers:
        app = App(str(workers.file), work=False)
        async with app.mp:
            handle = await app.late.submit(how, str(tmp_path))
            zombie = workers.start(*([] if fenced else ["unfenced"]))
            await workers.seen("begun")
            await workers.freeze(zombie)
            workers.start()
            async with asyncio.timeout(30):
                assert 2 == await handle
            (tmp_path / "go").touch()
            zombie.send_signal(signal.SIGCONT)
            mark = await workers.seen("refused-1", "stored-1")
            assert "refused-1" == mark
            assert 2 == (await handle.refresh()).result
        expected = [(handle.id, 2)] if fenced else [(handle.id, 2), (handle.id, 1)]
        assert expected == workers.ledger()


async def test_a_step_is_done_once_and_its_progress_stays(tmp_path: Path) -> None:
    """Its process is killed after the step; the next attempt gets the step's result."""
    with working(tmp_path) as workers:
        app = App(str(workers.file), work=False)
        async with app.mp:
            handle = await app.charge.submit(str(tmp_path))
            victim = workers.start()
            await workers.seen("begun")
            progress = await asyncio.wait_for(anext(aiter(handle.progress())), 10)
            assert (0.5, "charged") == progress
            workers.kill(victim)
            workers.start()
            async with asyncio.timeout(30):
                assert [4711, 2] == await handle
            (info,) = [one for one in await app.pool.tasks() if one.id == handle.id]
            assert (0.5, "charged") == info.progress
    assert "paid\n" == (tmp_path / "charges").read_text()


@pytest.mark.parametrize("how", ["commit", "rollback"])
async def test_a_submitter_that_dies_in_its_transaction(tmp_path: Path, how: str) -> None:
    """Workers run the tasks that it committed, without a hint from it; the others do not exist."""
    script = f"""
import asyncio, os, sqlite3
from tests.pool.ledger_app import App

async def main():
    app = App({str(tmp_path / "ledger.db")!r}, work=False)
    async with app.mp:
        own = sqlite3.connect({str(tmp_path / "ledger.db")!r}, isolation_level=None)
        own.execute("BEGIN IMMEDIATE")
        await app.pool.submit(app.tasks[0].bind(), connection=own)
        if {how!r} == "commit":
            own.execute("COMMIT")
        os._exit(9)

asyncio.run(main())
"""
    with working(tmp_path) as workers:
        app = App(str(workers.file), work=True)
        async with app.mp:
            dying = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                script,
                env=ENVIRONMENT,
            )
            assert 9 == await dying.wait()
            if how == "commit":

                async def is_done() -> int:
                    return (await app.pool.snapshot()).completed

                await eventually(is_done)
            else:
                await asyncio.sleep(1.2)  # a poll, of which there is one a second, finds nothing
                assert 0 == await app.pool.size()
        assert (1 if how == "commit" else 0) == len(workers.ledger())
