"""Renewal: one small write per interval keeps all that a worker holds, however much it runs.

Where the store has a connection for it, a thread renews: then a handler that keeps the loop busy
does not cost its process the leases. What it hears is told on the loop. Elsewhere the loop renews
as a part of maintenance.

A renewal counts from when it was sent: by then at the earliest the store has heard it. A worker
that was not heard for nine tenths of its lease stops its handlers (`Worker.renewed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from millpond.core.plan import sooner

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.runtime.fleet.shared_store import Renewer
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.worker.worker import Worker
    from millpond.store.protocol import RenewAnswer

log = logging.getLogger("millpond.renewal")

RENEWALS_PER_LEASE = 3

SLOW = 0.1
"""The part of a lease by which a renewal may be late; beyond it the store itself was away."""

LOOK_EVERY = 0.25
"""Seconds between two looks at which processes are gone."""

FIRST_PAUSE = 0.05
"""Seconds to wait after a renewal failed, doubling up to a tenth of the lease."""

GIVE_UP_AFTER = 2.0
"""Seconds for which closing waits for a renewal that is on its way."""


class Kept:
    """What is renewed: a worker under the name it has now."""

    __slots__ = ("due", "lease", "name", "pause", "wanted_at", "worker")

    def __init__(self, worker: Worker, sent: float) -> None:
        self.worker = worker
        self.name = worker.name
        self.lease = worker.lease
        self.renewed(sent)

    def renewed(self, sent: float) -> None:
        """Plan the next renewal after one that was sent at a moment."""
        self.pause = 0.0
        self.due = self.wanted_at = sent + self.lease / RENEWALS_PER_LEASE

    def was_late(self, answered: float) -> bool:
        """Return whether it took so long that others may have fared alike.

        Counted from when it was due: the store may have been away, or this process stood still.
        """
        return answered - self.wanted_at > SLOW * self.lease


class Renewals:
    """Keeps the leases of the workers of one process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._kept: dict[Worker, Kept] = {}
        can = runtime.abilities
        self._thread: RenewalThread | None = None
        if runtime.shared and (can.renewer is not None or can.presence is not None):
            self._thread = RenewalThread(runtime)

    def keep(self, worker: Worker, sent: float) -> None:
        """Renew a worker that joined by an order sent at a moment; safe twice."""
        if not self._runtime.shared:
            return
        worker.renewed(sent)
        self._runtime.outages.gone(self._kept.get(worker))
        kept = self._kept[worker] = Kept(worker, sent)
        if self._thread is not None:
            self._thread.keep(kept)

    def drop(self, worker: Worker) -> None:
        """Renew a worker no more: it has left, or the store has forgotten it."""
        kept = self._kept.pop(worker, None)
        if kept is None:
            return
        if self._thread is not None:
            self._thread.drop(kept)
        self._runtime.outages.gone(kept)

    def hurry(self) -> None:
        """Renew at once where something runs: the answer tells what of it was cancelled."""
        if self._thread is not None:
            self._thread.hurry([kept for kept in self._kept.values() if kept.worker.jobs])

    async def stop(self) -> None:
        """End; safe twice."""
        self._kept.clear()
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread.stop()

    async def round(self) -> float | None:
        """Renew on the loop what is due; return when to come back, by the steady clock."""
        if self._runtime.abilities.renewer is not None:
            return None
        soonest = None
        failed: Exception | None = None
        for kept in list(self._kept.values()):
            if kept.due <= self._runtime.steady():
                try:
                    await self._renew(kept)
                except Exception as error:  # noqa: BLE001 - the others must not miss theirs
                    failed = failed or error
            if self._kept.get(kept.worker) is kept:
                soonest = sooner(soonest, kept.due)
        if failed is not None:
            raise failed
        return soonest

    async def _renew(self, kept: Kept) -> None:
        sent = self._runtime.steady()
        answer = await self._runtime.store.renew(kept.name, kept.lease)
        # The loop may be late by itself, and often is: what the store took is what counts.
        late = self._runtime.steady() - sent > SLOW * kept.lease
        kept.renewed(sent)
        heard(self._runtime, kept, sent, answer, late=late)


def heard(runtime: Runtime, kept: Kept, sent: float, answer: RenewAnswer, *, late: bool) -> None:
    """Take in what a renewal was answered; on the loop."""
    worker = kept.worker
    if late:
        runtime.maintenance.store_was_away(kept.lease)
    if answer.alive:
        if worker.name == kept.name:
            worker.renewed(sent)
    elif worker.name == kept.name and worker.joined:
        runtime.fenced(worker)
    runtime.told_to_cancel(answer.cancelled, answer.interrupted)
    for pool in answer.give_back:
        worker.give_back_ahead(pool)


class RenewalThread:
    """The thread that keeps a process alive in a shared store, and sees which others are gone.

    It begins with the first worker. It asks the store for nothing but renewals: to see who is gone
    it looks at lock files.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loop = runtime.loop
        self._make = runtime.abilities.renewer
        self._presence = runtime.abilities.presence
        self._renewer: Renewer | None = None
        self._kept: dict[Kept, None] = {}
        self._stir = threading.Condition()
        self._over = False
        self._look_at = 0.0
        self._blind = False
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None

    # On the loop

    def keep(self, kept: Kept) -> None:
        """Renew a worker from now on."""
        with self._stir:
            self._kept[kept] = None
            if self._thread is None:
                self._ended = self._loop.create_future()
                self._thread = threading.Thread(
                    target=self._main, name=f"millpond-renewal-{self._runtime.owner}", daemon=True
                )
                self._thread.start()
            self._stir.notify()

    def drop(self, kept: Kept) -> None:
        """Renew it no more; a renewal on its way is not heard of any more."""
        with self._stir:
            self._kept.pop(kept, None)

    def hurry(self, some: list[Kept]) -> None:
        """Renew some of them at once, unless the store was away just now."""
        with self._stir:
            now = time.monotonic()
            for kept in some:
                if not kept.pause:
                    kept.due = min(kept.due, now)
            self._stir.notify()

    async def stop(self) -> None:
        """End it; one that waits for a store that does not answer is left to itself."""
        with self._stir:
            self._over = True
            self._stir.notify()
        if self._ended is None or self._thread is None:
            return
        done, _ = await asyncio.wait((self._ended,), timeout=GIVE_UP_AFTER)
        if done:
            self._thread.join()

    def _tell_ended(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    # In the thread

    def _main(self) -> None:
        try:
            while (due := self._next()) is not None:
                for kept in due:
                    self._renew(kept)
                self._look()
        finally:
            self._close()
            self._post(self._tell_ended)

    def _next(self) -> list[Kept] | None:
        """Wait until something is due; return which workers to renew, or None at the end."""
        with self._stir:
            # Where the loop was closed and the Millpond was not, nothing runs any more that a
            # lease would be for: what it held is given to others when that is over.
            while not self._over and not self._loop.is_closed():
                now = time.monotonic()
                due = [kept for kept in self._kept if self._make and kept.due <= now]
                if due or (self._presence is not None and self._look_at <= now):
                    return due
                moments = [kept.due for kept in self._kept] if self._make else []
                if self._presence is not None:
                    moments.append(self._look_at)
                self._stir.wait(max(min(moments) - now, 0.0) if moments else None)
            return None

    def _renew(self, kept: Kept) -> None:
        sent = time.monotonic()
        try:
            if self._renewer is None:
                assert self._make is not None  # noqa: S101 - nothing is due without one
                self._renewer = self._make()
            answer = self._renewer.renew(kept.name, kept.lease)
        except Exception as error:  # noqa: BLE001 - whatever it was, the next try may be in time
            self._failed(kept, error)
            return
        late = kept.was_late(time.monotonic())
        kept.renewed(sent)
        self._runtime.outages.worked(kept)
        with self._stir:
            if kept not in self._kept:
                return
            if not answer.alive:
                del self._kept[kept]
        if answer.alive:
            # At once, and not only when the loop finds time for it.
            kept.worker.safe_since(sent)
        self._post(partial(heard, self._runtime, kept, sent, answer, late=late))

    def _failed(self, kept: Kept, error: Exception) -> None:
        """Try again soon, with a new connection, and say so once."""
        if not self._runtime.outages.failed(kept, error) and not kept.pause:
            log.warning("worker %s could not renew (%s) and tries again", kept.name, error)
        kept.pause = min(max(kept.pause * 2, FIRST_PAUSE), SLOW * kept.lease)
        kept.due = time.monotonic() + kept.pause
        self._close()

    def _close(self) -> None:
        renewer, self._renewer = self._renewer, None
        if renewer is not None:
            with contextlib.suppress(Exception):
                renewer.close()

    def _look(self) -> None:
        """See which processes are gone; that costs the store nothing."""
        if self._presence is None or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY
        try:
            gone = self._presence.gone()
        except Exception as error:  # noqa: BLE001 - who dies of it renews no more
            if not self._blind:
                log.warning("the lock files cannot be looked at (%s); it is tried again", error)
            self._blind = True
            return
        self._blind = False
        if gone:
            self._post(self._runtime.burials.found, gone)

    def _post(self, tell: Callable[..., None], *told: object) -> None:
        # A loop that is closed has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(tell, *told)
