"""Dead workers: how they are found, and how what they held is freed.

On the same host `LockFiles` finds dead processes: the kernel frees the lock of a process that ends.
On a server `Absences` finds workers whose process has had no session for some seconds. Where
neither shows a death, the lease expires, and maintenance recovers the tasks (`maintain.py`).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from millpond.core.control import DeclareDead
from millpond.core.log_fields import about
from millpond.core.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.runtime.answers import Answers
    from millpond.runtime.environment import Environment
    from millpond.runtime.fleet.leader import Leadership
    from millpond.runtime.observe.failure_log import Failures
    from millpond.runtime.observe.hooks import Hooks
    from millpond.store.shared import Presence

log = logging.getLogger("millpond.maintenance")

LOOK_EVERY = 0.25
"""Seconds between two checks of the lock files."""

GRACE = 4.25
"""Seconds without a session after which a worker is declared dead."""

AGAIN_AFTER = 1.0
"""Seconds until dead processes are tried again whose workers could not be removed."""


class LockFiles:
    """Finds dead processes by their lock files, without the store; for one thread."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self.check_at = 0.0
        """When they are checked next, by the monotonic clock."""
        self._unreadable = False

    def gone(self) -> tuple[str, ...]:
        """Return the dead processes, if it is time to check."""
        if time.monotonic() < self.check_at:
            return ()
        self.check_at = time.monotonic() + LOOK_EVERY
        try:
            gone = self._presence.gone()
        except Exception as error:  # noqa: BLE001 - a dead process still loses its leases
            if not self._unreadable:
                log.warning(
                    "cannot read the lock files of other processes (%s); trying again",
                    error,
                    extra=about("presence.unreadable", reason=type(error).__name__),
                )
            self._unreadable = True
            return ()
        self._unreadable = False
        return gone


class Absences:
    """Since when registered workers were seen without a session, each with its lease's end."""

    def __init__(self, grace: float = GRACE) -> None:
        self._grace = grace
        self._since: dict[tuple[str, float], float] = {}

    def seen(self, missing: Sequence[tuple[str, float]], now: float) -> list[tuple[str, float]]:
        """Note which workers have no session now; return those that had none for too long.

        A worker that renewed has another end of its lease, and so another beginning here.
        """
        self._since = {one: self._since.get(one, now) for one in missing}
        return [one for one, since in self._since.items() if now - since >= self._grace]

    def __bool__(self) -> bool:
        return bool(self._since)

    def forget(self) -> None:
        """Start over: all sessions may have ended at once, with the server."""
        self._since = {}


class DeadWorkers(Service):
    """Removes the workers of dead processes; the first process to see it does it.

    A second process does no harm: a worker is removed once, and no name is used again.
    """

    _env: Environment
    _answers: Answers
    _failures: Failures
    _hooks: Hooks
    _leadership: Leadership
    _nudge: Callable[[], None]
    _under_way: set[str] = set()
    _failing: bool = False

    def found(self, owners: Sequence[str]) -> None:
        """Remove the workers of these dead processes."""
        presence = self._env.shared_store.presence
        fresh = set(owners) - self._under_way
        if presence is None or not fresh or self._env.closed:
            return
        self._under_way |= fresh
        self._env.spawn(self._remove(fresh, presence))

    def without_session(self, workers: Sequence[tuple[str, float]]) -> None:
        """Remove workers whose processes have had no session for too long, unless they renew."""
        fresh = [one for one in workers if one[0] not in self._under_way]
        if fresh and not self._env.closed:
            names = {name for name, _ in fresh}
            self._under_way |= names
            self._env.spawn(self._remove_lost(fresh, names))

    async def _remove_lost(self, workers: list[tuple[str, float]], names: set[str]) -> None:
        try:
            for worker, expires_at in workers:
                await self._remove_worker(worker, DeclareDead(worker, expires_at))
        except Exception as error:  # noqa: BLE001 - a store that is away comes back
            log.debug(
                "cannot free the tasks of workers without a session (%s); trying again",
                error,
                extra=about("worker.recovery_failed", reason=type(error).__name__),
            )
        finally:
            self._under_way -= names
        self._leadership.ask_now()
        self._nudge()

    async def _remove(self, owners: set[str], presence: Presence) -> None:
        try:
            await self._remove_workers(owners, presence)
        except Exception as error:  # noqa: BLE001 - a store that is away comes back
            # Every look at the lock files finds them again: tried now and then, logged once.
            if not self._failing:
                log.warning(
                    "cannot free the tasks of dead processes (%s); trying again",
                    error,
                    extra=about("worker.recovery_failed", reason=type(error).__name__),
                )
            self._failing = True
            self._env.loop.call_later(AGAIN_AFTER, self._under_way.difference_update, owners)
            return
        self._failing = False
        self._under_way -= owners
        # Perhaps the dead process led.
        self._leadership.ask_now()
        self._nudge()

    async def _remove_workers(self, owners: set[str], presence: Presence) -> None:
        for worker in sorted(await self._env.view.workers()):
            if worker.rpartition("/")[0] in owners:
                await self._remove_worker(worker, DeclareDead(worker))
        for owner in sorted(owners):
            presence.forget(owner)

    async def _remove_worker(self, worker: str, command: DeclareDead) -> None:
        answer = await self._env.store.control(command)
        self._answers.apply(answer)
        self._failures.lost(answer.lost)
        if self._hooks.probes is not None:
            self._hooks.probes.recovered(answer.count)
        if command.expires_at is not None and worker in await self._env.view.workers():
            # It has renewed: it is alive.
            return
        log.warning(
            "worker %s is dead; other workers take over its tasks",
            worker,
            extra=about("worker.died", worker=worker),
        )
