"""Burials: what dead processes held is given up as soon as it is known that they are dead."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.control import DeclareDead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.runtime.fleet.shared_store import Presence
    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.maintenance")

AGAIN_AFTER = 1.0
"""Seconds until dead processes are looked at again that could not be buried."""


class Burials:
    """Has the workers of dead processes buried: whoever sees it first does it.

    That a second one comes does no harm: a worker is buried once, and no name is used again.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._at_it: set[str] = set()
        self._failing = False

    def found(self, owners: Sequence[str]) -> None:
        """These processes are gone; see to what they left."""
        presence = self._runtime.abilities.presence
        fresh = set(owners) - self._at_it
        if presence is None or not fresh or self._runtime.closed:
            return
        self._at_it |= fresh
        self._runtime.spawn(self._bury(fresh, presence))

    async def _bury(self, owners: set[str], presence: Presence) -> None:
        try:
            await self._give_up(owners, presence)
        except Exception as error:  # noqa: BLE001 - a store that is away comes back
            # Who could not be buried is found at every look: tried now and then, and said once.
            if not self._failing:
                log.warning("what dead processes held cannot be given to others (%s)", error)
            self._failing = True
            self._runtime.loop.call_later(AGAIN_AFTER, self._at_it.difference_update, owners)
            return
        self._failing = False
        self._at_it -= owners
        self._runtime.maintenance.somebody_died()

    async def _give_up(self, owners: set[str], presence: Presence) -> None:
        for worker in sorted(await self._runtime.view.workers()):
            if worker.rpartition("/")[0] in owners:
                answer = await self._runtime.store.control(DeclareDead(worker))
                self._runtime.heed(answer)
                self._runtime.failures.lost(answer.lost)
                if self._runtime.hooks.probes is not None:
                    self._runtime.hooks.probes.recovered(answer.count)
                log.warning("worker %s is gone; what it held is given to others", worker)
        for owner in sorted(owners):
            presence.forget(owner)
