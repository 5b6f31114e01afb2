"""`python -m millpond.demo`: its options, its exit codes and its two machine-readable ways."""

import subprocess
import sys

import msgspec
import pytest

from millpond.demo import __main__ as command
from millpond.demo import report, screen
from millpond.demo.report import Report, Show, give


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, with its output in a pipe."""
    return subprocess.run(
        [sys.executable, "-m", "millpond.demo", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={"PYTHONIOENCODING": "utf-8", "PYTHONPATH": ":".join(sys.path), **environment},
        timeout=15,
        check=False,
    )


def test_in_a_pipe_it_prints_plain_lines() -> None:
    """No escape codes, nothing wider than 80 columns, nothing on the side; exit code 0."""
    answer = demo()
    assert (0, "") == (answer.returncode, answer.stderr)
    assert "\x1b" not in answer.stdout
    assert "\r" not in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 80
    assert "Promised, and seen: every one kept" in answer.stdout
    assert "docs/index.md" in answer.stdout


def test_plain_lines_are_the_same_each_time() -> None:
    """The seed decides everything, down to the last digit."""
    assert demo("--plain").stdout == demo("--plain", "--seed", "1").stdout


def test_colour_is_not_forced_into_a_pipe() -> None:
    """Only a terminal gets colours, whatever the environment wishes."""
    assert "\x1b" not in demo(FORCE_COLOR="1", CLICOLOR_FORCE="1", TERM="xterm").stdout


def test_plain_ascii_is_enough() -> None:
    """Where the encoding has no blocks, bars are made of what it has."""
    answer = demo(PYTHONIOENCODING="ascii")
    assert 0 == answer.returncode
    assert answer.stdout.isascii()
    assert "####" in answer.stdout


def test_json_is_one_document_of_the_documented_shape() -> None:
    """`Report` is the shape: no field is missing, none is more."""
    answer = demo("--json", "--seed", "7")
    seen = msgspec.json.decode(answer.stdout, type=Report)
    assert give(7).report() == seen
    assert (2, 7, True) == (seen.shape, seen.seed, seen.kept)
    assert {"shape", "seed", "kept", "promises", "flood", "pressure", "run", "bulkhead"} == {
        *msgspec.json.decode(answer.stdout)
    }


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
        (["more"], "unrecognized arguments: more"),
    ],
)
def test_a_wrong_argument_is_told_in_a_line(
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
    told = capsys.readouterr().out
    for option in ("--seed", "--speed", "--fast", "--plain", "--json"):
        assert option in told


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A show in which one promise is not kept."""
    first, *others = give(1).flood.ending.promises
    worse = msgspec.structs.replace(first, kept=False)

    def with_one_broken(seed: int, perform: report.Perform = report.in_no_time) -> Show:
        show = give(seed, perform)
        ending = msgspec.structs.replace(show.flood.ending, promises=(worse, *others))
        act = msgspec.structs.replace(show.flood, ending=ending)
        return msgspec.structs.replace(show, flood=act)

    monkeypatch.setattr(command, "give", with_one_broken)
    monkeypatch.setattr(screen, "give", with_one_broken)


def test_a_broken_promise_is_exit_code_1(broken: None, capsys: pytest.CaptureFixture[str]) -> None:
    """And it is marked where it stands."""
    assert 1 == command.main([])
    told = capsys.readouterr().out
    assert "1 of 16 BROKEN" in told
    assert "  NO  Never more than 4 run" in told


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

    def interrupted(_: int) -> Show:
        raise KeyboardInterrupt

    monkeypatch.setattr(screen, "give", interrupted)
    assert 130 == command.main([])
    assert "\nstopped\n" == capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error() -> None:
    """As in `| head`: nothing on stderr."""
    with subprocess.Popen(
        [sys.executable, "-m", "millpond.demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert b"" == running.stderr.read()
        assert 141 == running.wait(timeout=15)
