"""Buckets: the state of the rates that a pool or a budget has, and refunds into them.

A start is charged with the weight of its task. When it ends, its actual weight is known, and the
difference is refunded or charged. A refund must not return what time has returned already: a bucket
that was full since the start owes nothing, and a refund would let the same room be used twice. So a
refund is at most the lowest debt since the start. A bucket remembers these low points, except those
that a later, lower one covers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from millpond.core import rate as gcra
from millpond.core.ticks import ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.rate import Rate

LOWS_KEPT = 16
"""How many low points a bucket remembers; more are merged, which makes refunds smaller."""


class Bucket(msgspec.Struct, array_like=True):
    """The state of one rate: when it is full again, and its recent low points."""

    tat: int = 0
    lows: list[tuple[int, int]] = []
    """(moment, debt just before a start), rising in both."""

    def owed(self, moment: int) -> int:
        """Return how far the bucket is from full, in microseconds."""
        return max(self.tat - moment, 0)

    def ready_at(self, rate: Rate, cost: int, now: float) -> float:
        """Return when `cost` may be taken: now or later."""
        return gcra.ready_at(rate, self.tat, cost, now)

    def take(self, rate: Rate, cost: int, now: float) -> None:
        """Take `cost` unconditionally; a start checks `ready_at` first."""
        if rate.of == "weight":
            self._note_low(ticks(now))
        self.tat = gcra.take(rate, self.tat, cost, now)

    def give_back(self, rate: Rate, cost: int) -> None:
        """Return the cost of a claim that was never started."""
        self.tat = gcra.give_back(rate, self.tat, cost)
        self._lower(0, len(self.lows), cost * rate.interval)

    def refund(self, rate: Rate, cost: int, since: float, now: float) -> None:
        """Return a part of the cost taken at `since` that time has not returned yet."""
        start, moment = ticks(since), ticks(now)
        later = next((i for i, low in enumerate(self.lows) if low[0] > start), len(self.lows))
        owed = [self.owed(moment), *(low[1] for low in self.lows[later : later + 1])]
        given = min(cost * rate.interval, *owed)
        self.tat -= given
        self._lower(later, len(self.lows), given)

    def _lower(self, first: int, last: int, by: int) -> None:
        """Lower the low points from `first` on, and forget those before that are no lower."""
        lows = [(at, max(owed - by, 0)) for at, owed in self.lows[first:last]]
        before = self.lows[:first]
        while before and lows and before[-1][1] >= lows[0][1]:
            before.pop()
        self.lows = before + lows

    def _note_low(self, moment: int) -> None:
        lows, owed = list(self.lows), self.owed(moment)
        while lows and lows[-1][1] >= owed:
            moment = max(moment, lows.pop()[0])
        if lows and lows[-1][0] >= moment:
            # Of several starts at one moment the first has the lowest debt.
            return
        lows.append((moment, owed))
        if len(lows) > LOWS_KEPT:
            # The two that differ least become one: at the later moment, with the lower debt.
            steps = [after[1] - low[1] for low, after in pairwise(lows)]
            least = steps.index(min(steps))
            lows[least : least + 2] = [(lows[least + 1][0], lows[least][1])]
        self.lows = lows


def fresh(rates: Sequence[Rate]) -> list[Bucket]:
    """Return full buckets for rates."""
    return [Bucket() for _ in rates]


def ready_at(rates: Sequence[Rate], buckets: Sequence[Bucket], weight: int, now: float) -> float:
    """Return when all rates let a start of `weight` happen: now or later."""
    moments = (
        bucket.ready_at(rate, rate.cost(weight), now)
        for rate, bucket in zip(rates, buckets, strict=True)
    )
    return max(moments, default=now)


def charge(rates: Sequence[Rate], buckets: Sequence[Bucket], weight: int, now: float) -> None:
    """Charge a start of `weight` to all rates."""
    for rate, bucket in zip(rates, buckets, strict=True):
        bucket.take(rate, rate.cost(weight), now)


def correct(
    rates: Sequence[Rate],
    buckets: Sequence[Bucket],
    weight: int,
    actual: int,
    *,
    since: float,
    now: float,
) -> None:
    """Correct a start at `since` from `weight` to `actual`: refund or charge the difference.

    Weight above the charged one is owed from now on; nothing starts until it fits again.
    """
    for rate, bucket in zip(rates, buckets, strict=True):
        if rate.of != "weight":
            continue
        if actual < weight:
            bucket.refund(rate, weight - actual, since, now)
        elif actual > weight:
            bucket.take(rate, actual - weight, now)


def taken_over(
    old: Sequence[Rate], buckets: Sequence[Bucket], rates: Sequence[Rate], now: float
) -> list[Bucket]:
    """Return the buckets of changed rates: an unchanged rate keeps its bucket, a new one is full.

    A new bucket refunds nothing of starts before it.
    """
    known = dict(zip(old, buckets, strict=True))
    return [known.get(rate) or Bucket(lows=[(ticks(now) + 1, 0)]) for rate in rates]
