"""Leadership: of all processes that use a store, one does what time alone does.

It leads for two thirds of a lease and asks again after each third. So whenever a store was away
for so long that the leases of the living may have run out, the lead has run out before them, and
a `recover` that was on its way all that time is refused: the leader asks anew, sees that it took
long, and gives everybody time to renew first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.control import ClaimLeadership
from millpond.runtime.fleet.renew import SLOW

if TYPE_CHECKING:
    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.maintenance")

LEADS_FOR = 2 / 3
"""The part of a lease for which one leads; asked for again when half of it is over."""


class Leadership:
    """Whether this process leads, and under which generation."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ask_at = 0.0
        self.leads = not runtime.abilities.elects
        self.generation: int | None = None
        """What `recover` is fenced with; None where nobody else could lead."""

    @property
    def ask_at(self) -> float | None:
        """When to ask again, by the steady clock; None = never."""
        if not self._runtime.abilities.elects or not self._runtime.workers:
            return None
        return self._ask_at

    def ask_now(self) -> None:
        """The leader may be gone."""
        if not self.leads:
            self._ask_at = 0.0

    def deposed(self) -> None:
        """Somebody else leads, or the lead has run out: stand by, and ask."""
        log.info("%s leads no more", self._runtime.owner)
        self.leads = False
        self._ask_at = 0.0

    async def attend(self) -> bool:
        """Take the lead or go on leading, when it is time for that; return whether it leads."""
        runtime = self._runtime
        if not runtime.abilities.elects:
            return True
        if not runtime.workers:
            # Who holds nothing in the store is not known there, and cannot lead.
            self.leads = False
            return False
        sent = runtime.steady()
        if sent < self._ask_at:
            return self.leads
        lease = min(worker.lease for worker in runtime.workers)
        led, self.leads = self.leads, False
        answer = await runtime.store.control(ClaimLeadership(runtime.owner, LEADS_FOR * lease))
        self._ask_at = sent + LEADS_FOR * lease / 2
        self.leads, self.generation = bool(answer.count), answer.revision
        if runtime.steady() - sent > SLOW * lease:
            runtime.maintenance.store_was_away(lease)
        if self.leads and not led:
            log.info("%s leads maintenance, generation %d", runtime.owner, self.generation)
            runtime.maintenance.took_over()
        return self.leads
