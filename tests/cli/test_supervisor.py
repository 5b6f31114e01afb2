"""`millpond worker --processes` and `--reload` in real processes: starts, restarts, drains."""

import os
import re
import resource
import signal
import time
from pathlib import Path

import pytest
from tests.cli.running import PATIENCE, Running, running
from tests.waiting import until

from millpond.cli.exits import Exit
from millpond.cli.signals import ECHO
from millpond.cli.supervise.file_watcher import FileWatcher
from millpond.cli.supervise.restarts import FIRST_DELAY, LONGEST_DELAY, STEADY_AFTER, Restarts

TERM, KILL = signal.SIGTERM, signal.SIGKILL


def pids_after_start(worker: Running, count: int) -> list[int]:
    """The processes that serve, once so many do."""
    found: list[int] = []
    while len(found) < count:
        found.append(int(worker.until("serving").rpartition("(pid ")[2].rstrip(")")))
    return found


def is_alive(pid: int) -> bool:
    """Whether there is such a process, other than one that only waits to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def after_the_echo() -> None:
    """Let so much time go by that the next signal is not taken for an echo of the last."""
    time.sleep(ECHO + 0.05)  # the supervisor measures this time itself


def test_a_signal_drains_every_process() -> None:
    """Each finishes what it runs; the exit code is 0 and no process is left."""
    with running("shop:mp", "--processes", "3", SHOP_WORK="brief") as worker:
        pids = pids_after_start(worker, 3)
        assert 3 == len({*pids})
        worker.until("brief begun")
        worker.signal(TERM)
        assert Exit.CLEAN == worker.ended()
        assert 3 == worker.output.count("stopped: 1 completed, 0 failed, 0 given back")
        assert not any(is_alive(pid) for pid in pids)


def test_a_killed_process_is_started_again() -> None:
    """The others go on, and the log names the signal and the delay."""
    with running("shop:mp", "--processes", "2") as worker:
        first, second = pids_after_start(worker, 2)
        os.kill(second, KILL)
        said = worker.until("ended with SIGKILL")
        assert f"process 2 (pid {second})" in said
        assert re.search(r"starting it again in (0|0\.5) s", said)
        (third,) = pids_after_start(worker, 1)
        assert is_alive(first)
        worker.signal(TERM)
        assert Exit.CLEAN == worker.ended()
        assert not is_alive(third)


def test_a_second_signal_is_passed_on() -> None:
    """Running tasks are given back at once, and the exit code says so."""
    with running("shop:mp", "--processes", "2", "--grace", "3600", SHOP_WORK="endless") as worker:
        pids_after_start(worker, 2)
        worker.signal(TERM)
        worker.until("SIGTERM: draining")
        worker.until("SIGTERM: draining")
        after_the_echo()
        worker.signal(TERM)
        assert Exit.FORCED == worker.ended()
        assert 2 == worker.output.count("left endless queued 0 1")


def test_a_third_signal_kills_every_process() -> None:
    """Also those whose loop is blocked."""
    with running("shop:mp", "--processes", "2", SHOP_WORK="blocking") as worker:
        worker.until("blocking begun")
        for _ in range(3):
            worker.signal(TERM)
            after_the_echo()
        assert Exit.LOST == worker.ended()


def test_processes_drain_if_their_parent_is_killed() -> None:
    """Nothing goes on unsupervised beside the next fleet."""
    with running("shop:mp", "--processes", "2") as worker:
        pids = pids_after_start(worker, 2)
        worker.signal(KILL)
        worker.until("the parent process is gone: draining")
        worker.process.wait(timeout=PATIENCE)
        until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_process_that_cannot_be_started_leaves_the_others_alone() -> None:
    """Without file descriptors the supervisor tries again later, and all go on."""
    with running("shop:mp", "--processes", "2") as worker:
        first, second = pids_after_start(worker, 2)
        usual = resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
        os.kill(second, KILL)
        worker.until("could not start process 2: [Errno 24]")
        assert is_alive(first)
        resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE, usual)
        pids_after_start(worker, 1)
        worker.signal(TERM)
        assert Exit.CLEAN == worker.ended()


@pytest.mark.parametrize(
    ("app", "code", "complaint"),
    [
        ("trouble:memory", Exit.APP, "trouble:memory keeps its pools in memory"),
        ("nowhere:mp", Exit.APP, "no module named 'nowhere'"),
    ],
)
def test_an_application_that_cannot_be_served_is_refused_once(
    app: str, code: Exit, complaint: str
) -> None:
    """Not once for each process, and not again and again."""
    with running(app, "--processes", "4") as worker:
        assert code == worker.ended()
        assert 1 == worker.output.count(complaint)


def test_a_store_that_cannot_be_opened_is_tried_again() -> None:
    """With growing delays."""
    with running("trouble:closed", "--processes", "2") as worker:
        worker.until("ended with exit code 4; starting it again in 0.5 s")
        worker.until("ended with exit code 4; starting it again in 1 s")
        worker.signal(TERM)
        assert Exit.CLEAN == worker.ended()


def test_once_ends_when_every_process_is_idle() -> None:
    """All that is due is done."""
    with running("shop:mp", "--processes", "2", "--once", SHOP_WORK="quick") as worker:
        assert Exit.CLEAN == worker.ended()
        assert 2 == worker.output.count("idle: no task is left")


# Reload


APP = """\
import time

from millpond import Millpond
from millpond.pool.internals import internals_of
from millpond.store.memory import MemoryStore

mp = Millpond()
internals_of(mp).owner.make_store = lambda: MemoryStore(clock=time.time)
mp.pool("{name}", max_concurrent=2)
"""


def write(path: Path, text: str) -> None:
    """Replace a file as an editor does, with another time than before."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)


def test_a_changed_file_reloads_the_application(tmp_path: Path) -> None:
    """The next process runs the new code; code that cannot be loaded waits for the next change."""
    code = tmp_path / "app.py"
    write(code, APP.format(name="first"))
    with running("app:mp", "--reload", cwd=tmp_path) as worker:
        worker.until("serving first of app:mp")
        write(code, APP.format(name="second"))
        worker.until("app.py changed: reloading")
        worker.until("serving second of app:mp")
        write(code, "def is not a name")
        worker.until("SyntaxError")
        worker.until("the application cannot be loaded; waiting for a changed file")
        write(code, APP.format(name="third"))
        worker.until("serving third of app:mp")
        worker.signal(signal.SIGINT)
        assert Exit.CLEAN == worker.ended()


def test_a_reload_does_not_wait_for_endless_work(tmp_path: Path) -> None:
    """A task that runs has a second; then it is given back."""
    watched = tmp_path / "settings.toml"
    write(watched, "a = 1")
    with running(
        "shop:mp", "--reload", "--reload-dir", str(tmp_path), SHOP_WORK="endless"
    ) as worker:
        worker.until("endless begun")
        write(watched, "a = 23")
        worker.until("settings.toml changed: reloading")
        worker.until("left endless queued 0 1")
        worker.until("endless begun")


PATIENT = """\
import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path

from millpond import Millpond
from millpond.pool.internals import internals_of
from millpond.store.memory import MemoryStore


@asynccontextmanager
async def work():
    await keep.submit()
    yield


mp = Millpond(resources=work)
internals_of(mp).owner.make_store = lambda: MemoryStore(clock=time.time)


@mp.pool("jobs").task
async def keep():
    print("begun", flush=True)
    while not Path("finish").exists():
        await asyncio.sleep(0.01)
    print("kept", flush=True)
"""


def test_a_signal_during_a_reload_is_the_first_one(tmp_path: Path) -> None:
    """What runs keeps its grace period: the signal of the reload was not one of the user's."""
    code = tmp_path / "app.py"
    write(code, PATIENT)
    with running("app:mp", "--reload", "--grace", "3600", cwd=tmp_path) as worker:
        worker.until("begun")
        write(code, f"{PATIENT}# changed\n")
        worker.until("SIGTERM: draining")
        after_the_echo()
        worker.signal(TERM)
        worker.until("SIGTERM: stopping 1 processes")
        after_the_echo()
        (tmp_path / "finish").touch()
        worker.until("kept")
        assert Exit.CLEAN == worker.ended()


def test_only_the_code_of_the_application_is_watched(tmp_path: Path) -> None:
    """Not caches, hidden folders, virtual environments or data."""
    for name in (".git", "__pycache__", "venv", "app"):
        (tmp_path / name).mkdir()
    (tmp_path / "venv/pyvenv.cfg").touch()
    watcher = FileWatcher([tmp_path])
    for name in (".git/hook.py", "__pycache__/app.py", "venv/lib.py", "app/work.db"):
        (tmp_path / name).write_text("new", "utf-8")
    assert [] == watcher.changed()
    code = tmp_path / "app/mail.py"
    code.write_text("one", "utf-8")
    assert [code] == watcher.changed()
    assert [] == watcher.changed()
    code.write_text("other", "utf-8")
    assert [code] == watcher.changed()
    code.unlink()
    assert [code] == watcher.changed()


# Delays


def test_delays_grow_while_processes_end_early() -> None:
    """To a bound, and one that lived long is replaced at once."""
    restarts = Restarts()
    delays = [restarts.delay_after(0.1) for _ in range(100)]
    assert [FIRST_DELAY, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_DELAY] == delays[:7]
    assert LONGEST_DELAY == max(delays)
    assert 0.0 == restarts.delay_after(STEADY_AFTER)
    assert FIRST_DELAY == restarts.delay_after(0.1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--processes", "0"],
        ["--processes", "1000"],
        ["--reload-dir", "."],
        ["--reload", "--once"],
        ["--reload", "--reload-dir", "nowhere"],
        ["--health-port", "here"],
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    """Before any process is started."""
    with running("shop:mp", *arguments) as worker:
        assert Exit.USAGE == worker.ended()
        assert "started process" not in worker.output
