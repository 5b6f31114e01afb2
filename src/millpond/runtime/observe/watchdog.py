"""The watchdog: reports a worker whose turn the store does not answer, ever more rarely."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from millpond.core.log_fields import about
from millpond.core.service import Service

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

log = logging.getLogger("millpond.watchdog")

PATIENCE, LONGEST_PATIENCE = 5.0, 300.0
"""Seconds without an answer after which a turn is stalled; doubling with each report."""


class Watched(Protocol):
    """A worker, as the watchdog sees it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def turns(self) -> int:
        """How many verbs the store has answered."""

    @property
    def in_turn(self) -> bool:
        """Whether a turn is under way, or to be tried again."""


class Watchdog(Service):
    """Checks a worker while it has something to do. An idle worker costs no timer."""

    _loop: asyncio.AbstractEventLoop
    _worker: Watched
    _stalled: Callable[[str], None]
    _timer: asyncio.TimerHandle | None = None
    _patience: float = PATIENCE
    _seen: int = 0

    @property
    def watching(self) -> bool:
        """Whether it will check again."""
        return self._timer is not None

    def watch(self) -> None:
        """Check in a while; a second call changes nothing."""
        if self._timer is None:
            self._patience = PATIENCE
            self._check_later()

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_later(self) -> None:
        self._seen = self._worker.turns
        self._timer = self._loop.call_later(self._patience, self._check)

    def _check(self) -> None:
        self._timer = None
        worker = self._worker
        if not worker.in_turn:
            return
        if worker.turns != self._seen:
            self._patience = PATIENCE
        else:
            log.warning(
                "worker %s is stalled: the store has answered nothing for %g s",
                worker.name,
                self._patience,
                extra=about("worker.stalled", worker=worker.name),
            )
            self._stalled(worker.name)
            self._patience = min(self._patience * 2, LONGEST_PATIENCE)
        self._check_later()
