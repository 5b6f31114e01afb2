"""`millpond worker` over a SQLite file: tasks of workers that drain, stop and die."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.cli.apps.ledger import make
from tests.cli.running import PATIENCE, Running, running
from tests.cli.test_worker import after_the_echo
from tests.waiting import until

from millpond import TaskInfo
from millpond.cli.exits import Exit

TERM = signal.SIGTERM
EXAMPLES = Path(__file__).parents[2] / "docs/examples"


def worker_of(folder: Path, *options: str) -> AbstractContextManager[Running]:
    """A worker of the application in a folder."""
    return running("ledger:make", *options, LEDGER=str(folder))


def submit(folder: Path, name: str, numbers: Iterable[int]) -> None:
    """Store tasks, as any process may."""

    async def main() -> None:
        async with make(folder) as mp:
            await mp.get_pool("jobs").submit_many(mp.tasks[name].each(numbers))

    asyncio.run(main())


def stored(folder: Path) -> list[TaskInfo]:
    """Every task, as the store has it."""

    async def main() -> list[TaskInfo]:
        async with make(folder) as mp:
            return await mp.get_pool("jobs").tasks(limit=1000)

    return asyncio.run(main())


def statuses(folder: Path) -> Counter[str]:
    """How many tasks stand how."""
    return Counter(task.status for task in stored(folder))


def runs(folder: Path, word: str) -> list[int]:
    """The numbers of the runs that began, or were done, in order."""
    lines = (folder / "ledger").read_text("utf-8").splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith(f"{word} ")]


def test_once_runs_all_tasks(tmp_path: Path) -> None:
    """Each task once."""
    submit(tmp_path, "job", range(50))
    with worker_of(tmp_path, "--once") as worker:
        assert Exit.CLEAN == worker.ended()
        assert "stopped: 50 completed, 0 failed, 0 given back" in worker.output
    assert {"completed": 50} == statuses(tmp_path)
    assert [*range(50)] == sorted(runs(tmp_path, "begun"))


def test_two_workers_share_the_tasks(tmp_path: Path) -> None:
    """Each task once, and both leave when all of it is done."""
    submit(tmp_path, "job", range(100))
    with worker_of(tmp_path, "--once") as one, worker_of(tmp_path, "--once") as two:
        assert (Exit.CLEAN, Exit.CLEAN) == (one.ended(), two.ended())
    assert {"completed": 100} == statuses(tmp_path)
    assert [*range(100)] == sorted(runs(tmp_path, "begun"))


def test_the_application_of_the_documentation_is_served(tmp_path: Path) -> None:
    """What `python mail_app.py` has stored, its worker does; one of another store does not."""
    path = ":".join([str(EXAMPLES), *sys.path])
    example = [sys.executable, str(EXAMPLES / "mail_app.py")]
    subprocess.run(example, cwd=tmp_path, env={"PYTHONPATH": path}, check=True, timeout=PATIENCE)
    with running(
        "mail_app", "--once", "--store", "sqlite:///other.db", cwd=tmp_path, PYTHONPATH=path
    ) as worker:
        assert Exit.CLEAN == worker.ended()
        where = f"sqlite:///{tmp_path}/other.db"
        assert f"serving mail of mail_app from {where}, each pool up to" in worker.output
        assert "stopped: 0 completed" in worker.output
    with running("mail_app:mp", "--once", cwd=tmp_path, PYTHONPATH=path) as worker:
        assert Exit.CLEAN == worker.ended()
        where = f"sqlite:///{tmp_path}/mail.db"
        assert f"serving mail of mail_app:mp from {where}, each pool up to" in worker.output
        assert "stopped: 1 completed" in worker.output


@pytest.mark.rows("CX-T113", "CX-T114")
def test_tasks_given_back_on_stop_are_not_charged(tmp_path: Path) -> None:
    """What ran is given back uncharged, what waited is not touched, and another does both."""
    submit(tmp_path, "held", range(6))
    with worker_of(tmp_path, "--grace", "0") as worker:
        for _ in range(4):
            worker.until("held ")
        worker.signal(TERM)
        worker.until("stopped: 0 completed, 0 failed, 4 given back")
        assert Exit.CLEAN == worker.ended()
    tasks = stored(tmp_path)
    assert {("queued", 0, 1): 4, ("queued", 0, 0): 2} == Counter(
        (task.status, task.attempt, task.runs) for task in tasks
    )
    (tmp_path / "go").touch()
    with worker_of(tmp_path, "--once") as worker:
        assert Exit.CLEAN == worker.ended()
    assert {("completed", 1): 6} == Counter((t.status, t.attempt) for t in stored(tmp_path))


def test_running_tasks_end_within_the_grace_period(tmp_path: Path) -> None:
    """It is completed by the worker that began it."""
    submit(tmp_path, "held", range(5))
    with worker_of(tmp_path) as worker:
        for _ in range(4):
            worker.until("held ")
        worker.signal(TERM)
        worker.until("SIGTERM: draining, 4 running")
        (tmp_path / "go").touch()
        worker.until("stopped: 4 completed, 0 failed, 0 given back")
        assert Exit.CLEAN == worker.ended()
    assert {"completed": 4, "queued": 1} == statuses(tmp_path)


def test_a_second_signal_gives_back(tmp_path: Path) -> None:
    """Uncharged, as the first would in the end."""
    submit(tmp_path, "held", range(2))
    with worker_of(tmp_path, "--grace", "3600") as worker:
        worker.until("held ")
        worker.until("held ")
        worker.signal(TERM)
        worker.until("SIGTERM: draining")
        after_the_echo()
        worker.signal(TERM)
        assert Exit.FORCED == worker.ended()
    assert {("queued", 0, 1): 2} == Counter((t.status, t.attempt, t.runs) for t in stored(tmp_path))


@pytest.mark.rows("DP-09", "CX-T66")
def test_another_worker_runs_the_tasks_of_a_killed_one(tmp_path: Path) -> None:
    """Nothing is lost; the attempt is charged, because it may have had effects."""
    submit(tmp_path, "held", range(3))
    with worker_of(tmp_path) as killed:
        for _ in range(3):
            killed.until("held ")
        killed.signal(signal.SIGKILL)
        killed.process.wait(timeout=PATIENCE)
    (tmp_path / "go").touch()
    with worker_of(tmp_path, "--once") as worker:
        assert Exit.CLEAN == worker.ended()
    assert {("completed", 2): 3} == Counter((t.status, t.attempt) for t in stored(tmp_path))
    assert [0, 0, 1, 1, 2, 2] == sorted(runs(tmp_path, "begun"))
    assert [0, 1, 2] == sorted(runs(tmp_path, "done"))


def freeze(worker: Running, folder: Path) -> None:
    """Freeze a worker between two transactions: inside one it would block all writers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        worker.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, worker.process.pid, os.WSTOPPED | os.WNOWAIT)
        with (folder / "work.db-writers").open() as line:
            try:
                fcntl.flock(line, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                worker.signal(signal.SIGCONT)
            else:
                return
        assert time.monotonic() < deadline


def test_a_worker_that_was_frozen_past_its_leases_settles_nothing(tmp_path: Path) -> None:
    """Frozen for longer than its lease: another does its work, and its own comes too late."""
    submit(tmp_path, "held", range(2))
    with worker_of(tmp_path) as frozen:
        frozen.until("held ")
        frozen.until("held ")
        freeze(frozen, tmp_path)
        (tmp_path / "go").touch()
        with worker_of(tmp_path, "--once") as worker:
            assert Exit.CLEAN == worker.ended()
        frozen.signal(signal.SIGCONT)
        frozen.signal(TERM)
        assert Exit.CLEAN == frozen.ended()
        assert "stopped: 0 completed" in frozen.output
    assert {("completed", 2): 2} == Counter((t.status, t.attempt) for t in stored(tmp_path))


# Stores that cannot be opened


def test_a_signal_ends_a_worker_that_waits_for_a_locked_store(tmp_path: Path) -> None:
    """A signal ends the wait for it: nothing is held, so there is nothing to drain."""
    submit(tmp_path, "job", range(1))
    path = tmp_path / "work.db-writers"
    with path.open() as line:
        fcntl.flock(line, fcntl.LOCK_EX)
        with running("ledger_hasty:make", LEDGER=str(tmp_path)) as worker:
            until_it_has_open(worker, path)
            worker.signal(TERM)
            worker.until("SIGTERM: stopped before the store was open")
            assert Exit.CLEAN == worker.ended()
    assert {"queued": 1} == statuses(tmp_path)


def until_it_has_open(worker: Running, path: Path) -> None:
    """Wait until a file is open in its process: it stands in line then, or is about to."""
    files = Path(f"/proc/{worker.process.pid}/fd")
    until(lambda: any(link.resolve() == path for link in files.iterdir()))


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """The refusal is one line with the file's name; the file is unchanged."""
    (tmp_path / "work.db").write_bytes(b"my diary, " * 1000)
    with worker_of(tmp_path) as worker:
        assert Exit.STORE == worker.ended()
        assert 1 == len(worker.lines)
        assert str(tmp_path / "work.db") in worker.output
    assert b"my diary, " * 1000 == (tmp_path / "work.db").read_bytes()


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """It is not made: it may be a mistake, or a disk that is not mounted."""
    with worker_of(tmp_path / "nowhere") as worker:
        assert Exit.STORE == worker.ended()
        assert 1 == len(worker.lines)
        assert str(tmp_path / "nowhere") in worker.output
    assert [] == list(tmp_path.iterdir())


def test_the_environment_names_a_store_for_an_application_that_has_none(tmp_path: Path) -> None:
    """An application with a store keeps it: its submitters use that store."""
    other = f"sqlite:///{tmp_path}/other.db"
    with (
        running("trouble:memory", "--once", MILLPOND_STORE=other) as one,
        running("ledger:make", "--once", LEDGER=str(tmp_path), MILLPOND_STORE=other) as two,
    ):
        assert (Exit.CLEAN, Exit.CLEAN) == (one.ended(), two.ended())
        assert f"{tmp_path}/other.db" in one.output
        assert f"{tmp_path}/work.db" in two.output
