"""A worker in a process of its own, and what it says."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

APPS = Path(__file__).parent / "apps"
PATIENCE = 30.0
"""Seconds for anything that is waited for: a machine that does much else is slow."""


class Running:
    """One process, and the lines it wrote so far."""

    def __init__(self, arguments: list[str], cwd: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millpond", "worker", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            cwd=cwd,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": ":".join(sys.path),
                "PYTHONIOENCODING": "utf-8",
                **environment,
            },
        )
        self.lines: list[str] = []
        self._heard: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._heard.put(line.rstrip("\n"))
        self._heard.put(None)

    def until(self, words: str) -> str:
        """Return the next line that has these words in it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._heard.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                raise AssertionError(f"{words!r} was not said: {self.output}") from None
            if line is None:
                raise AssertionError(f"it ended without {words!r}: {self.output}")
            self.lines.append(line)
            if words in line:
                return line

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; return its exit code."""
        deadline = time.monotonic() + PATIENCE
        try:
            while (line := self._heard.get(timeout=deadline - time.monotonic())) is not None:
                self.lines.append(line)
            return self.process.wait(timeout=PATIENCE)
        except (queue.Empty, ValueError, subprocess.TimeoutExpired):
            raise AssertionError(f"it does not end: {self.output}") from None

    @property
    def output(self) -> str:
        """All that it said, as far as it was read."""
        return "\n".join(self.lines)


@contextmanager
def running(*arguments: str, cwd: Path = APPS, **environment: str) -> Iterator[Running]:
    """Run `millpond worker`; it is gone after the block."""
    worker = Running(list(arguments), cwd, environment)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.process.wait()
        worker._reader.join(PATIENCE)
        assert worker.process.stdout is not None
        worker.process.stdout.close()
