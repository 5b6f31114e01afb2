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
def test_the_first_signal_lets_running_work_end(number: signal.Signals) -> None:
    """What had begun is completed, what had not is left uncharged, and the exit code is 0."""
    with running("shop:mp", "--concurrency", "1", SHOP_WORK="brief brief") as worker:
        worker.until("serving jobs, other, paced of shop:mp from a store of its own, at most 1 at")
        worker.until("brief begun")
        worker.signal(number)
        worker.until(f"{number.name}: draining, 1 running, 30 s to end")
        worker.until("brief done")
        worker.until("stopped: 1 completed, 0 failed, 0 given back")
        worker.until("left brief queued 0 0")
        assert Exit.CLEAN == worker.ended()


def test_the_last_line_counts_no_firings(tmp_path: Path) -> None:
    """A schedule that fired once is one completed task, not two."""
    with running("ticking:mp", PLACE=str(tmp_path)) as worker:
        worker.until("ticked")
        worker.signal(TERM)
        worker.until("stopped: 1 completed, 0 failed, 0 given back")
        assert Exit.CLEAN == worker.ended()


def test_tasks_that_outlast_the_grace_period_are_given_back_uncharged() -> None:
    """The grace period is over: it is interrupted, and queued as if it had never begun."""
    with running("shop:mp", "--grace", "0.2", SHOP_WORK="endless") as worker:
        worker.until("endless begun")
        worker.signal(TERM)
        worker.until("endless interrupted")
        worker.until("stopped: 0 completed, 0 failed, 1 given back")
        worker.until("left endless queued 0 1")
        assert Exit.CLEAN == worker.ended()


def test_a_second_signal_ends_the_grace_period() -> None:
    """Running tasks are interrupted and given back at once; the exit code says so."""
    with running("shop:mp", "--grace", "3600", SHOP_WORK="endless") as worker:
        worker.until("endless begun")
        worker.signal(TERM)
        worker.until("SIGTERM: draining")
        after_the_echo()
        worker.signal(TERM)
        worker.until("second signal: stopping now, 1 running")
        worker.until("endless interrupted")
        worker.until("left endless queued 0 1")
        assert Exit.FORCED == worker.ended()


def test_a_forwarded_ctrl_c_counts_once() -> None:
    """The parent process may forward the Ctrl-C that the worker has received itself."""
    with running("shop:mp", SHOP_WORK="brief") as worker:
        worker.until("brief begun")
        worker.signal(INT)
        worker.signal(TERM)
        worker.until("brief done")
        assert Exit.CLEAN == worker.ended()


def test_a_third_signal_ends_the_worker_process_at_once() -> None:
    """Not even the loop has to be free for it."""
    with running("shop:mp", SHOP_WORK="blocking") as worker:
        worker.until("blocking begun")
        for _ in range(3):
            worker.signal(TERM)
            after_the_echo()
        assert Exit.LOST == worker.ended()
        assert "SIGTERM, the third signal: exiting at once (exit code 6)" in worker.output


def test_a_second_signal_works_while_a_handler_does_not_stop() -> None:
    """It is settled without its handler."""
    with running("hasty:mp", SHOP_WORK="stubborn") as worker:
        worker.until("stubborn begun")
        worker.signal(TERM)
        worker.until("SIGTERM: draining")
        after_the_echo()
        worker.signal(TERM)
        worker.until("does not stop: the task is settled without it")
        worker.until("left stubborn queued 0 1")
        worker.until("a handler did not end; exiting anyway")
        assert Exit.FORCED == worker.ended()


def test_a_thread_that_does_not_end_does_not_delay_the_exit() -> None:
    """Its task is given back, and the process leaves without it."""
    with running("shop:mp", "--grace", "0", SHOP_WORK="threaded") as worker:
        worker.until("threaded begun")
        worker.signal(TERM)
        worker.until("left threaded queued 0 1")
        assert Exit.CLEAN == worker.ended()


def test_a_thread_of_the_loop_delays_the_exit_only_for_a_while() -> None:
    """asyncio and the interpreter would wait for it for ever."""
    with running("hasty:mp", "--grace", "0", SHOP_WORK="elsewhere") as worker:
        worker.until("elsewhere begun")
        worker.signal(TERM)
        worker.until("left elsewhere queued 0 1")
        worker.until("threads asyncio_0 did not end; exiting anyway")
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


def test_a_worker_drains_after_its_terminal_is_closed() -> None:
    """It drains and exits, although its log lines cannot be written."""
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
        assert "SIGHUP" not in worker.output


# Until idle


def test_once_ends_the_worker_when_idle() -> None:
    """All that is due is done, in all pools, what comes of it too, and what waits for a rate."""
    work = "quick parent broken again slowly slowly"
    with running("shop:mp", "--once", SHOP_WORK=work) as worker:
        assert Exit.CLEAN == worker.ended()
        assert "quick done" in worker.lines
        assert "child done" in worker.lines
        assert 2 == worker.lines.count("slowly done")
        assert "idle: no task is left that could start" in worker.output
        counts = "stopped: 5 completed, 1 failed, 1 to be tried again, 0 given back"
        assert counts in worker.output
        assert ["left again queued 1 1"] == left_by(worker)


def test_once_ends_at_once_without_tasks() -> None:
    """It leaves as it came."""
    with running("shop:mp", "--once") as worker:
        assert Exit.CLEAN == worker.ended()
        assert "stopped: 0 completed, 0 failed, 0 given back" in worker.output


def test_only_the_pools_that_were_named_are_served() -> None:
    """What others wait for is left to others, and does not keep it."""
    with running("shop:mp", "--once", "--pools", "other, paced", SHOP_WORK="quick child") as worker:
        assert Exit.CLEAN == worker.ended()
        assert "serving other, paced of shop:mp" in worker.output
        assert "child done" in worker.lines
        assert ["left quick queued 0 0"] == left_by(worker)


def test_a_signal_ends_it_before_it_is_idle() -> None:
    """Also with --once."""
    with running("shop:mp", "--once", "--grace", "0", SHOP_WORK="endless") as worker:
        worker.until("endless begun")
        worker.signal(TERM)
        worker.until("left endless queued 0 1")
        assert Exit.CLEAN == worker.ended()
        assert "idle: " not in worker.output


# What it says


def test_control_characters_in_messages_are_escaped() -> None:
    """A handler may raise what it likes."""
    with running("shop:mp", "--once", SHOP_WORK="broken") as worker:
        assert Exit.CLEAN == worker.ended()
        assert "ValueError: no \\x1b[31mcolours\\x1b[0m" in worker.output
        assert "\x1b" not in worker.output


def test_the_log_level_option_sets_the_level() -> None:
    """Its own lines are of level info."""
    with running("shop:mp", "--once", "--log-level", "WARNING", SHOP_WORK="quick") as worker:
        assert Exit.CLEAN == worker.ended()
        assert ["threads 1", "quick done"] == worker.lines


def test_an_application_keeps_its_own_log_setup() -> None:
    """Then they are left as they are."""
    with running("trouble:logging_its_own_way", "--once") as worker:
        assert Exit.CLEAN == worker.ended()
        assert worker.lines[-1] == "OWN stopped: 0 completed, 0 failed, 0 given back"
        assert "trouble:logging_its_own_way has no tasks" in worker.output


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
def test_an_application_it_cannot_serve_is_refused_in_one_line(
    arguments: list[str], code: Exit, complaint: str
) -> None:
    """No traceback, and an exit code for each kind."""
    with running(*arguments) as worker:
        assert code == worker.ended()
        assert 1 == len(worker.lines)
        assert worker.output.startswith(f"millpond worker: {complaint}")
        assert "secret" not in worker.output


def test_resources_that_fail_are_shown_with_their_traceback() -> None:
    """They are the user's code."""
    with running("trouble:poor") as worker:
        assert Exit.BROKE == worker.ended()
        assert "in no_resources" in worker.output
        output = "millpond worker: the worker could not start: KeyError: 'NO_SUCH_SETTING'"
        assert output == worker.lines[-1]


# What goes wrong later


@pytest.fixture
def store_is(tmp_path: Path) -> Path:
    """The file that says how the store is."""
    path = tmp_path / "state"
    path.write_text("there", "utf-8")
    return path


def test_a_worker_waits_for_an_unreachable_store(store_is: Path) -> None:
    """It does not leave, says so once, and goes on when the store is back."""
    with running("trouble:flaky", "--grace", "0", STORE_IS=str(store_is)) as worker:
        worker.until("job begun")
        store_is.write_text("away", "utf-8")
        worker.until("the store is away")
        store_is.write_text("back", "utf-8")
        worker.until("back again")
        worker.signal(TERM)
        assert Exit.CLEAN == worker.ended()


def test_results_that_could_not_be_stored_set_the_exit_code(store_is: Path) -> None:
    """The task is not lost: it runs again when its lease expires."""
    with running("trouble:flaky", "--grace", "0", STORE_IS=str(store_is)) as worker:
        worker.until("job begun")
        store_is.write_text("away", "utf-8")
        worker.signal(TERM)
        worker.until("stopped: 0 completed, 0 failed, 0 given back; the results of 1 could")
        assert Exit.LOST == worker.ended()
        assert "closing failed: the store is away" in worker.output


def test_a_second_signal_does_not_wait_for_a_store_that_hangs(store_is: Path) -> None:
    """It has some seconds to give back what it holds, and leaves anyway."""
    with running("trouble:flaky", "--grace", "0", STORE_IS=str(store_is)) as worker:
        worker.until("job begun")
        store_is.write_text("silent", "utf-8")
        worker.signal(TERM)
        worker.until("SIGTERM: draining")
        after_the_echo()
        worker.signal(TERM)
        worker.until("tasks could not be given back in time (exit code 6)")
        assert Exit.LOST == worker.ended()


def test_a_dead_worker_ends_the_process_with_an_error() -> None:
    """A supervisor can then start it again."""
    with running("trouble:faulty") as worker:
        assert Exit.BROKE == worker.ended()
        assert "millpond worker: the worker's loop ended unexpectedly" in worker.lines[-1]
