"""The recovery delay: after an outage of the store, others may renew before they count as dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.runtime.fleet.lease_times import RENEWALS_PER_LEASE

if TYPE_CHECKING:
    from collections.abc import Callable


class RecoveryDelay:
    """Before which moment this process recovers nothing, by the monotonic clock."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self.until = 0.0
        self._since: float | None = None
        """Since when other processes get extra time; None = they had all they need."""

    @property
    def is_over(self) -> bool:
        """Whether recovery may go on."""
        return self._steady() >= self.until

    def store_was_away(self, lease: float) -> None:
        """Give others time to renew: they could not renew any more than this process could.

        They get one lease in all: a store that is away again and again must not save the dead.
        """
        now = self._steady()
        if self._since is None or now > self.until + lease:
            self._since = now
        until = min(now + lease / RENEWALS_PER_LEASE, self._since + lease)
        self.until = max(self.until, until)

    def ended(self) -> None:
        """Note that the extra time is over."""
        self._since = None

    def wait_at_least(self, seconds: float) -> None:
        """Recover nothing for some seconds."""
        self.until = self._steady() + seconds
