"""Burials: what dead processes held is given up as soon as it is known that they are dead."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.control import Bury

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.runtime.abilities import Presence
    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.maintenance")


class Burials:
    """Has the workers of dead processes buried: whoever sees it first does it.

    That a second one comes does no harm: a worker is buried once, and no name is used again.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._at_it: set[str] = set()

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
            for worker in sorted(await self._runtime.view.workers()):
                owner = worker.rpartition("/")[0]
                if owner in owners:
                    self._runtime.heed(await self._runtime.store.control(Bury(worker)))
                    log.warning("worker %s is gone; what it held is given to others", worker)
            for owner in sorted(owners):
                presence.forget(owner)
        finally:
            # Whoever could not be buried is found again at the next look.
            self._at_it -= owners
        self._runtime.maintenance.somebody_died()
