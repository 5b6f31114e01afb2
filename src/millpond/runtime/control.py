"""Control: cancels and other orders, and what they mean for the jobs of this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.control import Cancel, CancelRun, Progress
from millpond.core.service import Service
from millpond.core.task import CALLBACKS
from millpond.errors import ConfigError
from millpond.runtime.jobs.job import CancelReason, job_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.control import Command
    from millpond.runtime.answers import Answers
    from millpond.runtime.environment import Environment
    from millpond.runtime.jobs.job import Job, WorkerProtocol
    from millpond.runtime.waiting.progress import ProgressBoard
    from millpond.runtime.waiting.results import Waiting
    from millpond.store.protocol import ControlAnswer


class Control(Service):
    """Sends orders to the store and stops the jobs of this process that they concern."""

    _env: Environment
    _workers: Sequence[WorkerProtocol]
    _answers: Answers
    _waiting: Waiting
    _progress: ProgressBoard

    async def order(self, order: Command) -> ControlAnswer:
        """Send an order, in as many pages as it needs; return the sum of their answers."""
        answer = await self._send(order)
        count, cancelled, interrupted = answer.count, answer.cancelled, answer.interrupted
        while answer.more is not None:
            # Other tasks and other processes get a turn between two pages.
            await asyncio.sleep(0)
            answer = await self._send(msgspec.structs.replace(order, page=answer.more))
            count, cancelled = count + answer.count, cancelled + answer.cancelled
            interrupted += answer.interrupted
        return msgspec.structs.replace(
            answer, count=count, cancelled=cancelled, interrupted=interrupted
        )

    async def _send(self, order: Command) -> ControlAnswer:
        answer = await self._env.store.control(order)
        self._answers.apply(answer)
        return answer

    async def cancel(
        self,
        tasks: tuple[int, ...],
        *,
        interrupt: bool,
        of: str | None = None,
        by: str | None = None,
    ) -> int:
        """Cancel tasks (of one pool); jobs of this process are stopped at once."""
        answer = await self._send(Cancel(tasks, interrupt, of, by))
        self.give_back_prefetched()
        for task in tasks:
            job = job_of(self._workers, task)
            if job is not None and of in (None, job.leased.pool.removesuffix(CALLBACKS)):
                job.worker.stop_job(job, CancelReason.CANCEL, interrupt=interrupt)
        return answer.count

    async def cancel_one(self, task: int, *, interrupt: bool, of: str | None = None) -> bool:
        """Cancel a task; return whether that changed anything. UnknownTask if it never was."""
        changed = bool(await self.cancel((task,), interrupt=interrupt, of=of))
        if not changed and await self._env.view.status((task,)) == ("unknown",):
            raise self._waiting.unknown(task)
        return changed

    async def cancel_run(self, run: int, *, by: str | None = None) -> None:
        """Stop a run: cancel its waiting tasks, and stop its jobs of this process at once."""
        await self._send(CancelRun(run, by))
        for worker in self._workers:
            for job in list(worker.jobs.values()):
                if job.leased.run == run and not job.leased.pool.endswith(CALLBACKS):
                    worker.stop_job(job, CancelReason.CANCEL, interrupt=False)

    def cancelled_all(
        self, pool: str, *, before: float | None, unit: str | None, interrupt: bool
    ) -> None:
        """Stop the jobs of this process that an order for a whole pool has cancelled."""
        for worker in self._workers:
            for job in list(worker.jobs.values()):
                leased = job.leased
                own = leased.lane if leased.lane is not None else leased.key
                concerned = leased.pool == pool and unit in (None, own)
                if concerned and (before is None or leased.submitted_at < before):
                    worker.stop_job(job, CancelReason.CANCEL, interrupt=interrupt)

    def cancelled_elsewhere(self, tasks: tuple[int, ...], interrupted: tuple[int, ...]) -> None:
        """Stop the jobs of tasks that another process cancelled, and interrupt some of them.

        Every renewal repeats this: a handler that cleans up must not be interrupted again.
        """
        for task in tasks:
            job = job_of(self._workers, task)
            if job is not None:
                hit = task in interrupted and not job.interrupted
                job.worker.stop_job(job, CancelReason.CANCEL, interrupt=hit)
        for worker in self._workers if tasks else ():
            for pool in worker.prefetched(tasks):
                worker.give_back_prefetched(pool)

    def give_back_prefetched(self, pool: str | None = None) -> None:
        """Give back what workers have prefetched: an order may concern it."""
        for worker in self._workers:
            worker.give_back_prefetched(pool)

    async def report_progress(self, job: Job, fraction: float, text: str) -> None:
        """Store the progress of an attempt, if it still holds its lease."""
        if not 0.0 <= fraction <= 1.0:
            raise ConfigError("fraction", fraction, "must be from 0 to 1")
        text = check.cut(check.encodable("text", check.text("text", text)), bounds.MAX_PROGRESS)
        await self._send(Progress(job.leased.fence, fraction, text))
        self._progress.reported(job.id, fraction, text)
