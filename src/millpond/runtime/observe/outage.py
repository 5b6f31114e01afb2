"""Outages: that a store cannot be used is told once, and so is that it can be used again.

Workers, renewals, maintenance and polls of a process all use the store, each in its own time. When
it goes away all of them fail, and all try again; for people that is one event, with two ends.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, TypeVar

from millpond.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

log = logging.getLogger("millpond.store")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds before the store is asked again, doubling."""


class Outages:
    """Knows which parts of a process cannot use the store; for any thread."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._failing: set[object] = set()
        self._since = 0.0
        self._lock = threading.Lock()

    def failed(self, part: object, error: BaseException) -> bool:
        """Note that a part could not use the store; False if something else is wrong with it.

        The first one to find out tells.
        """
        if not isinstance(error, StoreError):
            return False
        with self._lock:
            first = not self._failing
            self._failing.add(part)
            if first:
                self._since = self._steady()
        if first:
            log.warning("the store cannot be used (%s); it is tried again until it can", error)
        else:
            log.debug("the store cannot be used here either: %s", error)
        return True

    def worked(self, part: object) -> None:
        """Note that a part could use the store; the last one to find out tells."""
        if part not in self._failing:
            return
        with self._lock:
            self._failing.discard(part)
            seconds = self._steady() - self._since
            over = not self._failing
        if over:
            log.warning("the store can be used again, after %.1f s", seconds)

    def gone(self, part: object) -> None:
        """Note that a part is no more, and that nobody will hear of it."""
        with self._lock:
            self._failing.discard(part)


async def insisted(ask: Callable[[], Awaitable[T]], over: Callable[[], bool]) -> T:
    """Ask the store until it answers, or it is over: what made one ask may be why it cannot."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await ask()
        except StoreError:
            if over():
                raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
