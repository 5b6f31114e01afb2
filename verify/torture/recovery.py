"""Recovery: how long the tasks of a killed worker waited until somebody took them back."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

import msgspec

from verify.torture.ledger import Began, Born, Ended, Fell, Gone, Leads, Started, Struck

if TYPE_CHECKING:
    from verify.torture.evidence import Evidence
    from verify.torture.replay import Held, Replay

STANDSTILL = 0.6
"""Seconds without any record, three beats of the pulse, that show that nobody could write."""

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
    was a worker that nobody had hurt, and nobody hurt the leader. Where deaths are known by leases,
    it is the leader that takes back what the dead held."""

    @property
    def disturbed(self) -> bool:
        """Whether anything was in the way."""
        return self.in_peace < self.seconds


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One process: the owner's name it had in the store, and how it was killed."""

    pid: int
    owner: str
    killed_at: float | None


def lives(evidence: Evidence) -> list[Life]:
    """Return every process that opened the store; a pid may have been used twice."""
    found: list[Life] = []
    born: dict[int, Born] = {}
    struck: dict[int, float] = {}
    last: dict[int, float] = {}
    for line in evidence.lines:
        match line:
            case Started():
                born.pop(line.child, None)
                struck.pop(line.child, None)
            case Born():
                born[line.pid] = line
            case Began() | Ended():
                last[line.pid] = line.wall
            case Struck(how="killed"):
                struck[line.child] = line.wall
            case Gone() if line.child in born:
                by_itself = last.get(line.child) if line.code < 0 and not line.asked else None
                found.append(
                    Life(
                        pid=line.child,
                        owner=born.pop(line.child).owner,
                        killed_at=struck.pop(line.child, by_itself),
                    )
                )
            case _:
                pass
    return found


def hurt_leaders(evidence: Evidence) -> list[float]:
    """Return when processes were killed, frozen or told to stop while they led maintenance."""
    found: list[float] = []
    leader: int | None = None
    for line in evidence.lines:
        match line:
            case Leads():
                leader = line.pid
            case Struck(how="killed" | "frozen" | "stopped") | Gone() if line.child == leader:
                found.append(line.wall)
                leader = None
            case _:
                pass
    return found


def unhurt_workers(evidence: Evidence) -> list[Span]:
    """Return when each worker was there, until it was first hurt."""
    found: list[Span] = []
    born: dict[int, float] = {}
    for line in evidence.lines:
        match line:
            case Born(role="worker"):
                born[line.pid] = line.wall
            case Struck() | Gone() if line.child in born:
                found.append(Span(born.pop(line.child), line.wall))
            case _:
                pass
    return [*found, *(Span(since, inf) for since in born.values())]


def frozen_spans(evidence: Evidence) -> list[Span]:
    """Return when processes were frozen."""
    frozen: dict[int, float] = {}
    spans: list[Span] = []
    for line in evidence.of(Struck):
        if line.how == "frozen":
            frozen[line.child] = line.wall
        elif line.child in frozen:
            spans.append(Span(frozen.pop(line.child), line.wall))
    return spans


def standstills(evidence: Evidence) -> list[Span]:
    """Return when nothing at all was recorded for several beats of the pulse."""
    beating = min(
        (r.at for r in evidence.records if r.pool == "pulse" and r.detail == "pause"), default=0.0
    )
    times = [record.at for record in evidence.records if record.at >= beating]
    return [
        Span(before, after) for before, after in pairwise(times) if after - before >= STANDSTILL
    ]


def locked_by_the_frozen(evidence: Evidence) -> list[Span]:
    """Return when nobody could write because a frozen process had the lock of the store.

    Nothing else stops every process at once, for about as long as one of them was frozen.
    """
    frozen = frozen_spans(evidence)
    return [
        span
        for span in standstills(evidence)
        if any(span.shared(one) > MOSTLY * span.seconds for one in frozen)
    ]


def nobody_could_write(evidence: Evidence) -> list[Span]:
    """Return when nobody could write, through no fault of his own.

    When the store is back its leader gives everybody the time to say that he is alive: a lease.
    """
    return [*locked_by_the_frozen(evidence), *away(evidence)]


def away(evidence: Evidence) -> list[Span]:
    """Return when the store was away, and the lease after that."""
    found: list[Span] = []
    since: float | None = None
    for line in evidence.of(Fell):
        if line.how == "crash":
            since = line.wall
        elif line.how == "back" and since is not None:
            found.append(Span(since, line.wall + evidence.orders.lease))
            since = None
    return found


def obstacles(evidence: Evidence) -> list[Span]:
    """Return when nobody could be expected to take back what a dead worker held."""
    found = nobody_could_write(evidence)
    if not evidence.orders.sees_deaths:
        found += [Span(at, at) for at in hurt_leaders(evidence)]
        found += gaps(Span(-inf, inf), unhurt_workers(evidence))
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
    by_owner: dict[str, list[Held]] = {}
    for held in replay.held.values():
        by_owner.setdefault(held.worker.rpartition("/")[0], []).append(held)
    in_the_way = obstacles(evidence)
    found = []
    for life in lives(evidence):
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


def _taken_back(held: list[Held], killed_at: float, evidence: Evidence) -> list[float]:
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
