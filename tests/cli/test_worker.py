"""`millpond worker` in real processes: how it begins, drains, stops and leaves."""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.cli.running import PATIENCE, Running, running
from tests.waiting import until

from millpond.cli.exits import Exit
from millpond.cli.signals import ECHO

TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP


def left_by(worker: Running) -> list[str]:
    """What the application found unsettled in the end."""
    return [line for line in worker.lines if line.startswith("left ")]


def after_the_echo() -> None:
    """Let so much time go by that the next signal is not taken for an echo of the last."""
    time.sleep(ECHO + 0.05)  # the worker measures this time itself


@pytest.mark.parametrize("number", [TERM, INT, HUP])
def test_the_first_signal_lets_what_runs_end(number: signal.Signals) -> None:
    """What had begun is completed, what had not is left uncharged, and the exit code is 0."""
    with running("shop:mp", "--concurrency", "1", SHOP_WORK="brief brief") as worker:
        worker.until("serving jobs, other, paced of shop:mp from a store of its own, at most 1 at")
        worker.until("brief begun")
        worker.signal(number)
        worker.until(f"{number.name}: draining, with 1 running and up to 30 s for that")
        worker.until("brief done")
        worker.until("stopped: 1 completed, 0 failed, 0 given back")
        worker.until("left brief queued 0 0")
        assert Exit.CLEAN == worker.ended()


def test_what_does_not_end_in_time_is_given_back_uncharged() -> None:
    """The grace period is over: it is interrupted, and queued as if it had never begun."""
    with running("shop:mp", "--grace", "0.2", SHOP_WORK="endless") as worker:
        worker.until("endless begun")
        worker.signal(TERM)
        worker.until("endless interrupted")
        worker.until("stopped: 0 completed, 0 failed, 1 given back")
        worker.until("left endless queued 0 1")
        assert Exit.CLEAN == worker.ended()


def test_a_second_signal_ends_the_grace_period() -> None:
    """What runs is interrupted and given back at once; the exit code tells."""
    with running("shop:mp", "--grace", "3600", SHOP_WORK="endless") as worker:
        worker.until("endless begun")
        worker.signal(TERM)
        worker.until("SIGTERM: draining")
        after_the_echo()
        worker.signal(TERM)
        worker.until("second signal: no more waiting, with 1 running")
        worker.until("endless interrupted")
        worker.until("left endless queued 0 1")
        assert Exit.FORCED == worker.ended()


def test_signals_of_one_moment_are_one() -> None:
    """Whoever started it may pass on the Ctrl-C that it has had itself."""
    with running("shop:mp", SHOP_WORK="brief") as worker:
        worker.until("brief begun")
        worker.signal(INT)
        worker.signal(TERM)
        worker.until("brief done")
        assert Exit.CLEAN == worker.ended()


def test_a_third_signal_is_not_waited_for() -> None:
    """Not even the loop has to be free for it."""
    with running("shop:mp", SHOP_WORK="blocking") as worker:
        worker.until("blocking begun")
        for _ in range(3):
            worker.signal(TERM)
            after_the_echo()
        assert Exit.LOST == worker.ended()
        assert "SIGTERM, for the third time: it leaves as it is (exit code 6)" in worker.told


def test_a_second_signal_is_heeded_though_a_handler_does_not_stop() -> None:
    """It is settled without its handler."""
    with running("hasty:mp", SHOP_WORK="stubborn") as worker:
        worker.until("stubborn begun")
        worker.signal(TERM)
        worker.until("SIGTERM: draining")
        after_the_echo()
        worker.signal(TERM)
        worker.until("does not stop: the task is settled without it")
        worker.until("left stubborn queued 0 1")
        worker.until("a handler does not end; it leaves all the same")
        assert Exit.FORCED == worker.ended()


def test_a_thread_that_does_not_end_keeps_nobody() -> None:
    """Its task is given back, and the process leaves without it."""
    with running("shop:mp", "--grace", "0", SHOP_WORK="threaded") as worker:
        worker.until("threaded begun")
        worker.signal(TERM)
        worker.until("left threaded queued 0 1")
        assert Exit.CLEAN == worker.ended()


def test_a_thread_of_the_loop_that_does_not_end_keeps_it_for_a_while_only() -> None:
    """asyncio and the interpreter would wait for it for ever."""
    with running("hasty:mp", "--grace", "0", SHOP_WORK="elsewhere") as worker:
        worker.until("elsewhere begun")
        worker.signal(TERM)
        worker.until("left elsewhere queued 0 1")
        worker.until("threads asyncio_0 does not end; it leaves all the same")
        assert Exit.CLEAN == worker.ended()


@pytest.mark.parametrize("number", [TERM, signal.SIGKILL])
def test_processes_of_handlers_end_with_it(number: signal.Signals) -> None:
    """Whether it was asked to leave or shot."""
    with running("shop:mp", "--grace", "0", SHOP_WORK="apart") as worker:
        child = int(worker.until("apart ").split()[1])
        worker.signal(number)
        worker.process.wait(timeout=PATIENCE)
        until(lambda: not is_alive(child))


def is_alive(pid: int) -> bool:
    """Whether there is such a process, other than one that only waits to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_nobody_has_to_listen() -> None:
    """A terminal that is gone takes no lines any more; it drains and leaves all the same."""
    with running("shop:mp") as worker:
        worker.until("serving")
        assert worker.process.stdout is not None
        os.dup2(os.open(os.devnull, os.O_RDONLY), worker.process.stdout.fileno())
        worker.signal(HUP)
        assert Exit.CLEAN == worker.process.wait(timeout=PATIENCE)


def test_signals_that_are_ignored_stay_ignored() -> None:
    """As under nohup."""
    with running("unheeding:mp", SHOP_WORK="brief") as worker:
        worker.until("brief begun")
        worker.signal(HUP)
        worker.until("brief done")
        worker.signal(TERM)
        worker.until("SIGTERM: draining")
        assert Exit.CLEAN == worker.ended()
        assert "SIGHUP" not in worker.told


# Until idle


def test_once_means_until_idle() -> None:
    """All that is due is done, in all pools, what comes of it too, and what waits for a rate."""
    work = "quick parent broken again slowly slowly"
    with running("shop:mp", "--once", SHOP_WORK=work) as worker:
        assert Exit.CLEAN == worker.ended()
        assert "quick done" in worker.lines
        assert "child done" in worker.lines
        assert 2 == worker.lines.count("slowly done")
        assert "idle: nothing is left that could start" in worker.told
        counts = "stopped: 5 completed, 1 failed, 1 to be tried again, 0 given back"
        assert counts in worker.told
        assert ["left again queued 1 1"] == left_by(worker)


def test_once_with_nothing_to_do() -> None:
    """It leaves as it came."""
    with running("shop:mp", "--once") as worker:
        assert Exit.CLEAN == worker.ended()
        assert "stopped: 0 completed, 0 failed, 0 given back" in worker.told


def test_only_the_pools_that_were_named_are_served() -> None:
    """What others wait for is left to others, and does not keep it."""
    with running("shop:mp", "--once", "--pools", "other, paced", SHOP_WORK="quick child") as worker:
        assert Exit.CLEAN == worker.ended()
        assert "serving other, paced of shop:mp" in worker.told
        assert "child done" in worker.lines
        assert ["left quick queued 0 0"] == left_by(worker)


def test_a_signal_ends_it_before_it_is_idle() -> None:
    """As ever."""
    with running("shop:mp", "--once", "--grace", "0", SHOP_WORK="endless") as worker:
        worker.until("endless begun")
        worker.signal(TERM)
        worker.until("left endless queued 0 1")
        assert Exit.CLEAN == worker.ended()
        assert "idle: " not in worker.told


# What it says


def test_nothing_of_a_message_is_obeyed_by_the_terminal() -> None:
    """A handler may raise what it likes."""
    with running("shop:mp", "--once", SHOP_WORK="broken") as worker:
        assert Exit.CLEAN == worker.ended()
        assert "ValueError: no \\x1b[31mcolours\\x1b[0m" in worker.told
        assert "\x1b" not in worker.told


def test_it_says_as_much_as_it_is_asked_to() -> None:
    """Its own lines are of level info."""
    with running("shop:mp", "--once", "--log-level", "WARNING", SHOP_WORK="quick") as worker:
        assert Exit.CLEAN == worker.ended()
        assert ["threads 1", "quick done"] == worker.lines


def test_an_application_may_have_logs_of_its_own() -> None:
    """Then they are left as they are."""
    with running("trouble:logging_its_own_way", "--once") as worker:
        assert Exit.CLEAN == worker.ended()
        assert worker.lines[-1] == "OWN stopped: 0 completed, 0 failed, 0 given back"
        assert "trouble:logging_its_own_way has no tasks" in worker.told


# What it cannot do


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["trouble:memory"], Exit.APP, "trouble:memory keeps its pools in memory"),
        (["trouble:empty"], Exit.APP, "trouble:empty declares no pools"),
        (["trouble:nothing"], Exit.APP, "module trouble has no 'nothing'"),
        (["nowhere:mp"], Exit.APP, "no module named 'nowhere'"),
        (
            ["shop:mp", "--pools", "jobs,mail"],
            Exit.USAGE,
            "--pools: no pool named 'mail' (there are: jobs, other, paced)",
        ),
        (
            ["shop:mp", "--store", "mysql://me:secret@host/db"],
            Exit.USAGE,
            "--store: MILL-0",
        ),
        (
            ["trouble:closed"],
            Exit.STORE,
            "MILL-020 cannot open work\\x1b.db: the disk is full; make room and start again",
        ),
    ],
)
def test_what_it_cannot_serve_is_told_in_a_line(
    arguments: list[str], code: Exit, complaint: str
) -> None:
    """No traceback, and an exit code for each kind."""
    with running(*arguments) as worker:
        assert code == worker.ended()
        assert 1 == len(worker.lines)
        assert worker.told.startswith(f"millpond worker: {complaint}")
        assert "secret" not in worker.told


def test_resources_that_fail_are_shown_with_their_traceback() -> None:
    """They are the user's code."""
    with running("trouble:poor") as worker:
        assert Exit.BROKE == worker.ended()
        assert "in no_resources" in worker.told
        told = "millpond worker: the worker could not start: KeyError: 'NO_SUCH_SETTING'"
        assert told == worker.lines[-1]


# What goes wrong later


@pytest.fixture
def store_is(tmp_path: Path) -> Path:
    """The file that says how the store is."""
    path = tmp_path / "state"
    path.write_text("there", "utf-8")
    return path


def test_a_store_that_goes_away_is_waited_for(store_is: Path) -> None:
    """It does not leave, says so once, and goes on when the store is back."""
    with running("trouble:flaky", "--grace", "0", STORE_IS=str(store_is)) as worker:
        worker.until("job begun")
        store_is.write_text("away", "utf-8")
        worker.until("the store is away")
        store_is.write_text("back", "utf-8")
        worker.until("back again")
        worker.signal(TERM)
        assert Exit.CLEAN == worker.ended()


def test_what_the_store_could_not_be_told_is_an_exit_code(store_is: Path) -> None:
    """The task is not lost: its lease will tell. But somebody should look."""
    with running("trouble:flaky", "--grace", "0", STORE_IS=str(store_is)) as worker:
        worker.until("job begun")
        store_is.write_text("away", "utf-8")
        worker.signal(TERM)
        worker.until("stopped: 0 completed, 0 failed, 0 given back, 1 of which the store could")
        assert Exit.LOST == worker.ended()
        assert "closing failed: the store is away" in worker.told


def test_a_second_signal_does_not_wait_for_a_store_that_is_silent(store_is: Path) -> None:
    """It has some seconds to give back what it holds, and leaves anyway."""
    with running("trouble:flaky", "--grace", "0", STORE_IS=str(store_is)) as worker:
        worker.until("job begun")
        store_is.write_text("silent", "utf-8")
        worker.signal(TERM)
        worker.until("SIGTERM: draining")
        after_the_echo()
        worker.signal(TERM)
        worker.until("what it holds could not be given back in time (exit code 6)")
        assert Exit.LOST == worker.ended()


def test_a_worker_that_died_is_not_left_standing() -> None:
    """Whoever watches the process starts it again."""
    with running("trouble:faulty") as worker:
        assert Exit.BROKE == worker.ended()
        assert "millpond worker: the worker's loop ended by itself" in worker.lines[-1]
