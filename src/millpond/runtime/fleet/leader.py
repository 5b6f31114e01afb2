"""Leadership: of all processes that use a store, one does the maintenance.

It leads for two thirds of a lease and renews after each third. So whenever a store was away for so
long that leases of live workers may have expired, the leadership has expired before them, and the
store refuses a `recover` that was on its way all that time. The leader then asks again, sees that
it took long, and gives all workers time to renew first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.control import ClaimLeadership
from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.runtime.fleet.lease_times import SLOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.runtime.environment import Environment
    from millpond.runtime.fleet.recovery_delay import RecoveryDelay
    from millpond.runtime.jobs.job import WorkerProtocol

log = logging.getLogger("millpond.maintenance")

LEADS_FOR = 2 / 3
"""The part of a lease for which a process leads; it asks again when half of it is over."""


class Leadership(Service):
    """Whether this process leads, and under which generation."""

    _env: Environment
    _workers: Sequence[WorkerProtocol]
    _delay: RecoveryDelay
    _ask_at: float = 0.0
    generation: int | None = None
    """The fence of `recover`; None where no other process could lead."""

    def __post_init__(self) -> None:
        self._elects = self._env.shared_store.elects
        self.leads = not self._elects

    @property
    def ask_at(self) -> float | None:
        """When to ask again, by the monotonic clock; None = never."""
        return self._ask_at if self._elects and self._workers else None

    def ask_now(self) -> None:
        """Ask soon: the leader may be dead."""
        if not self.leads:
            self._ask_at = 0.0

    def lost(self) -> None:
        """Note that another process leads, or that the leadership has expired; ask again."""
        log.info(
            "%s lost maintenance leadership",
            self._env.owner,
            extra=about("leader.lost", owner=self._env.owner),
        )
        self.leads = False
        self._ask_at = 0.0

    async def renew(self) -> bool:
        """Take or renew the leadership if it is time; return whether this process became leader."""
        if not self._elects:
            return False
        if not self._workers:
            # The store knows no worker of this process, so it cannot lead.
            self.leads = False
            return False
        env, sent = self._env, self._env.steady()
        if sent < self._ask_at:
            return False
        lease = min(worker.lease for worker in self._workers)
        led, self.leads = self.leads, False
        answer = await env.store.control(ClaimLeadership(env.owner, LEADS_FOR * lease))
        self._ask_at = sent + LEADS_FOR * lease / 2
        self.leads, self.generation = bool(answer.count), answer.revision
        if env.steady() - sent > SLOW * lease:
            self._delay.store_was_away(lease)
        if self.leads and not led:
            log.info(
                "%s leads maintenance, generation %d",
                env.owner,
                self.generation,
                extra=about("leader.elected", owner=env.owner, generation=self.generation),
            )
            return True
        return False
