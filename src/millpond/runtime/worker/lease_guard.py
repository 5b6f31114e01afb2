"""The lease guard: stops the handlers of a worker in time if it cannot renew its leases."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.runtime.jobs.job import CancelReason
from millpond.runtime.session_times import LAST_QUESTION, STOP_AFTER

if TYPE_CHECKING:
    import asyncio

    from millpond.runtime.worker.attempts import Attempts
    from millpond.runtime.worker.queues import Queues
    from millpond.runtime.worker.settle import Settling
    from millpond.runtime.worker.state import WorkerState

log = logging.getLogger("millpond.worker")

FRESH = 1.0
"""Seconds for which an answer of the session is recent enough to start work without another."""

MARGIN = 0.1
"""The part of a lease before its end at which handlers are stopped if it was not renewed."""


class LeaseGuard(Service):
    """Until when the leases of one worker hold."""

    _state: WorkerState
    _queues: Queues
    _attempts: Attempts
    _settling: Settling
    safe_until: float = 0.0
    """Until when its leases hold for sure, by the monotonic clock."""
    _timer: asyncio.TimerHandle | None = None
    _renewed_at: float = 0.0
    """When the last renewal was sent that the store answered."""
    _session_until: float = 0.0
    """Until when no other process may miss the session of this one for too long."""
    _asked_at: float = 0.0
    """When the session was last asked because its time was nearly over."""
    _check_at: float = 0.0
    """When the timer is due."""

    def __post_init__(self) -> None:
        self._env = self._state.env
        self._session = self._state.services.session

    def safe_since(self, sent: float) -> None:
        """Note that the leases hold for their time from `sent` on; any thread may call this."""
        self._renewed_at = max(self._renewed_at, sent)
        self.safe_until = max(self.safe_until, sent + self._state.lease * (1 - MARGIN))

    def _holds_until(self) -> float:
        """Return until when its tasks are its own, by its leases and by its session."""
        mark, session = self._session.mark, self._session
        if not mark or mark not in self._state.name:
            return self.safe_until
        if not self._state.jobs and session.is_open:
            # It runs nothing that a missing session could double.
            return self.safe_until
        if self._renewed_at >= session.begun_at:
            self._session_until = max(self._session_until, session.answered + STOP_AFTER)
        return min(self.safe_until, self._session_until)

    def began(self) -> None:
        """Note that the worker has work again: from now on its session counts."""
        now, session = self._env.steady(), self._session
        if not session.mark or session.mark not in self._state.name:
            return
        if session.answered < now - FRESH:
            self.stop()
            self._asked_at = now
            session.ask()
            self._check_in(FRESH)
        elif self._check_at > now + STOP_AFTER:
            self.stop()
            self._set_timer()

    def _asks_session(self) -> bool:
        """Ask the session once more if it may only be this process that stood still."""
        now, session = self._env.steady(), self._session
        if not session.is_open or self.safe_until <= now:
            return False
        stood_still = now - self._check_at > LAST_QUESTION / 2
        if self._asked_at > session.answered and not stood_still:
            return False
        self._asked_at = now
        session.ask()
        self._check_in(LAST_QUESTION)
        return True

    def renewed(self, sent: float) -> None:
        """Note that the leases hold from `sent` on; lease again after a late renewal."""
        self.safe_since(sent)
        self.stop()
        safe_for = self._set_timer()
        if self._state.late and safe_for > 0:
            self._state.late = False
            self._queues.look_everywhere()

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _set_timer(self) -> float:
        """Check again when the leases may be lost; return in how many seconds that is."""
        until = self._holds_until()
        safe_for = until - self._env.steady()
        if until == self.safe_until or not self._session.is_open:
            self._check_in(safe_for)
        elif safe_for > LAST_QUESTION:
            self._check_in(safe_for - LAST_QUESTION)
        else:
            self._asked_at = self._env.steady()
            self._session.ask()
            self._check_in(safe_for)
        return safe_for

    def _check_in(self, seconds: float) -> None:
        self._check_at = self._env.steady() + max(seconds, 0.0)
        self._timer = self._env.loop.call_later(max(seconds, 0.0), self._unsafe)

    def _unsafe(self) -> None:
        """Stop all jobs: the worker could not renew, and its leases may be lost soon."""
        self._timer = None
        if self._holds_until() > self._env.steady():
            # A thread renewed or asked, and the loop had no time to get its message.
            self._set_timer()
            return
        if self._asks_session():
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
