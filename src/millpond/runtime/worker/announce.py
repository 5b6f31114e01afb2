"""The announcer: reports what settlements of this process did, to waiters, hooks and logs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.core.lifecycle import Status, Transition
from millpond.core.service import Service
from millpond.core.settle import Settled
from millpond.core.task import CALLBACKS
from millpond.runtime.observe.outage import ask_until_answered
from millpond.runtime.waiting.task_result import TaskResult

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    from millpond.core.lease import Leased
    from millpond.core.settle import Settlement
    from millpond.runtime.environment import Environment
    from millpond.runtime.jobs.job import Closure, Job
    from millpond.runtime.kept_pools import KeptPools
    from millpond.runtime.observe.failure_log import Failures
    from millpond.runtime.observe.hook_caller import HookCaller
    from millpond.runtime.observe.hooks import Hooks
    from millpond.runtime.observe.report import Report
    from millpond.runtime.waiting.results import Waiting
    from millpond.runtime.worker.tally import Tally
    from millpond.store.protocol import Admission


class Announcer(Service):
    """Reports the settlements of all workers of this process."""

    _env: Environment
    _closures: MutableMapping[int, Closure]
    _kept_pools: KeptPools
    _waiting: Waiting
    _failures: Failures
    _report: Report
    _hooks: Hooks
    _hook_caller: HookCaller
    _nudge: Callable[[], None]

    def ended(self, leased: Leased, status: Status, result: TaskResult) -> None:
        """Report a task that a settlement of this process ended."""
        task = leased.fence.task
        self._closures.pop(task, None)
        pool = leased.pool.removesuffix(CALLBACKS)
        if not self._kept_pools.keeps(pool):
            self._kept_pools.keep(pool)
        if self._report.timer is None:
            self._report.begin()
        if status is Status.FAILED:
            self._failures.failed(leased, result)
        self._waiting.ended(task, result)
        self._hook_caller.settled(leased, status, result)

    def completed(self, ended: Sequence[tuple[Settlement, Job, Any]]) -> dict[int, None]:
        """Report many tasks that settlements of this process completed; return which."""
        for name in {job.leased.pool for _, job, _ in ended}:
            pool = name.removesuffix(CALLBACKS)
            if not self._kept_pools.keeps(pool):
                self._kept_pools.keep(pool)
        if self._report.timer is None:
            self._report.begin()
        closures, deliver, completed = self._closures, self._waiting.ended, Status.COMPLETED
        reported: dict[int, None] = {}
        for decided, job, value in ended:
            task = job.leased.fence.task
            reported[task] = None
            if closures:
                closures.pop(task, None)
            result = TaskResult.of(decided, job, value, completed)
            deliver(task, result)
            if self._hooks.observers:
                self._hook_caller.settled(job.leased, completed, result)
        return reported

    def follow_ups_stored(
        self, decided: Settlement, job: Job, stored: tuple[Admission, ...]
    ) -> None:
        """Report the follow-ups that a settlement stored, or found as duplicates."""
        now = self._env.clock()
        for report, admission in zip(job.on_stored or (), stored, strict=False):
            report(admission, now)
        if self._hooks.probes is not None:
            for new, admission in zip(decided.follow_ups, stored, strict=False):
                self._hooks.probes.stored(new.pool, (admission,))
        if any(new.expires_in is not None for new in decided.follow_ups):
            self._nudge()

    def retried(self, leased: Leased, decided: Settlement) -> None:
        """Report a task that a settlement of this process put back into its queue."""
        # It may expire there, or be parked for a while only.
        self._nudge()
        if self._report.timer is None:
            self._report.begin()
        if decided.event is Transition.RETRY and decided.spend:
            # A retry that the handler asked for without a charge is no failure.
            self._failures.retried(leased, decided)
        self._hook_caller.retried(leased, decided)

    def stale(self, job: Job) -> None:
        """Report a settlement that came too late: another worker has the task now."""
        self._hooks.counts.stale_settles += 1
        self._hook_caller.stale(job.leased)

    def leases_lost(self, jobs: Sequence[Job]) -> None:
        """Count running jobs whose leases a worker has lost."""
        self._hooks.counts.leases_lost += len(jobs)
        if self._hooks.probes is not None:
            self._hooks.probes.lost(jobs)

    def stalled(self, worker: str) -> None:
        """Report a worker whose turn the store does not answer."""
        self._hooks.counts.stalls += 1
        self._hook_caller.stalled(worker)

    def find_out(
        self,
        job: Job,
        decided: Settlement,
        value: Any,  # noqa: ANN401 - what the handler returned or raised
        tally: Tally,
    ) -> None:
        """Look up a settlement that came too late when it was sent again: was the first in time?"""
        self._env.spawn(self._find_out(job, decided, value, tally))

    async def _find_out(
        self,
        job: Job,
        decided: Settlement,
        value: Any,  # noqa: ANN401
        tally: Tally,
    ) -> None:
        env = self._env
        task = await ask_until_answered(partial(env.view.task, job.id), lambda: env.closed)
        if task is None or task.token != job.leased.fence.token:
            settled = Settled.STALE
            tally.stale += 1
            self.stale(job)
        else:
            settled = Settled.APPLIED
            if task.status.terminal:
                tally.ended(job.leased.pool, task.status)
                result = TaskResult.of(decided, job, value, task.status)
                self.ended(job.leased, task.status, result)
            else:
                self.retried(job.leased, decided)
        if self._hooks.probes is not None:
            after = None if task is None else task.status
            self._hooks.probes.settled(job, decided, settled, after)
