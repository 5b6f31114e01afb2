"""Settle answers: report how attempts ended, as the store answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core.event import SYSTEM
from millpond.core.lifecycle import Status
from millpond.core.service import Service
from millpond.core.settle import Settled
from millpond.runtime.waiting.task_result import TaskResult
from millpond.runtime.worker.state import NO_CODE

if TYPE_CHECKING:
    from millpond.core.lease import LeaseRequest
    from millpond.core.settle import Settlement
    from millpond.runtime.jobs.job import Job, WorkerProtocol
    from millpond.runtime.observe.probe import Probes
    from millpond.runtime.worker.attempts import Attempts
    from millpond.runtime.worker.leasing import Leasing
    from millpond.runtime.worker.prefetch import Prefetch
    from millpond.runtime.worker.state import WorkerState
    from millpond.store.protocol import SettleAnswer


class SettleAnswers(Service):
    """Applies the answers to the settlements of one worker."""

    _worker: WorkerProtocol
    _state: WorkerState
    _prefetch: Prefetch
    _attempts: Attempts
    _leasing: Leasing

    def __post_init__(self) -> None:
        self._services = self._state.services

    def apply(
        self,
        ended: list[tuple[Settlement, Job, Any]],
        ask: LeaseRequest | None,
        answer: SettleAnswer,
    ) -> None:
        """Report how these attempts ended, and start the leased tasks."""
        services, count = self._services, len(ended)
        if (
            answer.settled.count(Settled.APPLIED) == count
            and answer.after.count(Status.COMPLETED) == count
            and not any(answer.follow_ups)
        ):
            # Most turns end so: what is the same for all need not be checked for each.
            self._state.tally.completed += count - _internal(ended)
            reported = services.announcer.completed(ended)
        else:
            reported = self._report_each(ended, answer)
        if services.hooks.probes is not None:
            _probe(services.hooks.probes, ended, answer)
        if self._prefetch.gone:
            self._prefetch.gone.difference_update([job.leased.fence for _, job, _ in ended])
        if Settled.STALE in answer.started:
            self._stop_stale(ended, answer)
        if ask is None or answer.lease is None:
            services.answers.apply(answer, reported=reported)
            return
        services.answers.apply(answer, leased_for=(self._worker, ask.pool), reported=reported)
        self._leasing.apply(ask, answer.lease)

    def committed(
        self,
        job: Job,
        decided: Settlement,
        value: Any,  # noqa: ANN401 - what the task returns
        answer: SettleAnswer,
    ) -> bool:
        """Note that a handler settled its attempt itself; return whether that was applied.

        The handler may go on for a moment and keeps its local slot, but nothing it does is settled.
        """
        applied = answer.settled[0] is Settled.APPLIED
        job.committed = job.committed or applied
        self.apply([(decided, job, value)], None, answer)
        return applied

    def _report_each(
        self, ended: list[tuple[Settlement, Job, Any]], answer: SettleAnswer
    ) -> dict[int, None]:
        """Report how each attempt ended; return the tasks that did."""
        announcer, tally = self._services.announcer, self._state.tally
        reported: dict[int, None] = {}
        for number, ((decided, job, value), settled, after) in enumerate(
            zip(ended, answer.settled, answer.after, strict=True)
        ):
            if settled is Settled.STALE and job.unsure:
                announcer.find_out(job, decided, value, tally)
            elif settled is Settled.STALE:
                tally.stale += 1
                announcer.stale(job)
            elif after is not None and after is not Status.QUEUED:
                reported[job.leased.fence.task] = None
                tally.ended(job.leased.pool, after)
                if decided.follow_ups:
                    announcer.follow_ups_stored(decided, job, answer.follow_ups[number])
                announcer.ended(job.leased, after, TaskResult.of(decided, job, value, after))
            else:
                tally.queued_again(decided)
                announcer.retried(job.leased, decided)
        return reported

    def _stop_stale(self, ended: list[tuple[Settlement, Job, Any]], answer: SettleAnswer) -> None:
        """Stop the prefetched tasks that started here after the store had taken them back."""
        for (decided, _, _), started in zip(ended, answer.started, strict=True):
            if started is Settled.STALE:
                self._attempts.stop_lost(decided.successor)


def _internal(ended: list[tuple[Settlement, Job, Any]]) -> int:
    """Return how many of these tasks are of the library itself: firings and events."""
    return sum([job.leased.pool.startswith(SYSTEM) for _, job, _ in ended])


def _probe(probes: Probes, ended: list[tuple[Settlement, Job, Any]], answer: SettleAnswer) -> None:
    """Report to telemetry how each attempt ended, but for those that are looked up first."""
    for (decided, job, _), settled, after in zip(ended, answer.settled, answer.after, strict=True):
        if job.body is not NO_CODE and not (settled is Settled.STALE and job.unsure):
            probes.settled(job, decided, settled, after)
