"""Ledgers of the charges to a rate, entry by entry, for the checks.

A bucket keeps one number. A ledger keeps the entries, so that a weight that is corrected later is
corrected where it was charged, and the promise can be checked as if it had been known all along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from millpond.core.rate import Rate

_CLOSE = 1e-6
"""Rounding allowed to sums of intervals; far below any interval a Rate can have."""


class Charge(msgspec.Struct):
    """One entry; `task` is None once nothing can correct it any more."""

    at: float
    cost: float
    task: int | None


class Ledger:
    """The charges to one rate."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._at = 0.0
        self._owed = 0.0
        self._charges: list[Charge] = []

    def start(self, task: int, weight: int, now: float) -> bool:
        """Charge a start; return whether the rate allowed it."""
        by_weight = self.rate.of == "weight"
        self._charges.append(Charge(now, self.rate.cost(weight), task if by_weight else None))
        allowed = self._owed_at(now) <= self.rate.depth + _CLOSE
        self._fold()
        return allowed

    def give_back(self, weight: int, now: float) -> None:
        """Take back what a claim that was never started was charged."""
        self._charges.append(Charge(now, -self.rate.cost(weight), None))
        self._fold()

    def correct(self, task: int, actual: int, now: float) -> None:
        """Let the last start of a task have cost what it used; more than thought is owed now."""
        charge = next((one for one in reversed(self._charges) if one.task == task), None)
        if charge is None:
            return
        if actual <= charge.cost:
            charge.cost = actual
        else:
            self._charges.append(Charge(now, actual - charge.cost, None))
        self.close(task)

    def close(self, task: int) -> None:
        """Note that an attempt is over: its charge stands."""
        for charge in self._charges:
            if charge.task == task:
                charge.task = None
        self._fold()

    def left(self, now: float) -> float:
        """Return how much could be taken at once."""
        return self.rate.depth - self._owed_at(now)

    def _owed_at(self, now: float) -> float:
        at, owed = self._at, self._owed
        for charge in self._charges:
            at, owed = charge.at, self._drained(owed, charge.at - at) + charge.cost
        return self._drained(owed, now - at)

    def _drained(self, owed: float, seconds: float) -> float:
        return max(owed - seconds * self.rate.n / self.rate.per, 0.0)

    def _fold(self) -> None:
        """Sum up the entries that stand, as far as none before them can change."""
        while self._charges and self._charges[0].task is None:
            charge = self._charges.pop(0)
            self._owed = max(self._drained(self._owed, charge.at - self._at) + charge.cost, 0.0)
            self._at = charge.at
