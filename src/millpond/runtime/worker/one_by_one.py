"""One by one: settle each attempt alone, after the store refused one of them for its values."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.runtime.bad_values import (
    ended_by,
    is_at_fault,
    is_store_failure,
    without_successor,
)

if TYPE_CHECKING:
    from millpond.core.settle import Settlement
    from millpond.runtime.jobs.job import Job
    from millpond.runtime.worker.attempts import Attempts
    from millpond.runtime.worker.settle_answers import SettleAnswers
    from millpond.runtime.worker.state import WorkerState

log = logging.getLogger("millpond.worker")


class OneByOne(Service):
    """Settles attempts alone; one with a bad value ends as failed."""

    _state: WorkerState
    _attempts: Attempts
    _settle_answers: SettleAnswers

    def __post_init__(self) -> None:
        self._env = self._state.env

    async def settle(self, ended: list[tuple[Settlement, Job, Any]], error: Exception) -> None:
        """Settle each attempt alone.

        What is settled leaves `ended`: the caller puts back what is left there when this raises.
        """
        log.warning(
            "settling %d attempts one by one after an error: %s",
            len(ended),
            error,
            extra=about("settle.split", worker=self._state.name, reason=type(error).__name__),
        )
        suspects: list[tuple[Settlement, Job, Any]] = []
        for _, job, _ in ended:
            job.unsure = True
        while ended:
            decided, job, value = ended[0]
            try:
                answer = await self._env.store.settle([decided])
            except Exception as alone:
                if is_store_failure(alone):
                    ended.extend(suspects)
                    raise
                error = alone
                if not is_at_fault(job, alone) or not await self._fail(decided, job, alone):
                    suspects.append(ended[0])
            else:
                self._settle_answers.apply([(decided, job, value)], None, answer)
            del ended[0]
        if suspects:
            ended.extend(suspects)
            raise error

    async def _fail(self, decided: Settlement, job: Job, error: Exception) -> bool:
        """End a task as failed whose settlement cannot be stored; return whether that worked."""
        failed, unstorable = ended_by(job, decided, error)
        for attempt in (failed, without_successor(failed)):
            try:
                answer = await self._env.store.settle([attempt])
            except Exception as again:
                if is_store_failure(again):
                    raise
                continue
            if self._env.shared:
                self._state.services.waiting.expect(job, attempt, unstorable)
            self._settle_answers.apply([(attempt, job, unstorable)], None, answer)
            if attempt.successor is None and decided.successor is not None:
                # The store cannot learn that this prefetched task has started.
                self._attempts.stop_lost(decided.successor)
            return True
        return False
