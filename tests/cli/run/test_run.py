"""`millpond run` with real commands: what runs, what is printed, what is kept, how it ends."""

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.run.running import is_at_work, lines

from millpond.cli import main as command
from millpond.cli.exits import Exit
from millpond.cli.run.execution import CommandRun
from millpond.cli.run.exits import RunExit
from millpond.runtime.worker.worker import Worker

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give the command, with a state folder and a working folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("millpond.cli.gc_tuning.tune_garbage_collection", lambda: None)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return lambda *words: command.main(["run", *words])


def test_a_command_is_run_for_each_item(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """Items are arguments, spaces and dollars and all; what it was is said on stderr."""
    assert RunExit.DONE == run("-j2", "-k", "echo", "<{}>", ":::", "a", "b  c", "$HOME")
    output = capfd.readouterr()
    assert "<a>\n<b  c>\n<$HOME>\n" == output.out
    assert "3 of 3 done" in output.err


def test_items_come_from_a_file_too(run: Run, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Ended by NULs where it is said; bytes that are no text stay what they are."""
    Path("items").write_bytes(b"a\nb\0\xff\xfe\0")
    assert RunExit.DONE == run("-q", "-k", "-0", "-a", "items", "printf", "%s;")
    assert b"a\nb;\xff\xfe;" == capfdbinary.readouterr().out


def test_items_are_read_from_standard_input(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """From a pipe, as they come."""
    out, into = os.pipe()
    os.write(into, b"a\nb\n")
    os.close(into)
    kept = os.dup(0)
    os.dup2(out, 0)
    try:
        assert RunExit.DONE == run("-q", "-k", "echo")
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(out)
    assert "a\nb\n" == capfd.readouterr().out


def test_the_exit_code_and_summary_report_failures(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the number that xargs uses; who failed and what it said last is named."""
    assert RunExit.FAILED == run("--shell", "echo no {} >&2; test {} = good", ":::", "good", "bad")
    output = capfd.readouterr()
    assert "1 of 2 done, 1 failed" in output.err
    assert "#2 exit 1  bad: no bad" in output.err


def test_output_is_stored(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """By number or by item, with how it ended, as text or as data; `all` is in order."""
    script = "echo out {}; echo err {} >&2; exit {}"
    assert RunExit.FAILED == run("-q", "--shell", script, ":::", "0", "3")
    capfd.readouterr()
    assert RunExit.DONE == run("--show", "2")
    output = capfd.readouterr()
    assert "out 3\n" == output.out
    assert output.err.startswith("#2 3: exit 3 after ")
    assert output.err.endswith("err 3\n")
    assert RunExit.DONE == run("--show", "all", "--json")
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    assert ("0", "completed", 0, "out 0\n", "err 0\n") == tuple(
        first[name] for name in ("item", "status", "exit_code", "stdout", "stderr")
    )
    assert ("3", "failed", 3, "exit 3", "err 3", "out 3\n", 1) == tuple(
        second[name]
        for name in ("item", "status", "exit_code", "verdict", "message", "stdout", "attempts")
    )
    assert RunExit.DONE == run("--failed")
    assert "#2 exit 3  3: err 3\n" == capfd.readouterr().out
    assert RunExit.NOTHING == run("--show", "9")
    assert RunExit.DONE == run("--list", "--json")
    listed = json.loads(capfd.readouterr().out)
    assert (1, 1, 0, False) == tuple(
        listed[name] for name in ("completed", "failed", "left", "running")
    )


def test_large_output_is_kept_in_full(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """More than goes into the store; nothing of two items is mixed."""
    big = "x" * 79 + "\n"
    assert RunExit.DONE == run(
        "-q", "-j2", "--tag", "--shell", f": {{}}; yes {big.strip()} | head -5000", ":::", "a", "b"
    )
    output = capfd.readouterr().out.splitlines(keepends=True)
    first = output[0][0]
    other = "b" if first == "a" else "a"
    assert [f"{first}\t{big}"] * 5000 + [f"{other}\t{big}"] * 5000 == output
    assert RunExit.DONE == run("--show", "1")
    assert big * 5000 == capfd.readouterr().out


def test_a_command_that_fails_is_tried_again(run: Run) -> None:
    """As often as --retries says."""
    script = "echo {} >> log; test $(wc -l < log) -ge 3"
    again = ("-q", "--retry-delay", "0", "--retries")
    assert RunExit.DONE == run(*again, "2", "--shell", script, ":::", "a")
    assert ["a"] * 3 == lines(Path("log"))
    assert RunExit.FAILED == run(*again, "1", "--shell", "echo {} >> two; false", ":::", "a")
    assert 2 == len(lines(Path("two")))


def test_a_command_out_of_time_is_killed_with_all_it_started(run: Run) -> None:
    """Also one that ignores SIGTERM, and its background processes."""
    script = "sh -c 'sleep 30; echo late >> log' & sleep 30; echo late {} >> log"
    before = time.monotonic()
    assert RunExit.FAILED == run("-q", "--timeout", "0.1", "--shell", script, ":::", "a")
    assert 20 > time.monotonic() - before
    assert [] == lines(Path("log"))
    assert [] == _at_work("sleep 30; echo late")


def _at_work(words: str) -> list[str]:
    """Return processes that have these words in their command."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            output = one.read_bytes()
        except OSError:
            continue
        if words.encode() in output and str(os.getpid()) != one.parent.name:
            found.append(output.decode())
    return found


def test_keep_order_prints_output_in_item_order(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also if a later item ends first."""
    script = "while [ {} = 1 ] && ! [ -e go ]; do sleep 0.01; done; echo {}; [ {} = 4 ] && > go"
    assert RunExit.FAILED == run("-q", "-k", "-j2", "--shell", script, ":::", "1", "2", "3", "4")
    assert "1\n2\n3\n4\n" == capfd.readouterr().out


def test_per_key_limits_the_commands_of_a_key(run: Run) -> None:
    """By a folder, or by what a regular expression finds; others need not wait for them."""
    script = "mkdir lock-{//} || exit 9; sleep 0.05; rmdir lock-{//}"
    items = [f"{host}/{number}" for number in range(3) for host in "ab"]
    assert RunExit.DONE == run("-q", "-j4", "--key", "{//}", "--shell", script, ":::", *items)
    assert RunExit.DONE == run(
        "-q", "-j4", "--key-regex", "^(.)/", "--per-key", "1", "--shell", script, ":::", *items
    )


def test_starts_are_spread_by_a_rate(run: Run) -> None:
    """Five of them at 20 a second take a fifth of one."""
    before = time.monotonic()
    assert RunExit.DONE == run("-q", "-j5", "--rate", "20/s", "true", ":::", *"abcde")
    assert 0.2 <= time.monotonic() - before


def test_halt_ends_a_run_early(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """What runs then is killed, and left to be resumed with the rest."""
    script = "echo {} >> log; [ {} = a ] && exit 1; [ -e log2 ] && exit 0; sleep 30"
    line = ("-j2", "--halt", "now,fail=1", "--shell", script, ":::", "b", "a", "c")
    before = time.monotonic()
    assert RunExit.FAILED == run(*line)
    assert 20 > time.monotonic() - before
    assert "0 of 3 done, 1 failed, 2 left" in capfd.readouterr().err
    Path("log2").touch()
    assert RunExit.FAILED == run("--resume", *line)
    assert "2 of 3 done, 1 failed" in capfd.readouterr().err


def test_a_command_that_was_killed_with_all_others_has_not_failed(
    run: Run, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is seen to have ended before the worker gives it back."""
    stop = CommandRun._stop

    async def late(self: CommandRun, worker: Worker) -> None:
        (process,) = self.processes.live
        self.interrupts.killing = True
        self.processes.signal_all(signal.SIGTERM)
        while is_at_work(process):  # noqa: ASYNC110 - no event for a reaped child
            await asyncio.sleep(0.001)
        self.hard.set()
        await stop(self, worker)

    monkeypatch.setattr(CommandRun, "_stop", late)
    script = "[ {} = a ] || sleep 30"
    assert RunExit.DONE == run("-j2", "--halt", "soon,success=1", "--shell", script, ":::", *"ba")
    assert "1 of 2 done, 1 left" in capfd.readouterr().err


def test_a_resumed_run_does_only_what_is_not_done(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    """Items are known by what they are: the list may be longer, or in another order."""
    line = ("--shell", "echo {} >> log; [ {} != bad ] || [ -e mended ]", ":::")
    assert RunExit.FAILED == run(*line, "a", "bad", "a")
    assert ["a", "a", "bad"] == sorted(lines(Path("log")))
    assert RunExit.FAILED == run("--resume", *line, "new", "a", "bad", "a")
    assert ["a", "a", "bad", "new"] == sorted(lines(Path("log")))
    Path("mended").touch()
    assert RunExit.DONE == run("--resume-failed", *line, "new", "a", "bad", "a")
    assert ["a", "a", "bad", "bad", "new"] == sorted(lines(Path("log")))
    assert RunExit.DONE == run("--resume", *line)
    assert "4 of 4 done, 4 ended earlier" in capfd.readouterr().err
    assert RunExit.DONE == run(*line, "a")
    assert 6 == len(lines(Path("log"))), "without --resume it is a new run"


@pytest.mark.rows("TR-13")
def test_a_new_run_says_what_is_left_of_the_one_before(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    """How many items, of which run, and how to go on; -q keeps silent, and a done one is over."""
    line = ("-j1", "--halt", "now,fail=1", "--shell", "echo {} >> log; [ -e mended ]", ":::")
    stopped = run(*line, "a", "b", "c")
    assert "left of the run" not in capfd.readouterr().err
    Path("mended").touch()
    assert RunExit.FAILED == stopped
    assert RunExit.DONE == run("--quiet", *line, "x")
    assert "" == capfd.readouterr().err
    Path("mended").unlink()
    assert RunExit.FAILED == run(*line, "a", "b", "c")
    assert "left of the run" not in capfd.readouterr().err, "the quiet one had ended"
    Path("mended").touch()
    assert RunExit.DONE == run(*line, "y")
    output = capfd.readouterr().err
    assert re.search(
        r"[12] items? (is|are) left of an earlier run of this command, started at 20", output
    )
    store = output.partition("--resume --store ")[2].split()[0]
    Path("log").unlink()
    assert RunExit.FAILED == run("--resume", "--store", store, *line)
    assert "c" == lines(Path("log"))[-1]


def test_a_run_may_have_a_file_of_its_own(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """It is never mixed with another, and never restarted by accident."""
    line = ("--store", "mine.db", "echo", ":::", "a")
    assert RunExit.DONE == run(*line)
    assert Path("mine.db").exists()
    assert Exit.USAGE == run(*line)
    assert "use --resume to continue it" in capfd.readouterr().err
    assert Exit.USAGE == run("--resume", "--store", "mine.db", "cat", ":::", "a")
    assert "is a run of another command: echo" in capfd.readouterr().err
    assert RunExit.DONE == run("--resume", *line, "b")
    assert "b\n" == capfd.readouterr().out
    assert RunExit.DONE == run("--show", "all", "--store", "mine.db")
    assert "a\nb\n" == capfd.readouterr().out
    Path("other.db").touch()
    assert Exit.USAGE == run("--store", "other.db", "echo", ":::", "a")
    assert "is not a run" in capfd.readouterr().err


def test_a_missing_program_starts_nothing(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit codes as a shell has them; where the command is the item, it is that item's."""
    Path("script").write_text("#!/bin/sh\n")
    assert RunExit.NOT_FOUND == run("no-such-command", ":::", "a")
    assert RunExit.NOT_RUN == run("./script", ":::", "a")
    assert RunExit.FAILED == run("-q", "{}", ":::", "true", "no-such-command")
    capfd.readouterr()
    run("--failed")
    assert "#2 exit 127  no-such-command: command not found" in capfd.readouterr().out


def test_a_dry_run_prints_the_commands(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """As one would type it; nothing is kept."""
    assert RunExit.DONE == run("--dry-run", "mv", "{}", "{.}.png", ":::", "a b.jpg", "c")
    assert "mv 'a b.jpg' 'a b.png'\nmv c c.png\n" == capfd.readouterr().out
    assert not Path(os.environ["XDG_STATE_HOME"]).exists()


def test_a_dry_run_with_resume_prints_only_unfinished_items(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is run, and nothing is stored."""
    line = ("test", "{}", "=", "a", ":::")
    assert RunExit.FAILED == run("-q", "-j1", "--halt", "soon,fail=1", *line, "a", "b", "c")
    assert RunExit.DONE == run("--dry-run", "--resume", *line, "b", "d", "a", "a")
    output = capfd.readouterr().out.splitlines()
    assert ["test d = a", "test a = a"] == output[-2:]
    assert "test c = a" in output or 2 == len(output), "c may have run beside b"
    assert RunExit.DONE == run("--dry-run", "--resume", *line, "b", "d", "a", "a")
    assert output == capfd.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "line",
    [
        [],
        ["echo", ":::", "a", ":::", "b"],
        ["-a", "items", "echo", ":::", "b"],
        ["--per-key", "2", "echo", ":::", "a"],
        ["--json", "echo", ":::", "a"],
        ["-a", "no-such-file", "echo"],
        ["--store", "postgresql://localhost/x", "echo", ":::", "a"],
        ["-j", "many", "echo", ":::", "a"],
    ],
)
def test_contradictory_arguments_are_refused(run: Run, line: list[str]) -> None:
    """Exit code 2, and nothing was started."""
    try:
        code = run(*line)
    except SystemExit as left:
        code = int(str(left.code))
    assert Exit.USAGE == code


def test_a_command_has_the_signals_of_a_shell_and_nothing_to_read(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    """SIGPIPE ends it, its stdin is empty, and it leads its own process group."""
    look = "import os,sys; print(sys.stdin.read() == '', os.getpgrp() == os.getpid())"
    status = ": {}; grep SigIgn /proc/self/status | cut -f2"
    assert RunExit.DONE == run("-q", sys.executable, "-c", look, ":::", "a")
    assert "True True\n" == capfd.readouterr().out
    assert RunExit.DONE == run("-q", "--shell", status, ":::", "a")
    assert not int(capfd.readouterr().out, 16) & (1 << 12)
