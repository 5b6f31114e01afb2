"""How quickly a backlog goes, and how that compares."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from actors import ActFailed, Answer, Rounds
from figures import Found


class Drained(NamedTuple):
    """How quickly a backlog went."""

    starts: float
    """Starts a second, from the first to the last."""
    total: float | None
    """Tasks a second until nothing was left; None if time was up before."""
    cpu: float
    """Seconds of the worker processes' CPU time for each task."""

    @property
    def least(self) -> float:
        """The lower of the two rates."""
        return self.starts if self.total is None else min(self.starts, self.total)

    @property
    def most(self) -> float:
        """The higher of the two rates."""
        return self.starts if self.total is None else max(self.starts, self.total)


def rate_of(answers: list[Answer], count: int, *, part: bool = False) -> Drained:
    """Return the rate of one or more workers that drained a file together."""
    there = [one for one in answers if one["counted"]]
    counted, ran = (sum(one[what] for one in there) for what in ("counted", "executed"))
    first, last = min(one["first"] for one in there), max(one["last"] for one in there)
    emptied = [one["empty"] for one in answers]
    total = None
    if not part and all(emptied):
        if ran != count:
            raise ActFailed(f"{ran:,} runs of {count:,} tasks")
        total = count / ((max(emptied) - first) / 1e9)
    cpu = sum(one["cpu"] * one["executed"] for one in there) / ran
    return Drained((counted - 1) / ((last - first) / 1e9), total, cpu)


def show_drains(found: Found, rounds: Rounds[Drained]) -> None:
    """Add the medians of each way."""
    for name, taken in rounds.done().items():
        wholes = [one.total for one in taken if one.total is not None]
        empty = f"until empty {statistics.median(wholes):,.0f}/s" if wholes else "time was up"
        cpu = statistics.median(one.cpu for one in taken) * 1e6
        starts = statistics.median(one.starts for one in taken)
        found.add(name, starts, "/s", note=f"{empty}; {cpu:,.0f} us CPU each")
    found.absent |= rounds.failed


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median, over the rounds, of the ratio within one round."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def worst_ratio(ours: list[Drained], theirs: list[Drained]) -> float:
    """Return our lower rate over their higher one: the median, over the rounds."""
    return median_ratio([one.least for one in ours], [one.most for one in theirs])
