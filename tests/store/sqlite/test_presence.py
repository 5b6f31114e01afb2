"""Presence: other processes find a killed worker at once, and take no living one for gone."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from tests.store.sqlite.counting import table

from millpond.store.sqlite.presence import Presence

APPEARING = """
import sys
from pathlib import Path
from millpond.store.sqlite.presence import Presence
presence = Presence(Path(sys.argv[1]))
presence.appear(sys.argv[2])
print("here", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Process:
    """Another process that is there under a name."""

    def __init__(self, path: Path, owner: str) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", APPEARING, str(path), owner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert "here\n" == self._stdout.readline()

    @property
    def _stdout(self) -> IO[str]:
        assert self._popen.stdout is not None
        return self._popen.stdout

    def does(self, line: str) -> None:
        """Have it do something."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{line}\n")
        self._popen.stdin.flush()
        assert "done\n" == self._stdout.readline()

    def sent(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._popen.send_signal(number)

    def killed(self) -> None:
        """It is no more when this returns."""
        self._popen.kill()
        self._popen.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database."""
    return table(tmp_path / "work.db")


@pytest.fixture
def starting(path: Path) -> Iterator[Callable[[str], Process]]:
    """Starts processes and sees to their end."""
    started: list[Process] = []

    def start(owner: str) -> Process:
        started.append(Process(path, owner))
        return started[-1]

    yield start
    for process in started:
        process.killed()


Starting = Callable[[str], Process]


def test_a_killed_process_is_gone_at_once(path: Path, starting: Starting) -> None:
    """And not before; a frozen one is not gone."""
    presence = Presence(path)
    assert () == presence.gone()
    first, second = starting("host-1-aa"), starting("host-2-bb")
    assert () == presence.gone()
    second.sent(signal.SIGSTOP)
    assert () == presence.gone()
    first.killed()
    assert ("host-1-aa",) == presence.gone()
    second.killed()
    assert ("host-1-aa", "host-2-bb") == presence.gone()


def test_a_dead_process_can_be_forgotten(path: Path, starting: Starting) -> None:
    """Once; none of its files stays in the folder."""
    presence = Presence(path)
    starting("lost").killed()
    presence.forget("lost")
    presence.forget("lost")
    assert () == presence.gone()
    assert [] == list(path.with_name("work.db-alive").iterdir())


def test_a_living_process_cannot_be_forgotten(path: Path, starting: Starting) -> None:
    """A mistake does not make it invisible."""
    presence = Presence(path)
    process = starting("alive")
    presence.forget("alive")
    process.killed()
    assert ("alive",) == presence.gone()


def test_a_process_that_left_is_not_gone(path: Path, starting: Starting) -> None:
    """It deregistered, and gave back its tasks."""
    presence = Presence(path)
    process = starting("polite")
    process.does("presence.leave('polite'); presence.leave('polite')")
    assert () == presence.gone()
    process.killed()
    assert () == presence.gone()


def test_a_process_never_calls_itself_gone(path: Path) -> None:
    """Nor another store of the same process, nor by another path to the same file."""
    presence, other = Presence(path), Presence(path)
    presence.appear("one")
    presence.appear("one")
    other.appear("two")
    link = path.parent / "link"
    link.symlink_to(path.parent)
    for looking in (presence, other, Presence(link / path.name)):
        assert () == looking.gone()
        looking.forget("one")
        looking.forget("two")
    presence.leave("one")
    other.leave("two")
    assert [] == list(path.with_name("work.db-alive").iterdir())


def test_a_copy_made_in_the_process_does_not_cost_the_lock(path: Path, starting: Starting) -> None:
    """Opening and closing a file would cost locks of the other kind."""
    process = starting("copied")
    process.does(f"import shutil; shutil.copytree('{path.parent}', '{path.parent}/copy')")
    assert () == Presence(path).gone()
    shutil.rmtree(path.parent / "copy")


def test_a_forked_child_does_not_keep_its_parent_alive(path: Path, starting: Starting) -> None:
    """The parent dies, the child goes on, and the parent is gone."""
    process = starting("parent")
    process.does(
        "import os, signal; read, write = os.pipe(); child = os.fork();"
        "child or (os.closerange(0, 2), os.write(write, b'x'), signal.pause()); os.read(read, 1);"
        f"Path('{path.parent}/child').write_text(str(child))"
    )
    child = int((path.parent / "child").read_text())
    assert () == Presence(path).gone()
    process.killed()
    os.kill(child, 0)  # it lives
    assert ("parent",) == Presence(path).gone()
    os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_end_its_parents_presence(path: Path, starting: Starting) -> None:
    """The child ends, the parent lives."""
    process = starting("parent")
    process.does("import os; child = os.fork(); child or os._exit(0); os.waitpid(child, 0)")
    assert () == Presence(path).gone()


def test_a_process_that_leaves_during_the_check_is_not_dead(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file was open already, and then it was free."""
    presence = Presence(path)
    presence.appear("one")
    flock = fcntl.flock

    def leaving_first(descriptor: int, how: int) -> None:
        presence.leave("one")
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", leaving_first)
    assert () == Presence(path).gone()


def test_any_name_will_do(path: Path, starting: Starting) -> None:
    """Names of hosts and of owners are not names of files."""
    name = "../mühle/1 %2F.lock"
    starting(name).killed()
    presence = Presence(path)
    assert (name,) == presence.gone()
    presence.forget(name)
    assert () == presence.gone()


def test_a_process_is_not_dead_while_it_appears(path: Path) -> None:
    """Its file is locked before it has its name."""
    presence, looking = Presence(path), Presence(path)
    over = threading.Event()
    seen: list[str] = []

    def look() -> None:
        while not over.is_set():
            seen.extend(looking.gone())

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(300):
        presence.appear(f"owner-{number}")
        presence.leave(f"owner-{number}")
    over.set()
    thread.join()
    assert [] == seen


def test_files_of_a_process_that_died_while_appearing_are_cleared_later(path: Path) -> None:
    """Not at once: it might belong to a process that is just appearing."""
    presence = Presence(path)
    presence.appear("one")
    folder = path.with_name("work.db-alive")
    young, old = folder / "+young.lock", folder / "+old.lock"
    young.touch()
    old.touch()
    hour_ago = time.time() - 3600
    os.utime(old, (hour_ago, hour_ago))
    presence.appear("two")
    assert young.exists()
    assert not old.exists()
    assert () == presence.gone()
    presence.leave("one")
    presence.leave("two")


def test_a_store_without_lock_files_relies_on_leases(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so once; leases do the rest."""
    presence = Presence(tmp_path / "nowhere" / "work.db")
    presence.appear("one")
    assert () == presence.gone()
    presence.leave("one")
    assert "no lock file for one" in caplog.text


@pytest.mark.parametrize(("rights", "folder"), [(0o644, 0o700), (0o664, 0o770), (0o666, 0o777)])
def test_files_beside_a_database_have_its_mode(path: Path, rights: int, folder: int) -> None:
    """Neither more nor fewer than the database itself allows, whatever the umask."""
    path.chmod(rights)
    presence = Presence(path)
    before = os.umask(0o077)
    try:
        presence.appear("one")
    finally:
        os.umask(before)
    made = path.with_name("work.db-alive")
    (file,) = made.iterdir()
    assert folder == made.stat().st_mode & 0o777
    assert folder & 0o666 == file.stat().st_mode & 0o777
    presence.leave("one")
