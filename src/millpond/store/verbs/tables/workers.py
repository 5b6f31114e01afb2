"""Workers, the tasks they hold, and the processes that own closures."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from millpond.core.ticks import rounded
from millpond.store.verbs.tables.change_order import by_pool_and_place
from millpond.store.verbs.tables.verb import VerbTables

if TYPE_CHECKING:
    from millpond.core.admit import Reason
    from millpond.core.lease import RegisteredWorker
    from millpond.core.task import Task

StopRequests: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Tasks that should stop, and those of them that should be interrupted."""


class WorkerTables(VerbTables):
    """Registered workers: renewals, requests to stop, closures."""

    def renew(self, worker: RegisteredWorker, lease: float, now: float) -> None:
        """Renew all leases of a worker for `lease` seconds from now."""
        worker.expires_at = rounded(now + lease)

    def leave_to_newer(self, worker: RegisteredWorker, owner: str | None) -> bool:  # noqa: ARG002
        """Return whether a worker holds tasks (or `owner` closures) of pools of a newer version.

        Here no pool is: each was declared by this very version.
        """
        return False

    def first_expiring(self) -> RegisteredWorker | None:
        """Return the worker whose lease ends first, of those registered first; O(workers)."""
        return min(self.workers.all(), key=by_expiry, default=None)

    def has_live_worker(self, owner: str, *, besides: RegisteredWorker | None = None) -> bool:
        """Return whether a process has a registered worker, apart from `besides`."""
        return any(worker.owner == owner and worker is not besides for worker in self.workers.all())

    def stop_requests_of(self, worker: RegisteredWorker) -> StopRequests:
        """Return the worker's tasks that should stop, by pool and place."""
        held = (
            self.tasks.require(identifier)
            for identifier in (*worker.holding.ids(), *worker.ahead.specs)
        )
        to_stop = [task for task in sorted(held, key=by_pool_and_place) if task.cancel_requested]
        return (
            tuple(task.new.id for task in to_stop),
            tuple(task.new.id for task in to_stop if task.interrupt_requested),
        )

    def request_return(
        self, task: Task, reason: Reason, now: float, *, interrupt: bool = False
    ) -> bool:
        """Ask a worker to return a prefetched task: it may just be starting it."""
        if not task.cancel_requested:
            task.reason = reason
        return self.request_stop(task, now, interrupt=interrupt)

    def request_stop(self, task: Task, now: float, *, interrupt: bool) -> bool:
        """Ask the worker of a task to stop it; return whether that is new.

        An interrupt is more than a word, and may follow one; a word after an interrupt is nothing.
        """
        if task.interrupt_requested or (task.cancel_requested and not interrupt):
            return False
        task.cancel_requested = True
        task.interrupt_requested = interrupt
        self._stop_requests[task.new.id] = interrupt
        word = "interrupt" if interrupt else "cancel"
        self.record_command(task.new.pool, f"{word} requested", now, task=task.new.id)
        return True

    def stop_requests(self) -> StopRequests:
        """Return the tasks that this verb asked to stop."""
        requests = self._stop_requests
        if not requests:
            return (), ()
        return tuple(requests), tuple(task for task, hard in requests.items() if hard)

    def _own(self, owner: str) -> None:
        self.owned[owner] = self.owned.get(owner, 0) + 1

    def _disown(self, owner: str) -> None:
        left = self.owned[owner] - 1
        if left:
            self.owned[owner] = left
        else:
            del self.owned[owner]

    def has_closures(self, owner: str) -> bool:
        """Return whether a process has queued or running closures."""
        return owner in self.owned

    def closures_of(self, owner: str) -> list[Task]:
        """Return the queued and running closures of a process: O(tasks), for its end."""
        if owner not in self.owned:
            return []
        return [
            task for pool in self.pools.all() for task in pool.arrivals if task.new.owner == owner
        ]


def by_expiry(worker: RegisteredWorker) -> tuple[float, int]:
    """Sort key: the worker whose lease ends first, of those the one registered first."""
    return worker.expires_at, worker.number
