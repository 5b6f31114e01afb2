"""Renewal: one small write per interval keeps all leases of a worker, however many it has.

Where the store has a connection for it, a thread renews: a handler that blocks the loop then does
not cost the process its leases. The loop gets the answers. With other stores the loop renews as a
part of maintenance.

A renewal counts from the moment it was sent: the store has got it then at the earliest. A worker
that could not renew for nine tenths of its lease stops its handlers (`LeaseGuard`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.core.plan import sooner
from millpond.core.service import Service
from millpond.runtime.fleet.dead_workers import LockFiles
from millpond.runtime.fleet.lease_times import RENEWALS_PER_LEASE, SLOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.runtime.control import Control
    from millpond.runtime.environment import Environment
    from millpond.runtime.fleet.dead_workers import DeadWorkers
    from millpond.runtime.fleet.recovery_delay import RecoveryDelay
    from millpond.runtime.jobs.job import WorkerProtocol
    from millpond.runtime.observe.outage import Outages
    from millpond.store.protocol import RenewAnswer
    from millpond.store.shared import Renewer

log = logging.getLogger("millpond.renewal")

FIRST_PAUSE = 0.05
"""Seconds to wait after a renewal failed, doubling up to a tenth of the lease."""

GIVE_UP_AFTER = 2.0
"""Seconds for which closing waits for a renewal that is on its way."""


class Kept:
    """A worker under the name it has now, and when it renews next."""

    __slots__ = ("due", "lease", "name", "pause", "wanted_at", "worker")

    def __init__(self, worker: WorkerProtocol, sent: float) -> None:
        self.worker = worker
        self.name = worker.name
        self.lease = worker.lease
        self.renewed(sent)

    def renewed(self, sent: float) -> None:
        """Plan the next renewal after one that was sent at a moment."""
        self.pause = 0.0
        self.due = self.wanted_at = sent + self.lease / RENEWALS_PER_LEASE

    def was_late(self, answered: float) -> bool:
        """Return whether it took so long that other processes may also have been late.

        Counted from when it was due: the store was away, or this process stood still.
        """
        return answered - self.wanted_at > SLOW * self.lease


class Renewals(Service):
    """Keeps the leases of the workers of one process."""

    _env: Environment
    _outages: Outages
    _delay: RecoveryDelay
    _control: Control
    _dead_workers: DeadWorkers
    _kept: dict[WorkerProtocol, Kept] = {}
    _thread: RenewalThread | None = None

    def __post_init__(self) -> None:
        store = self._env.shared_store
        if self._env.shared and (store.renewer is not None or store.presence is not None):
            self._thread = RenewalThread(
                self._env, self._outages, self._answered, self._dead_workers.found
            )

    def keep(self, worker: WorkerProtocol, sent: float) -> None:
        """Renew a worker that registered by an order sent at a moment; safe twice."""
        if not self._env.shared:
            return
        worker.renewed(sent)
        self._outages.gone(self._kept.get(worker))
        kept = self._kept[worker] = Kept(worker, sent)
        if self._thread is not None:
            self._thread.keep(kept)

    def drop(self, worker: WorkerProtocol) -> None:
        """Stop renewing a worker: it has deregistered, or the store has lost it."""
        kept = self._kept.pop(worker, None)
        if kept is None:
            return
        if self._thread is not None:
            self._thread.drop(kept)
        self._outages.gone(kept)

    def hurry(self) -> None:
        """Renew workers with jobs at once: the answer names the cancelled ones."""
        if self._thread is not None:
            self._thread.hurry([kept for kept in self._kept.values() if kept.worker.jobs])

    def hurry_all(self) -> None:
        """Renew every worker at once: the session of this process is new."""
        if self._thread is not None:
            self._thread.hurry(list(self._kept.values()), also_failed=True)

    async def stop(self) -> None:
        """End; safe twice."""
        self._kept.clear()
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread.stop()

    async def round(self) -> float | None:
        """Renew on the loop what is due; return when to come back, by the steady clock."""
        if self._env.shared_store.renewer is not None:
            return None
        soonest = None
        failed: Exception | None = None
        for kept in list(self._kept.values()):
            if kept.due <= self._env.steady():
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
        sent = self._env.steady()
        answer = await self._env.store.renew(kept.name, kept.lease)
        # The loop itself is often late: only the time that the store took counts.
        late = self._env.steady() - sent > SLOW * kept.lease
        kept.renewed(sent)
        self._answered(kept, sent, answer, late)

    def _answered(self, kept: Kept, sent: float, answer: RenewAnswer, late: bool) -> None:
        """Apply the answer to a renewal; on the loop."""
        worker = kept.worker
        if late:
            self._delay.store_was_away(kept.lease)
        if answer.alive:
            if worker.name == kept.name:
                worker.renewed(sent)
        elif worker.name == kept.name and worker.joined:
            worker.lost_registration()
        self._control.cancelled_elsewhere(answer.cancelled, answer.interrupted)
        for pool in answer.give_back:
            worker.give_back_prefetched(pool)


class RenewalThread:
    """The thread that renews the leases of a process, and finds dead processes by their lock files.

    It starts with the first worker. It asks the store for nothing but renewals.
    """

    def __init__(
        self,
        env: Environment,
        outages: Outages,
        answered: Callable[[Kept, float, RenewAnswer, bool], None],
        found_dead: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._owner = env.owner
        self._loop = env.loop
        self._outages = outages
        self._answered = answered
        self._found_dead = found_dead
        self._make = env.shared_store.renewer
        presence = env.shared_store.presence
        self._lock_files = None if presence is None else LockFiles(presence)
        self._renewer: Renewer | None = None
        self._kept: dict[Kept, None] = {}
        self._changed = threading.Condition()
        self._over = False
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None

    # On the loop

    def keep(self, kept: Kept) -> None:
        """Renew a worker from now on."""
        with self._changed:
            self._kept[kept] = None
            if self._thread is None:
                self._ended = self._loop.create_future()
                self._thread = threading.Thread(
                    target=self._main, name=f"millpond-renewal-{self._owner}", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def drop(self, kept: Kept) -> None:
        """Stop renewing a worker; the answer to a renewal under way is dropped."""
        with self._changed:
            self._kept.pop(kept, None)

    def hurry(self, some: list[Kept], *, also_failed: bool = False) -> None:
        """Renew some workers at once, unless their last renewal failed."""
        with self._changed:
            now = time.monotonic()
            for kept in some:
                if also_failed or not kept.pause:
                    kept.due = min(kept.due, now)
            self._changed.notify()

    async def stop(self) -> None:
        """End the thread; do not wait longer for a store that does not answer."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._ended is None or self._thread is None:
            return
        done, _ = await asyncio.wait((self._ended,), timeout=GIVE_UP_AFTER)
        if done:
            self._thread.join()

    def _set_ended(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    # In the thread

    def _main(self) -> None:
        try:
            while (due := self._next()) is not None:
                for kept in due:
                    self._renew(kept)
                if self._lock_files is not None and (gone := self._lock_files.gone()):
                    self._post(self._found_dead, gone)
        finally:
            self._close()
            self._post(self._set_ended)

    def _next(self) -> list[Kept] | None:
        """Wait until something is due; return which workers to renew, or None at the end."""
        with self._changed:
            # If the loop was closed and the Millpond was not, nothing runs any more that needs a
            # lease: other processes take over when it expires.
            while not self._over and not self._loop.is_closed():
                now = time.monotonic()
                due = [kept for kept in self._kept if self._make and kept.due <= now]
                moments = [kept.due for kept in self._kept] if self._make else []
                if self._lock_files is not None:
                    moments.append(self._lock_files.check_at)
                if moments and min(moments) <= now:
                    return due
                self._changed.wait(max(min(moments) - now, 0.0) if moments else None)
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
        self._outages.worked(kept)
        with self._changed:
            if kept not in self._kept:
                return
            if not answer.alive:
                del self._kept[kept]
        if answer.alive:
            # At once, and not only when the loop gets to it.
            kept.worker.safe_since(sent)
        self._post(self._answered, kept, sent, answer, late)

    def _failed(self, kept: Kept, error: Exception) -> None:
        """Try again soon, with a new connection; log it once."""
        if not self._outages.failed(kept, error) and not kept.pause:
            log.warning(
                "worker %s could not renew its leases (%s); trying again",
                kept.name,
                error,
                extra=about("lease.renewal_failed", worker=kept.name, reason=type(error).__name__),
            )
        kept.pause = min(max(kept.pause * 2, FIRST_PAUSE), SLOW * kept.lease)
        kept.due = time.monotonic() + kept.pause
        self._close()

    def _close(self) -> None:
        renewer, self._renewer = self._renewer, None
        if renewer is not None:
            with contextlib.suppress(Exception):
                renewer.close()

    def _post(self, call: Callable[..., None], *args: object) -> None:
        """Call something on the loop, unless the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)
