"""The lease guard: stops the handlers of a worker in time if it cannot renew its leases."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.runtime.jobs.job import CancelReason

if TYPE_CHECKING:
    import asyncio

    from millpond.runtime.worker.attempts import Attempts
    from millpond.runtime.worker.queues import Queues
    from millpond.runtime.worker.settle import Settling
    from millpond.runtime.worker.state import WorkerState

log = logging.getLogger("millpond.worker")

MARGIN = 0.1
"""The part of a lease before its end at which handlers are stopped if it was not renewed."""


@dataclass(eq=False, repr=False)
class LeaseGuard:
    """Until when the leases of one worker hold."""

    _state: WorkerState
    _queues: Queues
    _attempts: Attempts
    _settling: Settling
    safe_until: float = field(default=0.0, init=False)
    """Until when its leases hold for sure, by the monotonic clock."""
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._env = self._state.env

    def safe_since(self, sent: float) -> None:
        """Note that the leases hold for their time from `sent` on; any thread may call this."""
        self.safe_until = max(self.safe_until, sent + self._state.lease * (1 - MARGIN))

    def renewed(self, sent: float) -> None:
        """Note that the leases hold from `sent` on; lease again after a late renewal."""
        self.safe_since(sent)
        self.stop()
        safe_for = self._set_timer()
        if self._state.late and safe_for > 0:
            self._state.late = False
            self._queues.look_everywhere()

    def stop(self) -> None:
        """Check no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _set_timer(self) -> float:
        """Check again when the leases may be lost; return in how many seconds that is."""
        safe_for = self.safe_until - self._env.steady()
        self._timer = self._env.loop.call_later(max(safe_for, 0.0), self._unsafe)
        return safe_for

    def _unsafe(self) -> None:
        """Stop all jobs: the worker could not renew, and its leases may be lost soon."""
        self._timer = None
        if self.safe_until > self._env.steady():
            # A thread renewed, and the loop had no time to get its message.
            self._set_timer()
            return
        state = self._state
        state.late = True
        if state.jobs:
            log.warning(
                "worker %s cannot renew its leases and stops its handlers",
                state.name,
                extra=about("lease.lost", worker=state.name),
            )
        self._settling.give_back_prefetched()
        state.services.announcer.leases_lost(list(state.jobs.values()))
        self._attempts.stop_all(CancelReason.LEASE_LOST)
