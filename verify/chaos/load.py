"""The load of a chaos: one pool whose capacity is known, and how much of that is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.backoff import Retry

if TYPE_CHECKING:
    from millpond.pool.millpond import Millpond
    from millpond.pool.pool import Pool

POOL, FUNCTION = "chaos", "work"

PATIENT = Retry(attempts=50, initial=0.05, factor=1.5, max_delay=0.5, jitter=0.5)
"""So many attempts that no task fails of the kills it is caught in."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the processes: the store, and the size of the work."""

    url: str
    home: str
    slots: int = 16
    """What the pool runs at once, in the whole fleet."""
    per_key: int = 2
    keys: int = 16
    seconds: float = 0.2
    """How long a task takes; so the most that can be done is known, whatever the machine."""
    offered: float = 0.5
    """The share of the capacity that is submitted: less on a shared machine."""
    workers: int = 3
    lease: float = 4.0
    """Seconds after which the dead are known; the default of a worker is 30."""

    @property
    def capacity(self) -> float:
        """Tasks in a second that the fleet can do at the very most."""
        return self.slots / self.seconds

    @property
    def rate(self) -> float:
        """Tasks in a second that are submitted."""
        return self.offered * self.capacity

    def key_of(self, item: int) -> str:
        """Return the key of an item: they come in no order, and meet each other."""
        return str((item * 2_654_435_761 >> 7) % self.keys)

    def declare(self, mp: Millpond) -> Pool:
        """Declare the pool, as every process does."""
        return mp.pool(
            POOL, max_concurrent=self.slots, max_per_key=self.per_key, retry=PATIENT, prefetch=0
        )
