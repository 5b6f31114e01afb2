"""Measure how long the tasks of a killed worker waited until another process recovered them."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

import msgspec

from verify.torture.ledger import (
    AttemptBegan,
    AttemptEnded,
    LeadershipTaken,
    ProcessEnded,
    ProcessStarted,
    SignalSent,
    StoreFaulted,
    StoreOpened,
)

if TYPE_CHECKING:
    from verify.torture.evidence import Evidence
    from verify.torture.replay import LeaseHeld, Replay

STANDSTILL = 0.6
"""Seconds without any record, three beats of the pulse: no process could write."""

MOSTLY = 0.7
"""The part of a standstill during which the process that caused it was seen to be frozen."""


class Span(msgspec.Struct, frozen=True):
    """A time during which something was so, by the wall clock."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.end - self.start

    def shared(self, other: Span) -> float:
        """Return for how many seconds both were so."""
        return max(min(self.end, other.end) - max(self.start, other.start), 0.0)


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was killed while it held leases, and how long they stayed with it."""

    pid: int
    at: float
    leases: int
    seconds: float
    """From the kill to the record that took back the last of them."""
    in_peace: float
    """The longest part of it in which nothing was in the way: the store could be written to, there
    was a worker without faults, and the leader had no fault. Where deaths are known by leases,
    it is the leader that takes back what the dead held."""

    @property
    def disturbed(self) -> bool:
        """Whether anything was in the way."""
        return self.in_peace < self.seconds


class ProcessLife(msgspec.Struct, frozen=True, kw_only=True):
    """One process: the owner's name it had in the store, and how it was killed."""

    pid: int
    owner: str
    killed_at: float | None


def process_lives(evidence: Evidence) -> list[ProcessLife]:
    """Return every process that opened the store; a pid may have been used twice."""
    found: list[ProcessLife] = []
    born: dict[int, StoreOpened] = {}
    struck: dict[int, float] = {}
    last: dict[int, float] = {}
    for line in evidence.lines:
        match line:
            case ProcessStarted():
                born.pop(line.child, None)
                struck.pop(line.child, None)
            case StoreOpened():
                born[line.pid] = line
            case AttemptBegan() | AttemptEnded():
                last[line.pid] = line.wall
            case SignalSent(how="killed"):
                struck[line.child] = line.wall
            case ProcessEnded() if line.child in born:
                by_itself = last.get(line.child) if line.code < 0 and not line.expected else None
                found.append(
                    ProcessLife(
                        pid=line.child,
                        owner=born.pop(line.child).owner,
                        killed_at=struck.pop(line.child, by_itself),
                    )
                )
            case _:
                pass
    return found


def leaders_with_faults(evidence: Evidence) -> list[float]:
    """Return when processes were killed, frozen or stopped while they led maintenance."""
    found: list[float] = []
    leader: int | None = None
    for line in evidence.lines:
        match line:
            case LeadershipTaken():
                leader = line.pid
            case SignalSent(how="killed" | "frozen" | "stopped") | ProcessEnded() if (
                line.child == leader
            ):
                found.append(line.wall)
                leader = None
            case _:
                pass
    return found


def undisturbed_workers(evidence: Evidence) -> list[Span]:
    """Return when each worker was there, until it was first hurt."""
    found: list[Span] = []
    born: dict[int, float] = {}
    for line in evidence.lines:
        match line:
            case StoreOpened(role="worker"):
                born[line.pid] = line.wall
            case SignalSent() | ProcessEnded() if line.child in born:
                found.append(Span(born.pop(line.child), line.wall))
            case _:
                pass
    return [*found, *(Span(since, inf) for since in born.values())]


def frozen_spans(evidence: Evidence) -> list[Span]:
    """Return when processes were frozen."""
    frozen: dict[int, float] = {}
    spans: list[Span] = []
    for line in evidence.of(SignalSent):
        if line.how == "frozen":
            frozen[line.child] = line.wall
        elif line.child in frozen:
            spans.append(Span(frozen.pop(line.child), line.wall))
    return spans


def write_pauses(evidence: Evidence) -> list[Span]:
    """Return when nothing at all was recorded for several beats of the pulse."""
    beating = min(
        (r.at for r in evidence.records if r.pool == "pulse" and r.detail == "pause"), default=0.0
    )
    times = [record.at for record in evidence.records if record.at >= beating]
    return [
        Span(before, after) for before, after in pairwise(times) if after - before >= STANDSTILL
    ]


def locked_by_frozen_processes(evidence: Evidence) -> list[Span]:
    """Return when no process could write because a frozen one had the lock of the store.

    Nothing else stops every process at once, for about as long as one of them was frozen.
    """
    frozen = frozen_spans(evidence)
    return [
        span
        for span in write_pauses(evidence)
        if any(span.shared(one) > MOSTLY * span.seconds for one in frozen)
    ]


def write_outages(evidence: Evidence) -> list[Span]:
    """Return when no process could write.

    When the store is back, its leader waits for one lease, so that workers can renew.
    """
    return [*locked_by_frozen_processes(evidence), *away(evidence)]


def away(evidence: Evidence) -> list[Span]:
    """Return when the store was away, and the lease after that."""
    found: list[Span] = []
    since: float | None = None
    for line in evidence.of(StoreFaulted):
        if line.how == "crash":
            since = line.wall
        elif line.how == "back" and since is not None:
            found.append(Span(since, line.wall + evidence.settings.lease))
            since = None
    return found


def obstacles(evidence: Evidence) -> list[Span]:
    """Return when no process could recover the tasks of a dead worker."""
    found = write_outages(evidence)
    if not evidence.settings.sees_deaths:
        found += [Span(at, at) for at in leaders_with_faults(evidence)]
        found += gaps(Span(-inf, inf), undisturbed_workers(evidence))
    return found


def gaps(within: Span, spans: list[Span]) -> list[Span]:
    """Return the parts of a time that none of the others is in."""
    found, at = [], within.start
    for one in sorted(spans, key=lambda span: span.start):
        if one.end < within.start or one.start > within.end:
            continue
        if one.start > at:
            found.append(Span(at, one.start))
        at = max(at, one.end)
    return [*found, Span(at, within.end)] if at < within.end else found


def longest_between(within: Span, spans: list[Span]) -> float:
    """Return how long the longest of these parts is."""
    return max((part.seconds for part in gaps(within, spans)), default=0.0)


def recoveries(evidence: Evidence, replay: Replay) -> list[Recovery]:
    """Return how the leases of each killed worker were recovered, if it held any."""
    by_owner: dict[str, list[LeaseHeld]] = {}
    for held in replay.held.values():
        by_owner.setdefault(held.worker.rpartition("/")[0], []).append(held)
    in_the_way = obstacles(evidence)
    found = []
    for life in process_lives(evidence):
        if life.killed_at is None:
            continue
        taken_back = _taken_back(by_owner.get(life.owner, []), life.killed_at, evidence)
        if taken_back:
            last = max(taken_back)
            span = Span(life.killed_at, last)
            found.append(
                Recovery(
                    pid=life.pid,
                    at=life.killed_at,
                    leases=len(taken_back),
                    seconds=last - life.killed_at,
                    in_peace=longest_between(span, in_the_way),
                )
            )
    return found


def _taken_back(held: list[LeaseHeld], killed_at: float, evidence: Evidence) -> list[float]:
    """Return when each lease that a worker held at its death was lost, by the wall clock."""
    start = evidence.records[0].at
    ends = (start + one.end.at for one in held if one.end is not None and one.lost)
    return [end for end in ends if end >= killed_at]


def percentile(values: list[float], part: float) -> float:
    """Return the smallest value that `part` of all values do not exceed; 0 where there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    ranks = [(place + 1) / len(ordered) for place in range(len(ordered))]
    return ordered[min(bisect_left(ranks, part), len(ordered) - 1)]
