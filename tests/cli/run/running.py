"""`millpond run`, in this process or in one of its own."""

import os
import subprocess
import sys
from pathlib import Path

PATIENCE = 30.0
"""Seconds for anything that is waited for: a machine that does much else is slow."""


def started(
    *arguments: str, cwd: Path, items: str = "", stdout: int = subprocess.PIPE
) -> "subprocess.Popen[str]":
    """Start `millpond run` in a process of its own, in a folder where its runs are kept, too."""
    process = subprocess.Popen(
        [sys.executable, "-m", "millpond", "run", *arguments],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": ":".join(sys.path),
            "XDG_STATE_HOME": str(cwd / "state"),
        },
    )
    assert process.stdin is not None
    process.stdin.write(items)
    process.stdin.close()
    process.stdin = None
    return process


def lines(file: Path) -> list[str]:
    """Return what commands have written to a file so far."""
    return file.read_text().splitlines() if file.exists() else []


def is_at_work(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        output = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return output.rpartition(")")[2].split()[0] != "Z"
