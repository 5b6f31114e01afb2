"""The watchdog: a loop that stands still is reported as stalled, ever more rarely, and once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from millpond.runtime.worker.worker import Worker

log = logging.getLogger("millpond.watchdog")

PATIENCE, LONGEST_PATIENCE = 5.0, 300.0
"""Seconds a turn may take before it is called stalled; doubling with each report."""


class Watchdog:
    """Looks at a worker while it has something to do. An idle worker costs no timer."""

    __slots__ = ("_patience", "_seen", "_timer", "_worker")

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._timer: asyncio.TimerHandle | None = None
        self._patience = PATIENCE
        self._seen = 0

    @property
    def watching(self) -> bool:
        """Whether it will look again."""
        return self._timer is not None

    def watch(self) -> None:
        """Look in a while; asking twice is asking once."""
        if self._timer is None:
            self._patience = PATIENCE
            self._look_later()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._seen = self._worker.turns
        self._timer = self._worker.loop.call_later(self._patience, self._look)

    def _look(self) -> None:
        self._timer = None
        worker = self._worker
        if not worker.at_it:
            return
        if worker.turns != self._seen:
            self._patience = PATIENCE
        else:
            log.warning(
                "worker %s is stalled: no verb was answered for %g s",
                worker.name,
                self._patience,
            )
            worker.runtime.stalled(worker.name)
            self._patience = min(self._patience * 2, LONGEST_PATIENCE)
        self._look_later()
