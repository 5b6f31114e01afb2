"""Judge a fault by the records of the store before, during and after it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from millpond.core.lifecycle import Status, Transition
from verify.torture.evidence import from_zero
from verify.torture.ledger import AttemptBegan, SubmitConfirmed
from verify.torture.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from millpond.core.audit import Record
    from millpond.core.spec import PoolSpec
    from millpond.core.task import Task
    from verify.torture.ledger import AnyEntry

ENOUGH = 0.95
"""Share of the earlier throughput that must be reached again."""

NO_MORE = 1.15
"""The part of it beyond which something is being made up for."""

WINDOW, STEP = 1.0, 0.1
"""Seconds over which is counted, and between the beginnings of two counts."""

CALM = 3.0
"""Seconds for which it must be as before until it counts as recovered."""


class Phases(msgspec.Struct, frozen=True):
    """When everything began and ended, by the wall clock."""

    begun: float
    fault: float
    """When the fault began; the time before it is what it is compared with."""
    over: float
    """When it was over."""
    end: float
    """When it was no longer watched."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one scenario."""

    name: str
    baseline: float
    """Tasks done in a second, before: the median of short windows, or the submitted rate."""
    during: float
    """The same while the fault lasted, as a part of that."""
    standstill: float
    """The longest time in which nothing was done, from the fault on."""
    recovery: float | None
    """Seconds from the end of the fault until as much was done as before, and nothing was left
    over; None = never."""
    slowest: float
    """Seconds from submit to completion, of the task that took longest since then."""
    after: float
    """Tasks done in a second from then on, as a part of the baseline."""
    accepted: int
    lost: int
    """Tasks that were accepted and did not complete."""
    doubled: int
    """Tasks that completed twice, or items that became two tasks."""
    run_again: int
    """Attempts beyond the first of a task."""
    broken: list[str]
    """Limits that were exceeded, and whatever else the audit shows that must not be."""
    limits_met: int
    """How often a start took the last slot of the pool or of a key."""
    exits: int
    """Processes that ended by themselves."""

    @property
    def clean(self) -> bool:
        """Whether it was as it should be."""
        well = not (self.lost or self.doubled or self.broken or self.exits)
        return well and self.recovery is not None and self.after >= ENOUGH


class Pace:
    """How much was done, and left to do, at any moment."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.submitted: list[float] = []
        self.done: list[float] = []
        self._times: list[tuple[float, float]] = []
        """When each task was done, and how long that was after its submit."""
        since: dict[int, float] = {}
        for record in records:
            if record.event is Transition.SUBMIT:
                self.submitted.append(record.at)
                since[record.task or 0] = record.at
            elif record.event is Transition.COMPLETE:
                self.done.append(record.at)
                self._times.append((record.at, record.at - since[record.task or 0]))

    def rate(self, start: float, end: float) -> float:
        """Return how many were done in a second, between two moments."""
        count = bisect_left(self.done, end) - bisect_left(self.done, start)
        return count / (end - start)

    def left(self, at: float) -> int:
        """Return how many were submitted and not done at a moment."""
        return bisect_right(self.submitted, at) - bisect_right(self.done, at)

    def windows(self, start: float, end: float) -> list[float]:
        """Return the rates of the windows of a time."""
        count = max(round((end - start - WINDOW) / STEP), 0) + 1
        return [self.rate(at, at + WINDOW) for at in (start + n * STEP for n in range(count))]

    def most_left(self, start: float, end: float) -> int:
        """Return how many were ever left during a time."""
        moments = [at for at in self.submitted if start <= at < end]
        return max((self.left(at) for at in moments), default=0)

    def longest_pause(self, start: float, end: float) -> float:
        """Return the longest time in which nothing was done."""
        moments = [start, *(at for at in self.done if start < at < end), end]
        return max(after - before for before, after in pairwise(moments))

    def slowest(self, since: float) -> float:
        """Return how long the slowest took of those that were done from a moment on."""
        return max((seconds for at, seconds in self._times if at >= since), default=0.0)

    def recovered_at(self, phases: Phases, baseline: float, slots: int) -> float | None:
        """Return from when on it was as before.

        It must do as much, and not more: more would be the backlog, here or at the process that
        could not submit it.
        """
        usual = max(1.5 * self.most_left(phases.begun, phases.fault), 2 * slots)
        count = int((phases.end - CALM - phases.over) / STEP)
        for at in (phases.over + n * STEP for n in range(count + 1)):
            part = self.rate(at, at + CALM) / baseline
            if ENOUGH <= part <= NO_MORE and self.left(at) <= usual:
                return at
        return None


def judged(
    name: str,
    phases: Phases,
    *,
    offered: float,
    records: Sequence[Record],
    specs: Mapping[str, PoolSpec],
    lines: Sequence[AnyEntry],
    rows: Mapping[int, Task],
    exits: int = 0,
) -> Verdict:
    """Compare the records with the promises."""
    pace = Pace(records)
    # A fleet cannot do more than is submitted.
    baseline = min(median(pace.windows(phases.begun, phases.fault)), offered)
    slots = max(spec.max_concurrent for spec in specs.values())
    recovered = pace.recovered_at(phases, baseline, slots)
    since = phases.over if recovered is None else recovered
    replay = Replay(specs)
    replay.read(from_zero(list(records)))
    taken = [line for line in lines if isinstance(line, SubmitConfirmed)]
    tasks = {line.task for line in taken}
    completed = {task for task, row in rows.items() if row.status is Status.COMPLETED}
    ends = [record.task for record in records if record.event is Transition.COMPLETE]
    items = {line.item for line in taken}
    starts = sum(isinstance(line, AttemptBegan) for line in lines)
    begun = {line.task for line in lines if isinstance(line, AttemptBegan)}
    return Verdict(
        name=name,
        baseline=baseline,
        during=pace.rate(phases.fault, max(phases.over, phases.fault + WINDOW)) / baseline,
        standstill=pace.longest_pause(phases.fault, phases.end),
        recovery=None if recovered is None else recovered - phases.over,
        slowest=pace.slowest(phases.fault),
        after=median(pace.windows(since, phases.end)) / baseline,
        accepted=len(tasks),
        lost=len(tasks - completed) + len(items) - len(tasks),
        doubled=len(ends) - len(set(ends)) + max(len(rows) - len(items), 0),
        run_again=starts - len(begun),
        broken=[what for found in replay.broken.values() for what in found],
        limits_met=replay.reached.total(),
        exits=exits,
    )
