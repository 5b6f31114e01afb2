"""Evictions: report to telemetry which tasks a full queue dropped to take new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status
from millpond.core.service import Service
from millpond.core.spec import OnFull

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millpond.core.spec import PoolSpec
    from millpond.runtime.environment import Environment
    from millpond.runtime.observe.hooks import Hooks
    from millpond.store.protocol import Batch, SubmitAnswer

_REASONS = {
    OnFull.DROP_OLDEST: "drop_oldest_queue_full",
    OnFull.RING_BUFFER: "ring_buffer_drop_oldest",
}


class Evictions(Service):
    """Reports evicted tasks, if there is telemetry."""

    _env: Environment
    _hooks: Hooks
    _specs: Mapping[str, PoolSpec]

    def report(self, batches: Sequence[Batch], answer: SubmitAnswer) -> None:
        """Report the tasks that had to make room for these batches, if there were any."""
        if not answer.ended or self._hooks.probes is None:
            return
        # The answer may name a task as queued that the next batch has evicted.
        rejected = {
            one.task
            for batch in answer.batches
            for one in batch.admissions
            if one.status is Status.REJECTED
        }
        evicted = [task for task in answer.ended if task not in rejected]
        reasons = {
            pool: reason
            for pool in {batch.tasks[0].pool for batch in batches if batch.tasks}
            if (reason := self._reason(pool)) is not None
        }
        if not evicted or not reasons:
            return
        if len(reasons) == 1:
            ((pool, reason),) = reasons.items()
            self._hooks.probes.rejected(pool, reason, len(evicted))
        else:
            self._env.spawn(self._look_up(evicted))

    async def _look_up(self, tasks: list[int]) -> None:
        """Read the pool of each task: one verb submitted to several such pools."""
        for task in tasks:
            record = await self._env.view.task(task)
            probes = self._hooks.probes
            if record is not None and record.status is Status.REJECTED and probes is not None:
                probes.rejected(record.new.pool, record.reason or "", 1)

    def _reason(self, pool: str) -> str | None:
        spec = self._specs.get(pool)
        policy = None if spec is None or spec.backpressure is None else spec.backpressure.on_full
        return _REASONS.get(policy) if policy is not None else None
