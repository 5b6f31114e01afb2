"""The tally of a worker: how its attempts ended, by the answers of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.event import SYSTEM
from millpond.core.lifecycle import Status, Transition

if TYPE_CHECKING:
    from millpond.core.settle import Settlement


class Tally:
    """Counts over the life of one worker, as its last log line says them."""

    __slots__ = ("cancelled", "completed", "failed", "given_back", "retried", "stale")

    def __init__(self) -> None:
        self.completed = 0
        """Tasks that it completed."""
        self.failed = 0
        """Tasks that failed for good while it ran them."""
        self.cancelled = 0
        """Tasks that were cancelled while it ran them."""
        self.retried = 0
        """Attempts that failed and are followed by another."""
        self.given_back = 0
        """Leases and claims that went back to the queue, uncharged."""
        self.stale = 0
        """Attempts that it ended too late: another worker had the task by then."""

    def ended(self, pool: str, status: Status) -> None:
        """Count a task that has ended, unless it is of the library itself: a firing or an event."""
        if pool.startswith(SYSTEM):
            return
        if status is Status.COMPLETED:
            self.completed += 1
        elif status is Status.FAILED:
            self.failed += 1
        elif status is Status.CANCELLED:
            self.cancelled += 1

    def queued_again(self, decided: Settlement) -> None:
        """Count an attempt that left its task in the queue."""
        if decided.event is Transition.RETRY:
            self.retried += 1
        else:
            self.given_back += 1

    def __str__(self) -> str:
        counts = [f"{self.completed} completed", f"{self.failed} failed"]
        counts += [f"{self.cancelled} cancelled"] if self.cancelled else []
        counts += [f"{self.retried} to be tried again"] if self.retried else []
        counts += [f"{self.given_back} given back"]
        counts += [f"{self.stale} ended too late"] if self.stale else []
        return ", ".join(counts)
