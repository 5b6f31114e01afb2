"""Outages: one log record when the store becomes unreachable, one when it is back.

Workers, renewals, maintenance and polls of a process all use the store. When it is unreachable all
of them fail and retry; the log has one record for the begin of the outage and one for its end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, TypeVar

from millpond.core.log_fields import about
from millpond.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

log = logging.getLogger("millpond.store")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds before the store is asked again, doubling."""


class Outages:
    """Which parts of a process cannot use the store; any thread may call it."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._failing: set[object] = set()
        self._since = 0.0
        self._lock = threading.Lock()

    @property
    def reachable(self) -> bool:
        """Whether every part of the process could use the store when it last tried."""
        return not self._failing

    def failed(self, part: object, error: BaseException) -> bool:
        """Note that a part could not use the store, and log the first; False for another error."""
        if not isinstance(error, StoreError):
            return False
        with self._lock:
            first = not self._failing
            self._failing.add(part)
            if first:
                self._since = self._steady()
        if first:
            log.warning(
                "the store cannot be used (%s); it is tried again until it can",
                error,
                extra=about("store.unreachable", reason=type(error).__name__),
            )
        else:
            log.debug(
                "the store cannot be used here either: %s",
                error,
                extra=about("store.unreachable", reason=type(error).__name__),
            )
        return True

    def worked(self, part: object) -> None:
        """Note that a part could use the store; log the last one that recovers."""
        if part not in self._failing:
            return
        with self._lock:
            self._failing.discard(part)
            seconds = self._steady() - self._since
            over = not self._failing
        if over:
            log.warning(
                "the store can be used again, after %.1f s", seconds, extra=about("store.reachable")
            )

    def gone(self, part: object) -> None:
        """Forget a part that has ended."""
        with self._lock:
            self._failing.discard(part)


async def ask_until_answered(ask: Callable[[], Awaitable[T]], over: Callable[[], bool]) -> T:
    """Ask the store until it answers; raise its error only once `over` returns True."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await ask()
        except StoreError:
            if over():
                raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
