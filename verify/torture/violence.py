"""Violence: who is hurt next, how, and when. Seeded, so that a seed gives the same blows."""

from __future__ import annotations

import random
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verify.torture.plan import Orders

Name: TypeAlias = tuple[str, int]
"""A place in the fleet: a role and a number."""


class How(StrEnum):
    """A way to hurt a process."""

    KILL = "kill"
    """SIGKILL: nothing of it goes on, nothing is cleaned up."""
    FREEZE = "freeze"
    """SIGSTOP for longer than a lease, then SIGCONT: it comes back and does not know."""
    FREEZE_AND_KILL = "freeze and kill"
    """It never comes back, but for some time it looks as if it could."""
    STOP = "stop"
    """SIGTERM: it ends in good order and gives back what it holds."""


class Blow(msgspec.Struct, frozen=True):
    """What is done to one process, named by role and number, and for how long."""

    how: How
    role: str
    number: int
    seconds: float = 0.0


MOST_FROZEN = 2
"""Processes that are frozen at the same time, at most."""

SOON = 0.2
"""Seconds after which a blow that found nobody is tried again, on average."""


class Violence:
    """A stream of blows."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._dice = random.Random(f"{orders.seed}/violence")
        self._kill_at = self._pause(orders.kill_every)
        self._freeze_at = self._pause(orders.freeze_every)

    def due(
        self,
        elapsed: float,
        at_work: Sequence[Name],
        starting: Sequence[Name],
        frozen: int,
    ) -> list[Blow]:
        """Return the blows that are due.

        They hit mostly processes that are at work, and no worker while less than half of them are:
        where processes start slowly, nobody would ever come to work.
        """
        blows: list[Blow] = []
        if elapsed >= self._kill_at:
            how = How.STOP if self._dice.random() < 0.1 else How.KILL
            blows += self._blow(how, at_work, starting)
            self._kill_at = elapsed + self._pause(self._orders.kill_every if blows else SOON)
        if elapsed >= self._freeze_at:
            how = How.FREEZE_AND_KILL if self._dice.random() < 0.15 else How.FREEZE
            whole = [one for one in at_work if not _hit(one, blows)]
            freeze = self._blow(how, whole, ()) if frozen < MOST_FROZEN else []
            self._freeze_at = elapsed + self._pause(self._orders.freeze_every if freeze else SOON)
            blows += freeze
        return blows

    def _blow(self, how: How, at_work: Sequence[Name], starting: Sequence[Name]) -> list[Blow]:
        role = "submitter" if how is not How.STOP and self._dice.random() < 0.12 else "worker"
        victims = sorted(one for one in at_work if one[0] == role)
        if not victims or (role == "worker" and 2 * len(victims) < self._orders.workers):
            return []
        others = sorted(one for one in starting if one[0] == role)
        if others and self._dice.random() < 0.1:
            victims = others
        number = self._dice.choice(victims)[1]
        lease = self._orders.lease
        seconds = 0.0
        if how in (How.FREEZE, How.FREEZE_AND_KILL):
            seconds = self._dice.uniform(1.1 * lease, 1.6 * lease)
        return [Blow(how, role, number, seconds)]

    def _pause(self, average: float) -> float:
        return self._dice.uniform(0.3 * average, 1.7 * average)


class Weather:
    """What happens to the store itself: a stream of cuts and crashes."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self.dice = random.Random(f"{orders.seed}/weather")
        self._cut_at = self._pause() if orders.cut_every else inf
        # Spread over the time, and none so late that nobody would have to live with it.
        self._crashes = [
            orders.seconds * (place + self.dice.uniform(0.2, 0.8)) / orders.crashes
            for place in range(orders.crashes)
        ]

    def cut(self, elapsed: float) -> bool:
        """Return whether a connection is to be cut."""
        if elapsed < self._cut_at:
            return False
        self._cut_at = elapsed + self._pause()
        return True

    def crash(self, elapsed: float) -> float | None:
        """Return for how long the store is to be away, if it is to crash."""
        if not self._crashes or elapsed < self._crashes[0]:
            return None
        del self._crashes[0]
        return self.dice.uniform(0.0, 0.5 * self._orders.lease)

    def _pause(self) -> float:
        return self.dice.uniform(0.3, 1.7) * self._orders.cut_every


def _hit(who: Name, blows: list[Blow]) -> bool:
    return any((blow.role, blow.number) == who for blow in blows)
