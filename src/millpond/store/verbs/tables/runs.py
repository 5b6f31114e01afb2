"""Runs: what the end of a task means for its run, and how a run stops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from millpond.core.admit import Reason
from millpond.core.audit import RUN_FINISHED, command_record
from millpond.core.lifecycle import Status, Transition
from millpond.core.run import OnError
from millpond.core.settle import run_callback
from millpond.store.verbs.tables.change_order import by_pool_and_place
from millpond.store.verbs.tables.queue import QueueTables

if TYPE_CHECKING:
    from millpond.core.run import Run
    from millpond.core.task import NewTask, Task


class RunTables(QueueTables, ABC):
    """Runs and their tasks."""

    @abstractmethod
    def move(self, task: Task, event: Transition, now: float, *, cause: int | None = None) -> None:
        """Apply one transition of the lifecycle to a task."""

    @abstractmethod
    def insert(self, new: NewTask, now: float, *, outside: bool, cause: int | None = None) -> Task:
        """Store a new task as queued."""

    def _close_runs(self, now: float) -> None:
        for run in self._touched_runs.values():
            if run.close_if_done(now):
                self._finished_runs.append(run.new.id)
                self._records.append(
                    command_record(run.new.pool, RUN_FINISHED, at=now, run=run.new.id)
                )
                self._call_back(run, now)

    def _call_back(self, run: Run, now: float) -> None:
        """Submit the callback of an ended run, once."""
        call = run.to_call
        if call is not None:
            new = run_callback(run, call, self.all_known(run.members), self.token())
            self.insert(new, now, outside=False, cause=run.new.id)
            run.called(new.id)

    def _leave_run(self, run: Run, task: Task, now: float) -> None:
        run.left(task.status, counted=not task.new.is_callback)
        self.touch_run(run)
        failed = task.status is Status.FAILED and not task.new.is_callback
        if failed and run.new.on_error is OnError.FAIL and run.stopped is None:
            run.failed_task = task.new.id
            self.stop_run(run, Reason.RUN_FAILED, now, cause=task.new.id)

    def stop_run(self, run: Run, reason: Reason, now: float, *, cause: int | None = None) -> None:
        """Stop a run: cancel its waiting tasks; running ones may finish."""
        run.stopped = reason
        for task in sorted(self.waiting_of_run(run.new.id), key=by_pool_and_place):
            task.reason = reason
            self.move(task, Transition.CANCEL, now, cause=cause)
        held = (task for task in self.of_run(run.new.id) if task.claimed)
        for task in sorted(held, key=by_pool_and_place):
            self.request_return(task, reason, now)

    def _keep_budget(self, run: Run, task: Task, now: float) -> None:
        """Stop a run that has just exceeded its budget."""
        room = run.room()
        if room is not None and room < 0 and run.stopped is None:
            self.stop_run(run, Reason.OVER_BUDGET, now, cause=task.new.id)

    def _stop_with_its_run(self, task: Task, now: float) -> None:
        """Cancel a queued task of a stopped run."""
        run = self.runs.get(task.new.run) if task.new.run is not None else None
        if run is None or task.status is not Status.QUEUED or task.new.is_callback:
            return
        if run.stopped is not None:
            task.reason = run.stopped
            self.move(task, Transition.CANCEL, now)
