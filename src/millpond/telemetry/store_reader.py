"""Read the pools of a store from any thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from millpond.core.log_fields import about
from millpond.core.task import CALLBACKS
from millpond.pool.internals import internals_of
from millpond.pool.wanted_slots import wanted_slots
from millpond.runtime.fleet.closure_worker import OWN
from millpond.store.protocol import PoolView

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.pool.millpond import Millpond
    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.telemetry")


class PoolReading(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one pool at one time."""

    name: str
    view: PoolView
    callbacks: int
    """Callbacks that wait or run."""
    blocked: int
    """Submitters of this process that wait for room."""
    oldest: float
    """Age in seconds of the oldest waiting task."""
    wanted_slots: int
    """How many worker slots the backlog could use now."""

    def states(self) -> Iterator[tuple[str, int]]:
        """Yield the number of tasks in each state; each task is in one state."""
        view = self.view
        apart = view.scheduled + view.parked + view.claimed
        yield "ready", max(view.queued - apart, 0)
        yield "scheduled", view.scheduled
        yield "parked", view.parked
        yield "claimed", view.claimed
        yield "running", view.running


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The pools that were read, and how many were left out."""

    pools: tuple[PoolReading, ...] = ()
    left_out: int = 0
    workers: int = 0
    detours: dict[tuple[str, str], int] = {}
    """Verbs of this process that took a slower way, by verb and reason."""


async def read(mp: Millpond, most: int) -> Reading:
    """Read the first `most` declared pools; call it on the loop."""
    runtime = internals_of(mp).runtime
    names = list(runtime.declarations.specs)
    found = [await _pool(runtime, name) for name in names[:most]]
    workers = [name for name in await runtime.view.workers() if not name.endswith(OWN)]
    return Reading(
        pools=tuple(one for one in found if one is not None),
        left_out=len(names[most:]),
        workers=len(workers),
        detours=_detours(runtime),
    )


def _detours(runtime: Runtime) -> dict[tuple[str, str], int]:
    counts = runtime.env.shared_store.detour_counts
    return {} if counts is None else dict(counts())


async def _pool(runtime: Runtime, name: str) -> PoolReading | None:
    now = runtime.clock()
    view = await runtime.view.pool(name, now=now)
    if view is None:
        return None
    callbacks = await runtime.view.pool(name + CALLBACKS, measured=False)
    oldest = view.oldest_queued_at
    unfinished = 0 if callbacks is None else callbacks.queued + callbacks.running
    return PoolReading(
        name=name,
        view=view,
        callbacks=unfinished,
        blocked=runtime.submitter.blocked(name),
        oldest=0.0 if oldest is None else max(now - oldest, 0.0),
        wanted_slots=wanted_slots(view, unfinished, now),
    )


class Reader:
    """Reads pools from other threads, which wait at most `timeout` seconds.

    A call within `fresh` seconds of the last one returns the same reading.
    """

    def __init__(self, mp: Millpond, most: int, timeout: float, fresh: float = 0.0) -> None:
        self._mp = mp
        self._most = most
        self._timeout = timeout
        self._fresh = fresh
        self._lock = threading.Lock()
        self._latest: Reading | None = None
        self._good_until = 0.0
        self._warned = False

    def read(self) -> Reading | None:
        """Return the pools, or None if they cannot be read now."""
        with self._lock:
            if time.monotonic() >= self._good_until:
                self._latest = self._read()
                self._good_until = time.monotonic() + self._fresh
            return self._latest

    def _read(self) -> Reading | None:
        if not self._mp.is_open:
            return None
        runtime = internals_of(self._mp).runtime
        if runtime.thread == threading.get_ident():
            self._warn_once("metrics were read on the event loop's thread, which reads the store")
            return None
        reading = asyncio.run_coroutine_threadsafe(read(self._mp, self._most), runtime.loop)
        try:
            found = reading.result(self._timeout)
        except concurrent.futures.TimeoutError:
            reading.cancel()
            self._warn_once(f"pools could not be read within {self._timeout:g} s")
        except Exception as error:  # noqa: BLE001 - an unreachable store must not break a scrape
            self._warn_once(f"pools could not be read: {error}")
        else:
            self._warned = False
            return found
        return None

    def _warn_once(self, trouble: str) -> None:
        """Log the failure once, and again only after a reading succeeded."""
        if not self._warned:
            log.warning(
                "%s; only the counts of this process are exported",
                trouble,
                extra=about("metrics.unavailable", reason=trouble),
            )
        self._warned = True
