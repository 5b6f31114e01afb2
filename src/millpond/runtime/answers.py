"""Answers: pass on what the answer of a verb reports, to workers, waiters, hooks and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.service import Service
from millpond.store.protocol import SubmitAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Container, MutableMapping, Sequence

    from millpond.core.plan import Wake
    from millpond.runtime.jobs.job import Closure, WorkerProtocol
    from millpond.runtime.kept_pools import KeptPools
    from millpond.runtime.observe.failure_log import Failures
    from millpond.runtime.observe.hook_caller import HookCaller
    from millpond.runtime.waiting.results import Waiting
    from millpond.store.protocol import (
        ControlAnswer,
        LeaseAnswer,
        RecoverAnswer,
        SettleAnswer,
    )


class Answers(Service):
    """Applies the answers of verbs to this process."""

    _workers: Sequence[WorkerProtocol]
    _closures: MutableMapping[int, Closure]
    _kept_pools: KeptPools
    _waiting: Waiting
    _hook_caller: HookCaller
    _failures: Failures
    _offer_room: Callable[[], None]

    def apply(
        self,
        answer: SubmitAnswer | LeaseAnswer | SettleAnswer | RecoverAnswer | ControlAnswer,
        *,
        leased_for: tuple[WorkerProtocol, str] | None = None,
        reported: Container[int] = (),
    ) -> None:
        """Pass on what an answer reports: pools to ask for work, tasks and runs that ended.

        `leased_for` is the worker and pool that the same verb leased for: it needs no wake.
        `reported` are tasks whose end this process has reported already.
        """
        if answer.wakes:
            if answer.finished_runs:
                # The callback of a run is submitted after the lease.
                leased_for = None
            for wake in answer.wakes:
                self._wake(wake, leased_for)
        if answer.ended:
            unseen = [task for task in answer.ended if task not in reported]
            for task in unseen:
                self._ended_unseen(task)
            if unseen and type(answer) is not SubmitAnswer:
                # A submit evicts tasks and fails none.
                self._failures.ended_unseen(unseen)
        if answer.finished_runs:
            for run in answer.finished_runs:
                self._waiting.run_ended(run)
        if answer.emptied:
            for empty in answer.emptied:
                self._hook_caller.emptied(empty)

    def _wake(self, wake: Wake, leased_for: tuple[WorkerProtocol, str] | None) -> None:
        for worker in self._workers:
            if leased_for is None or leased_for[0] is not worker or leased_for[1] != wake.pool:
                worker.woken(wake)

    def _ended_unseen(self, task: int) -> None:
        """Report a task that no handler of this process ended."""
        self._closures.pop(task, None)
        self._kept_pools.keep(None)
        self._waiting.ended(task, None)
        self._offer_room()
        self._hook_caller.ended_unseen(task)
