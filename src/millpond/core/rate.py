"""Rates as GCRA: one number of state, exact over any window.

`Rate(n, per, burst)` promises: over any time t at most burst + t*n/per starts. The state is the
*theoretical arrival time* (TAT) of the generic cell rate algorithm (ITU-T I.371): the moment at
which the bucket is full again. Taking a cost moves it forward by cost*per/n; returning an unstarted
claim moves it back. It is kept in whole microseconds, rounded so that the promise holds: sums of
floats would lose starts of a burst, and differ between stores.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Literal

import msgspec

from millpond.core import validation as check
from millpond.core.bounds import DAY, MAX_SECONDS
from millpond.core.ticks import MICROSECONDS, seconds, ticks
from millpond.errors import ConfigError

if TYPE_CHECKING:
    from millpond.core.validation import Seconds

FASTEST = 1_000_000


class Rate(msgspec.Struct, frozen=True):
    """At most `n` starts (or weight units) `per` seconds, saving up to `burst` while idle."""

    n: int
    per: float = 1.0
    burst: int | None = None
    of: Literal["starts", "weight"] = "starts"

    if TYPE_CHECKING:

        def __init__(
            self,
            n: int,
            per: Seconds = 1.0,
            burst: int | None = None,
            of: Literal["starts", "weight"] = "starts",
        ) -> None: ...

    def __post_init__(self) -> None:
        check.integer("rate.n", self.n, least=1)
        msgspec.structs.force_setattr(self, "per", check.seconds("rate.per", self.per, above=0.0))
        if self.burst is not None:
            check.integer("rate.burst", self.burst, least=1)
        if self.of not in ("starts", "weight"):
            raise ConfigError("rate.of", self.of, 'must be "starts" or "weight"')
        if self.depth * self.interval > MAX_SECONDS * MICROSECONDS:
            years = MAX_SECONDS / (365 * DAY)
            reason = f"would take more than {years:g} years to refill"
            raise ConfigError("rate.burst", self.depth, reason)
        if self.n / self.per > FASTEST:
            raise ConfigError("rate.n", self.n, f"per {self.per:g} s is above {FASTEST:,} a second")

    @property
    def interval(self) -> int:
        """Microseconds that one unit costs, rounded up."""
        return ceil(self.per * MICROSECONDS / self.n)

    @property
    def depth(self) -> int:
        """How many units may be taken at once after a rest; `n` unless `burst` says otherwise."""
        return self.n if self.burst is None else self.burst

    def cost(self, weight: int) -> int:
        """Return what a start of `weight` takes from the bucket."""
        return weight if self.of == "weight" else 1


def ready_at(rate: Rate, tat: int, cost: int, now: float) -> float:
    """Return when `cost` (at most `rate.depth`) may be taken: `now` or later.

    Asking again at that very moment succeeds: a loop that sleeps until then cannot spin.
    """
    moment = tat + (cost - rate.depth) * rate.interval
    return now if moment <= ticks(now) else seconds(moment)


def take(rate: Rate, tat: int, cost: int, now: float) -> int:
    """Return the state after taking `cost` at `now`; the caller checks `ready_at` first."""
    return max(tat, ticks(now)) + cost * rate.interval


def give_back(rate: Rate, tat: int, cost: int) -> int:
    """Return the state after an unstarted claim gave its cost back."""
    return tat - cost * rate.interval


def full_at(tat: int) -> float:
    """Return when the bucket is full again, and its state no longer matters."""
    return seconds(tat)
