"""What the sections of a benchmark share: figures, targets, and rounds of contenders."""

from __future__ import annotations

import gc
import math
import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rounds: int
    quick: bool


@dataclass
class Figure:
    """One line of a table: a name, a value and its unit."""

    name: str
    value: float
    unit: str
    wall: float | None = None
    """The same by the wall clock, where the value is CPU time."""
    note: str = ""
    """What else there is to say, in a few words."""


@dataclass
class Target:
    """What must hold, and by how much it did."""

    name: str
    value: float
    most: float | None
    unit: str = "x"
    goal: float | None = None
    """What we would like it to be."""
    wall: float | None = None
    """The same ratio by the wall clock."""
    least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the must is met."""
        low = self.least is None or self.value >= self.least
        return low and (self.most is None or self.value <= self.most)

    @property
    def reached(self) -> bool:
        """Whether the goal is met, where there is one."""
        if self.goal is None:
            return False
        return self.value <= self.goal if self.least is None else self.value >= self.goal

    @property
    def bound(self) -> str:
        """What must hold, in words."""
        words = (("at least", self.least), ("at most", self.most))
        return ", ".join(f"{word} {limit:,g}" for word, limit in words if limit is not None)


@dataclass
class Found:
    """What a section found out."""

    figures: list[Figure] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """What could not be measured, and why."""

    def missed(self) -> list[str]:
        """Return the targets that do not hold; an unmeasured one does not."""
        return [target.name for target in self.targets if not target.holds] + [
            f"{name} (not measured)" for name in self.absent
        ]

    def add(
        self, name: str, value: float, unit: str, wall: float | None = None, note: str = ""
    ) -> None:
        """Add a line."""
        self.figures.append(Figure(name, value, unit, wall, note))

    def must(self, name: str, value: float, most: float, unit: str = "x", **more: Any) -> None:
        """Add a target that is not to be exceeded."""
        self.targets.append(Target(name, value, most, unit, **more))

    def reach(self, name: str, value: float, least: float, unit: str = "x", **more: Any) -> None:
        """Add a target that is to be reached."""
        self.targets.append(Target(name, value, None, unit, least=least, **more))

    def data(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def read(cls, data: dict[str, Any]) -> Found:
        """Return it from plain data."""
        return cls(
            [Figure(**one) for one in data["figures"]],
            [Target(**one) for one in data["targets"]],
            data["absent"],
        )


@dataclass
class Stopwatch:
    """CPU time of this process, and time on the wall, since `start`."""

    cpu: float = 0.0
    wall: float = 0.0

    @classmethod
    def start(cls) -> Stopwatch:
        """Begin."""
        return cls(time.process_time(), time.perf_counter())

    def stop(self, count: int = 1) -> Took:
        """Return what has gone by, for each of `count`."""
        cpu, wall = time.process_time() - self.cpu, time.perf_counter() - self.wall
        return Took(cpu / count, wall / count)


@dataclass
class Took:
    """Seconds of CPU time and on the wall."""

    cpu: float
    wall: float


Contender = Callable[[], Awaitable[Took]]
Times = dict[str, list[Took]]


async def rounds_of(contenders: dict[str, Contender], rounds: int) -> Times:
    """Run every contender in every round, in a new order each time; the first round warms up."""
    times: Times = defaultdict(list)
    for number in range(rounds + 1):
        for name in random.sample(list(contenders), len(contenders)):
            gc.collect()
            took = await contenders[name]()
            if number > 0:
                times[name].append(took)
    return {name: times[name] for name in contenders}


def median(taken: Iterable[Took]) -> Took:
    """Return the median of each."""
    taken = list(taken)
    return Took(
        statistics.median(one.cpu for one in taken), statistics.median(one.wall for one in taken)
    )


def ratio(ours: list[Took], theirs: list[Took]) -> Took:
    """Return the median, over the rounds, of the ratio within one round."""
    pairs = list(zip(ours, theirs, strict=True))
    return Took(
        statistics.median(mine.cpu / other.cpu for mine, other in pairs),
        statistics.median(mine.wall / other.wall for mine, other in pairs),
    )


def quantile(values: list[float], part: float) -> float:
    """Return the value that `part` of all do not exceed."""
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def resident() -> int:
    """Return the bytes of memory this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def cautious(value: float, *, up: bool, digits: int = 2) -> str:
    """Return a number in digits, rounded up or down: whichever does not flatter it."""
    if not math.isfinite(value):
        return "-"
    scale = 10**digits
    cut = (math.ceil if up else math.floor)(value * scale) / scale
    return f"{cut:,.{digits}f}"
