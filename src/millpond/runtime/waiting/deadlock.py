"""Waiting inside a handler: noted with the job, and refused where it would wait for itself."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from millpond.core.deadlock import Holder, Limit, waits_for_itself
from millpond.core.lifecycle import Status
from millpond.core.service import Service
from millpond.errors import WouldDeadlock
from millpond.runtime.jobs.job import current_job, job_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from millpond.core.task import Task
    from millpond.runtime.environment import Environment
    from millpond.runtime.jobs.job import Job, WorkerProtocol
    from millpond.runtime.waiting.results import Waiting
    from millpond.runtime.waiting.task_result import TaskResult


class Waits(Service):
    """Which running jobs of this process wait for which tasks."""

    _env: Environment
    _workers: Sequence[WorkerProtocol]
    _waiting: Waiting

    async def end_of(self, task: int, era: object = None) -> TaskResult:
        """Wait for the end of a task; check for a deadlock if a handler waits."""
        if self.waiting_job() is None:
            return await self._waiting.end_of(task, era)
        async with self.waiting_for(task):
            return await self._waiting.end_of(task)

    def waiting_job(self) -> Job | None:
        """Return the job whose handler is about to wait here, or None."""
        job = current_job.get()
        return None if job is None or job.settled or job.worker.env is not self._env else job

    @asynccontextmanager
    async def waiting_for(self, task: int | None) -> AsyncIterator[None]:
        """Note that the running handler waits for a task; WouldDeadlock if that could never end.

        A handler that waits for one of several tasks names any of those that wait for the same
        limits: if that one cannot start, none of them can.
        """
        job = self.waiting_job()
        record = await self._env.view.task(task) if job is not None and task is not None else None
        if job is None or record is None or record.status.terminal:
            yield
            return
        with self.noted(job, record):
            await self.check(job, record)
            yield

    @contextmanager
    def noted(self, job: Job, awaited: Task) -> Iterator[None]:
        """Note that a job waits for a task, for as long as it does."""
        awaits = job.awaits = job.awaits or {}
        elsewhere = (
            awaited.status is Status.RUNNING and job_of(self._workers, awaited.new.id) is None
        )
        awaits[awaited.new.id] = () if elsewhere else limits_of(awaited)
        try:
            yield
        finally:
            awaits.pop(awaited.new.id, None)

    async def check(self, job: Job, awaited: Task) -> None:
        """Raise WouldDeadlock if the wait just noted can never end."""
        running = self._running()
        queued = await self._queued(running)
        room = await self._room({limit for limits in queued.values() for limit in limits})
        if waits_for_itself(job.id, running, queued, room):
            message = (
                f"task {job.id} of pool {job.leased.pool!r} waits for task {awaited.new.id} of "
                f"pool {awaited.new.pool!r}, which can only start or end after a task that waits "
                "has ended; submit it with ctx.submit and do not wait, or use another pool"
            )
            raise WouldDeadlock(
                message, pool=awaited.new.pool, task_id=job.id, awaited=awaited.new.id
            )

    def _jobs(self) -> list[Job]:
        return [job for worker in self._workers for job in worker.jobs.values()]

    def _running(self) -> dict[int, Holder]:
        return {job.id: Holder(_held(job), frozenset(job.awaits or ())) for job in self._jobs()}

    async def _queued(self, running: Mapping[int, Holder]) -> dict[int, tuple[Limit, ...]]:
        """Return the limits of awaited tasks that the store has in a queue."""
        awaited = {
            task: limits
            for job in self._jobs()
            for task, limits in (job.awaits or {}).items()
            if task not in running
        }
        statuses = await self._env.view.status(tuple(awaited))
        pairs = zip(awaited.items(), statuses, strict=True)
        return {task: limits for (task, limits), status in pairs if status == Status.QUEUED}

    async def _room(self, limits: set[Limit]) -> set[Limit]:
        """Return which limits have a free place, or are held by others than our own jobs.

        A limit of 0 that no task holds is a pause: an operator may end it.
        """
        held: dict[Limit, int] = {}
        for job in self._jobs():
            for limit in _held(job):
                held[limit] = held.get(limit, 0) + 1
        room = set()
        for pool, unit in limits:
            view = await self._env.view.pool(pool, measured=False)
            if view is None:
                continue
            most = view.spec.max_concurrent if unit is None else view.spec.unit_limit
            taken = held.get((pool, unit), 0)
            elsewhere = unit is None and view.running > taken
            if most is None or not taken or taken < most or elsewhere:
                room.add((pool, unit))
        return room


def limits_of(task: Task) -> tuple[Limit, ...]:
    """Return the limits a task needs a place of, while it is queued."""
    whole_pool = (task.new.pool, None)
    return (whole_pool,) if task.unit is None else (whole_pool, (task.new.pool, task.unit))


def _held(job: Job) -> tuple[Limit, ...]:
    leased = job.leased
    unit = leased.lane if leased.lane is not None else leased.key
    whole_pool = (leased.pool, None)
    return (whole_pool,) if unit is None else (whole_pool, (leased.pool, unit))
