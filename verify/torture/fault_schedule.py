"""Schedules of faults: processes to kill, freeze or stop, and faults of the store. Seeded."""

from __future__ import annotations

import random
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verify.torture.plan import Settings

Name: TypeAlias = tuple[str, int]
"""A process of the fleet: its role and number."""


class FaultKind(StrEnum):
    """A fault of a process."""

    KILL = "kill"
    """SIGKILL: the process ends without cleanup."""
    FREEZE = "freeze"
    """SIGSTOP for longer than a lease, then SIGCONT: it continues with lost leases."""
    FREEZE_AND_KILL = "freeze and kill"
    """SIGSTOP, then SIGKILL: it is dead, but looks only frozen for some time."""
    STOP = "stop"
    """SIGTERM: it drains and gives back its tasks."""


class Fault(msgspec.Struct, frozen=True):
    """A fault of one process, and how long it lasts."""

    how: FaultKind
    role: str
    number: int
    seconds: float = 0.0


MOST_FROZEN = 2
"""Most processes frozen at the same time."""

SOON = 0.2
"""Average seconds until a fault without a victim is tried again."""


class ProcessFaults:
    """The schedule of faults of processes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dice = random.Random(f"{settings.seed}/violence")
        self._kill_at = self._pause(settings.kill_every)
        self._freeze_at = self._pause(settings.freeze_every)

    def due(
        self,
        elapsed: float,
        at_work: Sequence[Name],
        starting: Sequence[Name],
        frozen: int,
    ) -> list[Fault]:
        """Return the faults that are due.

        They hit mostly processes at work, and no worker while less than half of the workers are at
        work: where processes start slowly, none would ever finish starting.
        """
        faults: list[Fault] = []
        if elapsed >= self._kill_at:
            how = FaultKind.STOP if self._dice.random() < 0.1 else FaultKind.KILL
            faults += self._fault(how, at_work, starting)
            self._kill_at = elapsed + self._pause(self._settings.kill_every if faults else SOON)
        if elapsed >= self._freeze_at:
            how = FaultKind.FREEZE_AND_KILL if self._dice.random() < 0.15 else FaultKind.FREEZE
            full = [one for one in at_work if not _hit(one, faults)]
            freeze = self._fault(how, full, ()) if frozen < MOST_FROZEN else []
            self._freeze_at = elapsed + self._pause(self._settings.freeze_every if freeze else SOON)
            faults += freeze
        return faults

    def _fault(
        self, how: FaultKind, at_work: Sequence[Name], starting: Sequence[Name]
    ) -> list[Fault]:
        role = "submitter" if how is not FaultKind.STOP and self._dice.random() < 0.12 else "worker"
        victims = sorted(one for one in at_work if one[0] == role)
        if not victims or (role == "worker" and 2 * len(victims) < self._settings.workers):
            return []
        others = sorted(one for one in starting if one[0] == role)
        if others and self._dice.random() < 0.1:
            victims = others
        number = self._dice.choice(victims)[1]
        lease = self._settings.lease
        seconds = 0.0
        if how in (FaultKind.FREEZE, FaultKind.FREEZE_AND_KILL):
            seconds = self._dice.uniform(1.1 * lease, 1.6 * lease)
        return [Fault(how, role, number, seconds)]

    def _pause(self, average: float) -> float:
        return self._dice.uniform(0.3 * average, 1.7 * average)


class StoreFaults:
    """The schedule of faults of the store: cut connections and crashes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.dice = random.Random(f"{settings.seed}/weather")
        self._cut_at = self._pause() if settings.cut_every else inf
        # Spread over the time, and none so late that no work follows.
        self._crashes = [
            settings.seconds * (place + self.dice.uniform(0.2, 0.8)) / settings.crashes
            for place in range(settings.crashes)
        ]

    def cut(self, elapsed: float) -> bool:
        """Return whether a cut of a connection is due."""
        if elapsed < self._cut_at:
            return False
        self._cut_at = elapsed + self._pause()
        return True

    def crash(self, elapsed: float) -> float | None:
        """Return how long the store stays down, if a crash is due; else None."""
        if not self._crashes or elapsed < self._crashes[0]:
            return None
        del self._crashes[0]
        return self.dice.uniform(0.0, 0.5 * self._settings.lease)

    def _pause(self) -> float:
        return self.dice.uniform(0.3, 1.7) * self._settings.cut_every


def _hit(who: Name, faults: list[Fault]) -> bool:
    return any((fault.role, fault.number) == who for fault in faults)
