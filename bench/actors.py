"""What every benchmark with several contenders does: each in processes of its own, in rounds."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from contender import Contender

T = TypeVar("T")

HERE = Path(__file__).parent
LONGEST = 900.0
"""Seconds after which a process is killed that has not answered."""

CALM = 2.0
"""A disk is calm while a write costs at most so many times the least it ever did."""
PATIENCE = 20.0
"""Seconds to wait for that."""
TRIES = 3

Answer = dict[str, Any]


class ActFailed(Exception):
    """A process did not answer, or answered with an error."""


class Actor:
    """A process that does one act: it reports readiness, waits for the start, then answers."""

    def __init__(self, name: str, command: Sequence[str], longest: float = LONGEST) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._killer = threading.Timer(longest, self.process.kill)
        self._killer.daemon = True
        self._killer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._killer.cancel()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def ready(self) -> Self:
        """Wait until it is ready."""
        line = self._line()
        if line != "ready":
            self._read(line)
            raise ActFailed(f"{self.name}: answered before it was asked: {line}")
        return self

    def go(self) -> Self:
        """Start it."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self

    def answer(self) -> Answer:
        """Wait for its answer, and for its end."""
        answer = self._read(self._line())
        self.process.wait()
        return answer

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ActFailed(f"{self.name}: ended with {self.process.wait()} and no answer")
        return line.strip()

    def _read(self, line: str) -> Answer:
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise ActFailed(f"{self.name}: {answer['error']}")
        return answer


@dataclass
class Director:
    """A folder on the disk that is measured, and how much there is to do."""

    folder: Path
    rounds: int
    quick: bool
    only: str = ""
    """Contenders whose names have this in them; empty = all."""
    once: bool = False
    """Measure once, also while others use the disk."""
    fsync: float = math.inf
    """The least that a small write has cost until it was on the disk, in seconds."""
    calm: int = 0
    uneasy: int = 0
    """Measurements of which the disk was calm before and after, and others."""

    def size(self, full: int, quick: int) -> int:
        """Return how many, in a whole run or in a quick one."""
        return quick if self.quick else full

    def chosen(self, contender: Contender) -> bool:
        """Return whether a contender takes part."""
        return self.only in contender.name

    def interleaved(self, ways: Mapping[str, Callable[[], T]]) -> Rounds[T]:
        """Take every way in every round, in a new order each time."""
        taken: Rounds[T] = Rounds({name: [] for name in ways})
        for number in range(self.rounds):
            for name in random.sample(list(ways), len(ways)):
                if name in taken.failed:
                    continue
                show(f"round {number + 1} of {self.rounds}: {name}")
                try:
                    taken.of[name].append(self._calmly(ways[name]))
                except ActFailed as error:
                    taken.failed[name] = str(error)
        show("")
        return taken

    def _calmly(self, way: Callable[[], T]) -> T:
        """Measure while the disk answers as quickly as it can; again if it did not, a few times.

        A quick run only shows that all works: it waits for nothing.
        """
        hurried = self.quick or self.once
        for _ in range(1 if hurried else TRIES):
            calm = self._calm(patience=0.0 if hurried else PATIENCE)
            measured = way()
            if calm and self._calm(patience=0.0):
                self.calm += 1
                return measured
        self.uneasy += 1
        return measured

    def _calm(self, patience: float) -> bool:
        """Wait for a calm disk; return whether it is."""
        deadline = time.monotonic() + patience
        while True:
            cost = fsync_cost(self.folder, 50)
            self.fsync = min(self.fsync, cost)
            if cost <= CALM * self.fsync:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.2)


@dataclass
class Rounds(Generic[T]):
    """What each way gave in each round."""

    of: dict[str, list[T]]
    failed: dict[str, str] = field(default_factory=dict)
    """Why there is nothing of some."""

    def done(self) -> dict[str, list[T]]:
        """Return those that did not fail."""
        return {name: taken for name, taken in self.of.items() if name not in self.failed}

    def has(self, *names: str) -> bool:
        """Return whether each of these was measured."""
        return all(self.of.get(name) and name not in self.failed for name in names)


def show(text: str) -> None:
    """Show the progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def fsync_cost(folder: Path, times: int) -> float:
    """Return the seconds that a small write takes until it is on the disk, at the median."""
    path = folder / "probe"
    taken = []
    with path.open("wb") as file:
        for _ in range(times):
            start = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - start)
    path.unlink()
    return sorted(taken)[times // 2]
