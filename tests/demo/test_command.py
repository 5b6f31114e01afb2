"""`python -m millpond.demo`: its options, its exit codes and its two machine-readable ways."""

import contextlib
import os
import pty
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.waiting import until

from millpond.demo import __main__ as command
from millpond.demo import fleet_app as depot
from millpond.demo import report, screen
from millpond.demo.report import Report, Show, give
from millpond.demo.scenes import CannotGoOn, Scene

PATIENCE = 50.0
"""Seconds for a show: a machine that does much else is slow."""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """What a demo knows of its surroundings; what it leaves behind it leaves in `folder`."""
    path = ":".join(sys.path)
    return {"PYTHONIOENCODING": "utf-8", "PYTHONPATH": path, "TMPDIR": str(folder), **more}


def demo(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, with its output in a pipe."""
    return subprocess.run(
        [sys.executable, "-m", "millpond.demo", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment(folder, **more),
        timeout=PATIENCE,
        check=False,
    )


def workers_of(folder: Path) -> list[str]:
    """Return the command lines of all processes that work on a file in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"sqlite:///{folder}" in line:
            found.append(line)
    return found


def test_in_a_pipe_it_prints_plain_lines(tmp_path: Path) -> None:
    """No escape codes, nothing wider than 80 columns, nothing on the side; exit code 0.

    And nothing is left: no file, no folder, no process.
    """
    answer = demo(tmp_path, FORCE_COLOR="1", CLICOLOR_FORCE="1", TERM="xterm")
    assert (0, "") == (answer.returncode, answer.stderr)
    assert "\x1b" not in answer.stdout
    assert "\r" not in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 80
    assert "Promised, and seen: every one kept" in answer.stdout
    assert "docs/index.md" in answer.stdout
    assert [] == list(tmp_path.iterdir())
    assert [] == workers_of(tmp_path)


def test_plain_ascii_is_enough_and_a_store_that_was_named_stays(tmp_path: Path) -> None:
    """Where the encoding has no blocks, bars are made of what it has."""
    file = tmp_path / "kept 100%.db"
    answer = demo(tmp_path, "--store", str(file), PYTHONIOENCODING="ascii")
    assert (0, "") == (answer.returncode, answer.stderr)
    assert answer.stdout.isascii()
    assert "####" in answer.stdout
    assert b"SQLite format 3" == file.read_bytes()[:15]
    assert [] == workers_of(tmp_path)


def test_json_is_one_document_of_the_documented_shape(
    show: Show, replayed: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`Report` is the shape: no field is missing, none is more."""
    assert 0 == command.main(["--json", "--store", str(tmp_path / "work.db")])
    printed = capsys.readouterr().out
    seen = msgspec.json.decode(printed, type=Report)
    assert show.report() == seen
    assert (3, 1, True) == (seen.shape, seen.seed, seen.kept)
    assert {"shape", "seed", "kept", "promises", "bulkhead", "flood", "fleet"} == {
        *msgspec.json.decode(printed)
    }


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_no_worker_stays(sent: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, a polite end, and one that gives the demo itself no chance to tidy up."""
    with subprocess.Popen(
        [sys.executable, "-m", "millpond.demo"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    ) as running:
        until(lambda: work_is_done_in(tmp_path))
        assert workers_of(tmp_path)
        running.send_signal(sent)
        _, output = running.communicate(timeout=PATIENCE)
    assert {
        signal.SIGINT: (130, "\nstopped\n"),
        signal.SIGTERM: (143, ""),
        signal.SIGKILL: (-9, ""),
    }[sent] == (running.returncode, output)
    until(lambda: not workers_of(tmp_path))
    assert sent is signal.SIGKILL or [] == list(tmp_path.iterdir())


def work_is_done_in(folder: Path) -> bool:
    """Whether the workers of a demo have written something into their ledger."""
    for file in folder.glob("millpond-demo-*/work.db"):
        with contextlib.suppress(sqlite3.Error):
            return bool(depot.entries(file))
    return False


def test_on_a_terminal_it_is_played(tmp_path: Path) -> None:
    """On a real one, with real processes: a second page, on it the show, then the lines."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "millpond.demo", "--speed", "8"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(tmp_path, TERM="xterm"),
    ) as running:
        os.close(theirs)
        output = b""
        while part := read(ours):
            output += part
        assert 0 == running.wait(PATIENCE)
    os.close(ours)
    played, _, kept = output.decode().partition("\x1b[?25h\x1b[?1049l")
    assert played.startswith("\x1b[?1049h\x1b[?25l")
    assert "kill -9" in played
    assert "every one kept" in kept


def read(terminal: int) -> bytes:
    """Return the next output, empty once it is closed."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--sedd"], "unrecognized arguments: --sedd"),
        (["--see", "3"], "unrecognized arguments: --see 3"),
        (["--seed", "x"], "--seed: 'x' is not a whole number of 0 or more"),
        (["--seed", "-1"], "--seed: '-1' is not a whole number of 0 or more"),
        (["--seed", "²"], "--seed: '²' is not a whole number of 0 or more"),
        (["--seed"], "--seed: expected one argument"),
        (["--speed", "0"], "--speed: '0' is not a number above 0"),
        (["--speed", "nan"], "--speed: 'nan' is not a number above 0"),
        (["--speed", "inf"], "--speed: 'inf' is not a number above 0"),
        (["--fast", "--speed", "2"], "not allowed with"),
        (["--json", "--plain"], "not allowed with"),
        (["--store", "/"], "--store: '/' is there already"),
        (["--store", "/no/such/work.db"], "--store: there is no folder '/no/such'"),
        (["--store", ""], "--store: '' is there already"),
        (["more"], "unrecognized arguments: more"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and the last line says what is wrong."""
    with pytest.raises(SystemExit) as left:
        command.main(arguments)
    assert 2 == left.value.code
    assert complaint in capsys.readouterr().err.splitlines()[-1]


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0."""
    with pytest.raises(SystemExit) as left:
        command.main(["--help"])
    assert 0 == left.value.code
    output = capsys.readouterr().out
    for option in ("--seed", "--store", "--speed", "--fast", "--plain", "--json"):
        assert option in output


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, show: Show, replayed: None) -> None:
    """A show in which one promise is not kept."""
    first, *others = show.flood.ending.promises
    worse = msgspec.structs.replace(first, kept=False)

    def with_one_broken(scene: Scene, perform: report.Perform = report.unseen) -> Show:
        show = give(scene, perform)
        ending = msgspec.structs.replace(show.flood.ending, promises=(worse, *others))
        act = msgspec.structs.replace(show.flood, ending=ending)
        return msgspec.structs.replace(show, flood=act)

    monkeypatch.setattr(command, "give", with_one_broken)
    monkeypatch.setattr(screen, "give", with_one_broken)


def test_a_broken_promise_is_exit_code_1(broken: None, capsys: pytest.CaptureFixture[str]) -> None:
    """And it is marked where it stands."""
    assert 1 == command.main([])
    output = capsys.readouterr().out
    assert "1 of 14 BROKEN" in output
    assert "  NO  Never more than 4 run" in output


def test_a_broken_promise_is_in_the_report(
    broken: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document says the same as the exit code."""
    assert 1 == command.main(["--json"])
    assert not msgspec.json.decode(capsys.readouterr().out, type=Report).kept


def test_an_interrupt_is_exit_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback."""

    def interrupted(*_: object) -> Show:
        raise KeyboardInterrupt

    monkeypatch.setattr(screen, "give", interrupted)
    assert 130 == command.main([])
    assert "\nstopped\n" == capsys.readouterr().err


def test_a_show_that_cannot_go_on_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a line, and it is no success."""

    def stopped(*_: object) -> Show:
        raise CannotGoOn("worker 2 left with exit code 4: no disk")

    monkeypatch.setattr(screen, "give", stopped)
    assert 1 == command.main([])
    output = "the demo cannot go on: worker 2 left with exit code 4: no disk\n"
    assert output == capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """As in `| head`: nothing on stderr, and nothing left."""
    with subprocess.Popen(
        [sys.executable, "-m", "millpond.demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert b"" == running.stderr.read()
        assert 141 == running.wait(timeout=PATIENCE)
    assert [] == list(tmp_path.iterdir())
