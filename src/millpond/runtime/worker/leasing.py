"""Leasing: start what a lease answer contains, or give it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.service import Service

if TYPE_CHECKING:
    from millpond.core.lease import LeaseRequest
    from millpond.runtime.jobs.job import WorkerProtocol
    from millpond.runtime.worker.attempts import Attempts
    from millpond.runtime.worker.misfits import Misfits
    from millpond.runtime.worker.prefetch import Prefetch
    from millpond.runtime.worker.queues import Queues
    from millpond.runtime.worker.settle import Settling
    from millpond.runtime.worker.state import WorkerState
    from millpond.store.protocol import LeaseAnswer


class Leasing(Service):
    """Applies the answers to the leases of one worker."""

    _worker: WorkerProtocol
    _state: WorkerState
    _queues: Queues
    _prefetch: Prefetch
    _attempts: Attempts
    _misfits: Misfits
    _settling: Settling

    def apply(self, ask: LeaseRequest, answer: LeaseAnswer) -> None:
        """Start the leased tasks, and note when to ask again."""
        state, pool = self._state, ask.pool
        if answer.wakes or answer.ended or answer.finished_runs or answer.emptied:
            state.services.answers.apply(answer, leased_for=(self._worker, pool))
        if answer.fenced:
            if ask.worker == state.name:
                self._worker.lost_registration()
            return
        if answer.unknown:
            self._misfits.report_unknown(pool, answer.unknown)
        self._take_prefetched(ask, answer)
        self._start(answer)
        if answer.give_back or self._prefetch.is_recalled or not state.may_lease:
            self._settling.give_back_prefetched(pool)
        elif answer.claimed and state.ended:
            self._settling.start_late(pool)
        self._queues.answered(ask, answer)
        if ask.want and answer.leased:
            state.services.found_work(pool)

    def _take_prefetched(self, ask: LeaseRequest, answer: LeaseAnswer) -> None:
        prefetch = self._prefetch
        if answer.claimed or prefetch.held or prefetch.none_left:
            prefetch.take_in(ask.pool, answer)
        if ask.ahead and not answer.claimed:
            prefetch.none_left.add(ask.pool)

    def _start(self, answer: LeaseAnswer) -> None:
        if self._state.may_lease:
            for leased in answer.leased:
                self._attempts.start(leased)
        else:
            # It stopped, or was late, while the answer was on its way.
            for leased in answer.leased:
                self._settling.give_back(leased)
