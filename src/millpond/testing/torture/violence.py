"""Violence: who is hurt next, how, and when. Seeded, so that a seed gives the same blows."""

from __future__ import annotations

import random
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.testing.torture.plan import Orders


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


class Violence:
    """A stream of blows."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._dice = random.Random(f"{orders.seed}/violence")
        self._kill_at = self._pause(orders.kill_every)
        self._freeze_at = self._pause(orders.freeze_every)

    def due(self, elapsed: float, moving: Sequence[tuple[str, int]], frozen: int) -> list[Blow]:
        """Return the blows that are due, among processes that are up and move."""
        blows = []
        if elapsed >= self._kill_at:
            self._kill_at = elapsed + self._pause(self._orders.kill_every)
            how = How.STOP if self._dice.random() < 0.1 else How.KILL
            blows += self._blow(how, moving)
        if elapsed >= self._freeze_at:
            self._freeze_at = elapsed + self._pause(self._orders.freeze_every)
            if frozen < MOST_FROZEN:
                how = How.FREEZE_AND_KILL if self._dice.random() < 0.15 else How.FREEZE
                blows += self._blow(how, [one for one in moving if not _hit(one, blows)])
        return blows

    def _blow(self, how: How, moving: Sequence[tuple[str, int]]) -> list[Blow]:
        role = "submitter" if how is not How.STOP and self._dice.random() < 0.12 else "worker"
        victims = sorted(one for one in moving if one[0] == role)
        if not victims:
            return []
        number = self._dice.choice(victims)[1]
        lease = self._orders.lease
        seconds = 0.0
        if how in (How.FREEZE, How.FREEZE_AND_KILL):
            seconds = self._dice.uniform(1.1 * lease, 1.6 * lease)
        return [Blow(how, role, number, seconds)]

    def _pause(self, average: float) -> float:
        return self._dice.uniform(0.3 * average, 1.7 * average)


def _hit(who: tuple[str, int], blows: list[Blow]) -> bool:
    return any((blow.role, blow.number) == who for blow in blows)
