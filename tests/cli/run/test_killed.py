"""`millpond run` in a process that is killed, interrupted, or loses its output pipe."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.cli.run.running import PATIENCE, is_at_work, lines, started
from tests.waiting import until

from millpond.cli.run.exits import RunExit
from millpond.core.control import Purge
from millpond.pool.internals import internals_of
from millpond.pool.millpond import Millpond

ITEMS = [str(number) for number in range(300)]


def test_finished_items_do_not_run_again_after_a_kill(tmp_path: Path) -> None:
    """Killed in the middle and resumed, every item is done; only running items are repeated."""
    log = tmp_path / "log"
    line = ("-j2", "--shell", "echo {} >> log")
    killed = started(*line, cwd=tmp_path, items="\n".join(ITEMS))
    until(lambda: len(lines(log)) > 50)
    killed.kill()
    killed.communicate(timeout=PATIENCE)
    assert -signal.SIGKILL == killed.returncode
    shown = started("--show", "all", "--json", cwd=tmp_path)
    kept = map(json.loads, shown.communicate(timeout=PATIENCE)[0].splitlines())
    done = {one["item"] for one in kept if one["status"] == "completed"}
    assert 0 < len(done) < len(ITEMS), "it was not in the middle"
    resumed = started("--resume", *line, cwd=tmp_path, items="\n".join(ITEMS))
    output = resumed.communicate(timeout=PATIENCE)
    assert RunExit.DONE == resumed.returncode, output
    assert "300 of 300 done" in output[1]
    runs = Counter(lines(log))
    assert set(ITEMS) == set(runs)
    repeated = {item for item, count in runs.items() if count > 1}
    assert not repeated & done
    assert len(repeated) <= 2


@pytest.mark.rows("TR-12")
def test_a_kill_repeats_no_more_items_than_were_allowed_at_once(tmp_path: Path) -> None:
    """Also where the store is slow: what cannot be settled keeps its slot from the next item."""
    log = tmp_path / "log"
    line = ("-j2", "--store", "run.db", "--shell", "echo {} >> log")
    killed = started(*line, cwd=tmp_path, items="\n".join(ITEMS))
    until(lambda: len(lines(log)) > 20)
    other = sqlite3.connect(tmp_path / "run.db", timeout=PATIENCE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # from now on nothing is settled
    begun = len(lines(log))
    time.sleep(1.0)  # what it could begin without the store, it begins now
    killed.kill()
    killed.communicate(timeout=PATIENCE)
    other.close()
    resumed = started("--resume", *line, cwd=tmp_path, items="\n".join(ITEMS))
    output = resumed.communicate(timeout=PATIENCE)
    assert RunExit.DONE == resumed.returncode, output
    assert begun < len(ITEMS), "it was not in the middle"
    runs = Counter(lines(log))
    assert set(ITEMS) == set(runs)
    assert sum(runs.values()) - len(ITEMS) <= 2


@pytest.mark.rows("TR-12")
def test_a_kill_repeats_only_running_commands(tmp_path: Path) -> None:
    """At most -j items run again: what had ended was stored, whatever was claimed ahead."""
    log = tmp_path / "log"
    line = ("-j8", "--shell", "echo {} >> log; [ -e again ] || sleep 0.02")
    killed = started(*line, cwd=tmp_path, items="\n".join(ITEMS))
    until(lambda: len(lines(log)) > 60)
    killed.kill()
    killed.communicate(timeout=PATIENCE)
    (tmp_path / "again").touch()
    resumed = started("--resume", *line, cwd=tmp_path, items="\n".join(ITEMS))
    output = resumed.communicate(timeout=PATIENCE)
    assert RunExit.DONE == resumed.returncode, output
    runs = Counter(lines(log))
    assert set(ITEMS) == set(runs)
    assert sum(runs.values()) - len(ITEMS) <= 8


@pytest.mark.rows("TR-13")
def test_after_a_kill_a_new_run_says_what_is_left_and_how_to_go_on(tmp_path: Path) -> None:
    """How many items of which run; the command that it prints does the rest of them."""
    log = tmp_path / "log"
    line = ("-j1", "--shell", "echo {} >> log; [ {} != b ] || until [ -e go ]; do sleep 0.01; done")
    killed = started(*line, cwd=tmp_path, items="a\nb\nc\nd")
    until(lambda: lines(log) == ["a", "b"])
    killed.kill()
    killed.communicate(timeout=PATIENCE)
    (tmp_path / "go").touch()
    notice = started(*line, ":::", "z", cwd=tmp_path).communicate(timeout=PATIENCE)[1]
    assert "3 items are left of an earlier run of this command" in notice
    store = notice.partition("--resume --store ")[2].split()[0]
    resumed = started("--resume", "--store", store, *line, cwd=tmp_path)
    assert "4 of 4 done" in resumed.communicate(timeout=PATIENCE)[1]
    assert ["a", "b", "z", "b", "c", "d"] == lines(log)


def test_resume_kills_orphaned_commands_first(tmp_path: Path) -> None:
    """No item is ever at work twice at a time."""
    script = (
        "mkdir lock-{} || exit 9; [ -e again ] || { echo $$ > asleep; sleep 30; }; rmdir lock-{}"
    )
    line = ("--shell", script, ":::", "a")
    killed = started(*line, cwd=tmp_path)
    until(lambda: lines(tmp_path / "asleep") != [])
    killed.kill()
    killed.communicate(timeout=PATIENCE)
    (tmp_path / "again").touch()
    (tmp_path / "lock-a").rmdir()
    resumed = started("--resume", *line, cwd=tmp_path)
    output = resumed.communicate(timeout=PATIENCE)
    assert RunExit.DONE == resumed.returncode, output
    assert "1 command(s) of the killed run still running" in output[1]
    (orphan,) = lines(tmp_path / "asleep")
    assert not is_at_work(int(orphan))


def test_the_first_signal_lets_running_work_end(tmp_path: Path) -> None:
    """Nothing more is started; what is left is for --resume."""
    line = ("-j1", "--shell", "> at-{}; until [ -e go ]; do sleep 0.01; done; echo {}", ":::")
    run = started(*line, "a", "b", cwd=tmp_path)
    until((tmp_path / "at-a").exists)
    run.send_signal(signal.SIGINT)
    assert run.stderr is not None
    assert "1 command(s) still running" in run.stderr.readline()
    (tmp_path / "go").touch()
    output = run.communicate(timeout=PATIENCE)
    assert (RunExit.INTERRUPTED, "a\n") == (run.returncode, output[0])
    assert "1 of 2 done, 1 left" in output[1]
    resumed = started("--resume", *line, cwd=tmp_path)
    assert "b\n" == resumed.communicate(timeout=PATIENCE)[0]
    assert RunExit.DONE == resumed.returncode


def test_a_second_signal_kills_commands_and_resume_runs_them_again(tmp_path: Path) -> None:
    """It has not failed: it was killed."""
    line = ("-j1", "--shell", "> at-{}; until [ -e go ]; do sleep 0.01; done; echo {}", ":::", "a")
    run = started(*line, cwd=tmp_path)
    until((tmp_path / "at-a").exists)
    run.send_signal(signal.SIGTERM)
    assert run.stderr is not None
    assert "1 command(s) still running" in run.stderr.readline()
    # Signals that come within a quarter of a second count as one.
    until(lambda: _ends_after_another(run, signal.SIGTERM))
    assert RunExit.TERMINATED == run.returncode
    (tmp_path / "go").touch()
    resumed = started("--resume", *line, cwd=tmp_path)
    assert "a\n" == resumed.communicate(timeout=PATIENCE)[0]


def _ends_after_another(run: "subprocess.Popen[str]", number: signal.Signals) -> bool:
    run.send_signal(number)
    try:
        run.communicate(timeout=0.3)
    except subprocess.TimeoutExpired:
        return False
    return True


def test_a_run_ends_when_its_output_pipe_is_closed(tmp_path: Path) -> None:
    """As `| head` asks for."""
    run = started("-j1", "echo", cwd=tmp_path, items="\n".join(ITEMS))
    assert run.stdout is not None
    assert "0\n" == run.stdout.readline()
    run.stdout.close()
    run.stdout = None
    output = run.communicate(timeout=PATIENCE)
    assert RunExit.PIPE == run.returncode
    assert "left" in output[1]


def test_two_processes_never_run_the_same_run(tmp_path: Path) -> None:
    """The second one names the process of the first."""
    line = ("--store", "x.db", "--shell", "> at-{}; until [ -e go ]; do sleep 0.01; done", ":::")
    first = started(*line, "a", cwd=tmp_path)
    until((tmp_path / "at-a").exists)
    second = started("--resume", *line, "a", cwd=tmp_path)
    output = second.communicate(timeout=PATIENCE)
    assert RunExit.STORE == second.returncode
    assert f"(process {first.pid}) is running" in output[1]
    (tmp_path / "go").touch()
    first.communicate(timeout=PATIENCE)
    assert RunExit.DONE == first.returncode


def test_output_that_cannot_be_written_ends_the_run_with_an_error(tmp_path: Path) -> None:
    """A full disk ends the run; finished items are kept."""
    with Path("/dev/full").open("w") as full:
        run = started("-j1", "echo", cwd=tmp_path, items="a\nb\nc", stdout=full.fileno())
        output = run.communicate(timeout=PATIENCE)
    assert RunExit.BROKE == run.returncode, output
    assert "cannot write the output: No space left on device" in output[1]
    shown = started("--show", "1", cwd=tmp_path)
    assert "a\n" == shown.communicate(timeout=PATIENCE)[0]


def test_items_cancelled_by_another_process_end_the_run(tmp_path: Path) -> None:
    """Its store is one as any other: another process may purge it."""
    script = "> at-{}; until [ -e go ]; do sleep 0.01; done"
    run = started("-j1", "--store", "x.db", "--shell", script, ":::", *"abc", cwd=tmp_path)
    until((tmp_path / "at-a").exists)
    purged = asyncio.run(_purge(tmp_path / "x.db"))
    (tmp_path / "go").touch()
    output = run.communicate(timeout=PATIENCE)
    assert 1 <= purged <= 2
    assert f"{3 - purged} of 3 done, {purged} cancelled" in output[1]
    assert RunExit.DONE == run.returncode


async def _purge(file: Path) -> int:
    mp = Millpond(f"sqlite:///{file}", work=False)
    async with mp:
        return (await internals_of(mp).runtime.control.order(Purge("run", None))).count
