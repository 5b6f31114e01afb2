"""The writers' lock: one writer at a time, over processes, and none starves."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.waiting import until

from millpond.store.sqlite import writers_lock as lock_module
from millpond.store.sqlite.writers_lock import WritersLock

TAKING = """
import sys, time
from pathlib import Path
from millpond.store.sqlite.writers_lock import WritersLock
lock = WritersLock(Path(sys.argv[1]))
print("up", flush=True)
lock.acquire()
print("mine", flush=True)
input()
"""


def taking(path: Path) -> subprocess.Popen[str]:
    """A process that takes the lock, says so, and keeps it; it is up when this returns."""
    process = subprocess.Popen(
        [sys.executable, "-c", TAKING, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert "up" == heard(process)
    return process


def heard(process: subprocess.Popen[str]) -> str:
    """The next thing a process says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> None:
    """Kill a process."""
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_the_lock_has_one_holder(tmp_path: Path) -> None:
    """Also inside a process; the database itself is not touched."""
    first, second = WritersLock(tmp_path / "work.db"), WritersLock(tmp_path / "work.db")
    first.acquire()
    assert not second.try_acquire()
    first.release()
    assert second.try_acquire()
    second.close()
    second.close()
    assert first.try_acquire()
    first.close()
    assert ["work.db-writers"] == [file.name for file in tmp_path.iterdir()]


def test_waiting_processes_get_the_lock_when_it_is_released(tmp_path: Path) -> None:
    """Each of them gets it."""
    locks = [WritersLock(tmp_path / "work.db") for _ in range(4)]
    locks[0].acquire()
    turns: list[int] = []

    def waiting(number: int) -> None:
        locks[number].wait()
        turns.append(number)
        locks[number].release()

    threads = [threading.Thread(target=waiting, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    locks[0].release()
    for thread in threads:
        thread.join(10)
    assert [1, 2, 3] == sorted(turns)
    for lock in locks:
        lock.close()


def test_the_lock_is_released_when_its_process_ends(tmp_path: Path) -> None:
    """However that ends."""
    lock = WritersLock(tmp_path / "work.db")
    process = taking(tmp_path / "work.db")
    assert "mine" == heard(process)
    assert not lock.try_acquire()
    ended(process)
    assert lock.try_acquire()
    lock.close()


def in_line(process: subprocess.Popen[str]) -> bool:
    """Return whether the process waits for a lock, by the kernel's list."""
    waiting = [
        line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line
    ]
    return str(process.pid) in {fields[5] for fields in waiting}


def is_frozen(process: subprocess.Popen[str]) -> bool:
    """Whether it has come to a stop."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which process waits for which lock")
def test_a_process_frozen_while_it_waits_to_write_blocks_no_other(tmp_path: Path) -> None:
    """Those behind it go first."""
    lock = WritersLock(tmp_path / "work.db")
    lock.acquire()
    frozen = taking(tmp_path / "work.db")
    until(lambda: in_line(frozen))
    behind = taking(tmp_path / "work.db")
    until(lambda: in_line(behind))
    frozen.send_signal(signal.SIGSTOP)
    until(lambda: is_frozen(frozen))
    lock.release()
    assert "mine" == heard(behind)
    ended(behind)
    frozen.send_signal(signal.SIGCONT)
    assert "mine" == heard(frozen)
    ended(frozen)
    lock.close()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """The parent may die while its children go on."""
    lock, other = WritersLock(tmp_path / "work.db"), WritersLock(tmp_path / "work.db")
    lock.acquire()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"alive")
        signal.pause()
    os.read(reading, 5)
    lock.close()
    assert other.try_acquire()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    other.close()
    os.close(reading)
    os.close(writing)


def test_a_store_whose_lock_file_cannot_be_made_works_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite's own lock still decides. The log says so once."""
    lock = WritersLock(tmp_path / "nowhere" / "work.db")
    for _ in range(3):
        lock.acquire()
        lock.release()
    assert 1 == len(caplog.records)
    assert "do not queue at lock file" in caplog.text
    lock.close()


def test_a_system_without_such_locks_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows, that is."""
    monkeypatch.setattr(lock_module, "FLOCK", False)
    monkeypatch.delattr(fcntl, "flock")
    lock = WritersLock(tmp_path / "work.db")
    lock.acquire()
    lock.release()
    lock.close()
    assert [] == list(tmp_path.iterdir())
