"""`millpond`: what it says of itself, and of a command it does not have."""

import subprocess
import sys
from pathlib import Path

import pytest

import millpond
from millpond.cli import main as command
from millpond.cli.exits import Exit


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, by its module."""
    return subprocess.run(
        [sys.executable, "-m", "millpond", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={"PYTHONPATH": ":".join(sys.path)},
        cwd=cwd,
        timeout=15,
        check=False,
    )


def test_version_prints_the_version() -> None:
    """One line, exit code 0."""
    answer = run("--version")
    assert (0, f"millpond {millpond.__version__}\n", "") == (
        answer.returncode,
        answer.stdout,
        answer.stderr,
    )


def test_its_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """And what each does."""
    with pytest.raises(SystemExit) as left:
        command.main(["--help"])
    assert 0 == left.value.code
    output = capsys.readouterr().out
    for name, does in command.COMMANDS.items():
        assert f"  {name}" in output
        assert does in output


def test_without_a_command_the_help_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, as for any other line that is not one."""
    assert Exit.USAGE == command.main([])
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize("line", [["wroker"], ["\x1b[2J"], ["--verbose"]])
def test_an_unknown_command_is_refused_in_one_line(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2; a name is shown, never obeyed."""
    with pytest.raises(SystemExit) as left:
        command.main(line)
    assert 2 == left.value.code
    output = capsys.readouterr().err
    assert output.splitlines()[-1].startswith("millpond: error: ")
    assert "\x1b" not in output


def test_printing_the_version_does_not_import_the_worker() -> None:
    """What is not asked for is not imported."""
    requested = (
        "import sys; from millpond.cli.main import main; main(['--version']); print(*sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", f"{requested}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=15,
    )
    loaded = set(answer.stdout.split())
    assert not {"asyncio", "msgspec", "millpond.pool", "millpond.runtime"} & loaded


def test_the_demo_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    """With the options of the demo, under the name it was called by."""
    with pytest.raises(SystemExit) as left:
        command.main(["demo", "--help"])
    assert 0 == left.value.code
    assert capsys.readouterr().out.startswith("usage: millpond demo [-h]")
