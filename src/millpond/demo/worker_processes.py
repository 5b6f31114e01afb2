"""The worker processes of act 3: one is killed, none is left running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import millpond
from millpond.demo.fleet_app import LEASH
from millpond.demo.scenes import CannotGoOn

if TYPE_CHECKING:
    from typing import Self

PATIENCE = 5.0
"""Seconds for a worker to exit after SIGTERM."""


class Hand:
    """One worker process."""

    def __init__(self, number: int, command: list[str], log: Path) -> None:
        self.number = number
        self.killed = False
        self._log = log
        with log.open("wb") as log_file:
            # Its own process group: Ctrl-C goes to the demo, which stops its workers.
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log_file,
                env={**os.environ, "PYTHONPATH": _path(), LEASH: "1"},
                process_group=0,
            )
        self.pid = self._process.pid

    def kill(self) -> None:
        """Kill it at once: it cannot deregister."""
        self.killed = True
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """Raise if the worker exited on its own."""
        code = self._process.poll()
        if code is not None and not self.killed:
            words = self._log.read_text("utf-8", "replace").strip().splitlines()
            last = words[-1] if words else "it said nothing"
            raise CannotGoOn(f"worker {self.number} left with exit code {code}: {last}")

    @property
    def gone(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def let_go(self) -> None:
        """Close this end of its stdin, as the end of the demo does."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def left_with(self, patience: float) -> int:
        """Wait until it exits, and return its exit code."""
        return self._process.wait(patience)

    def ask_to_leave(self) -> None:
        """Send SIGTERM, so that it drains and exits."""
        if not self.gone:
            self._process.terminate()

    def see_off(self, patience: float) -> None:
        """Wait until it exits; kill it after a timeout."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.let_go()
        self._log.unlink(missing_ok=True)


class WorkerProcesses:
    """Several workers on one file. On exit of the block, all are ended."""

    def __init__(
        self, url: str, file: Path, many: int, concurrency: int, *, make: str = "make"
    ) -> None:
        self._file = file
        self._many = many
        self._command = [sys.executable, "-m", "millpond", "worker"]
        self._command += [f"millpond.demo.fleet_app:{make}"]
        self._command += ["--store", url, "--concurrency", str(concurrency)]
        self._command += ["--log-level", "warning"]
        self.hands: list[Hand] = []

    def __enter__(self) -> Self:
        try:
            for number in range(1, self._many + 1):
                self.hands.append(self._started(number))
        except BaseException:
            self._dismiss(0.0)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._dismiss(PATIENCE if kind is None else 0.0)

    def _dismiss(self, patience: float) -> None:
        for hand in self.hands:
            hand.ask_to_leave()
        for hand in self.hands:
            hand.see_off(patience)

    def _started(self, number: int) -> Hand:
        log = self._file.with_name(f"{self._file.name}.worker-{number}.log")
        return Hand(number, self._command, log)

    def replace(self, hand: Hand) -> None:
        """Start another worker in the place of one that was killed."""
        hand.see_off(0.0)
        self.hands[self.hands.index(hand)] = self._started(hand.number)

    def check(self) -> None:
        """Raise if a worker exited that was not killed."""
        for hand in self.hands:
            hand.check()


def _path() -> str:
    """Return a Python path on which a child finds the same package as this process."""
    home = str(Path(millpond.__file__).parents[1])
    return os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
