"""The ledger of commands at work, and who is found in it after a kill."""

import os
import subprocess
from pathlib import Path

import pytest

from millpond.cli.run import orphans
from millpond.cli.run.orphans import Ledger, end, left_behind


@pytest.fixture
def sleeper() -> "subprocess.Popen[bytes]":
    """Give a process that leads a group of its own."""
    return subprocess.Popen(["/bin/sleep", "60"], process_group=0)


def test_running_commands_in_the_ledger_are_found_and_killed(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    """A command that has ended is not, nor one whose process is gone."""
    ledger = Ledger(tmp_path / "at-work", 3)
    gone = subprocess.Popen(["/bin/true"])
    left = ledger.enter(os.getpid())
    ledger.enter(sleeper.pid)
    ledger.enter(gone.pid)
    ledger.leave(left)
    gone.wait()
    ledger.close()
    assert [sleeper.pid] == left_behind(tmp_path / "at-work")
    end([sleeper.pid])
    assert -15 == sleeper.wait()


def test_a_process_that_was_started_at_another_time_is_another(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pids are reused: a later process with the same pid is not killed."""
    now = orphans._now
    monkeypatch.setattr(orphans, "_now", lambda: now() - 5_000)
    Ledger(tmp_path / "at-work", 1).enter(sleeper.pid)
    assert [] == left_behind(tmp_path / "at-work")
    sleeper.kill()
    sleeper.wait()


def test_a_ledger_from_before_a_reboot_is_ignored(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that is not there."""
    Ledger(tmp_path / "at-work", 1).enter(sleeper.pid)
    assert [] == left_behind(tmp_path / "none")
    monkeypatch.setattr(orphans, "_boot", lambda: b"another".ljust(64))
    assert [] == left_behind(tmp_path / "at-work")
    sleeper.kill()
    sleeper.wait()


def test_a_full_ledger_lists_no_more_commands(tmp_path: Path) -> None:
    """Nothing breaks."""
    ledger = Ledger(tmp_path / "at-work", 1)
    first = ledger.enter(os.getpid())
    assert ledger.enter(os.getpid()) is None
    ledger.leave(None)
    ledger.leave(first)
    assert first == ledger.enter(os.getpid())
