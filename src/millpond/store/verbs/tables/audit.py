"""The audit records that a store keeps in memory."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from millpond.core.audit import AuditNote, Record, command_record, record_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.lifecycle import Status, Transition
    from millpond.core.task import Task


class AuditTable:
    """The audit: one record per transition of a task and per command."""

    def __init__(self, *, audit_limit: int | None) -> None:
        self._records: list[AuditNote | Record] = []
        self.records_dropped = 0
        self._audit_limit = audit_limit

    by: str | None = None
    """The person or program that gave the current command, if known."""

    def record_command(
        self,
        pool: str,
        detail: str,
        now: float,
        *,
        task: int | None = None,
        run: int | None = None,
        weight: int = 1,
        unit: str | None = None,
        until: float = 0.0,
    ) -> None:
        """Record a command, or an effect of an attempt on its whole pool."""
        self._records.append(
            command_record(
                pool,
                detail,
                at=now,
                task=task,
                run=run,
                weight=weight,
                unit=unit,
                until=until,
                by=self.by,
            )
        )

    @property
    def records_kept(self) -> int:
        """How many records are kept."""
        return len(self._records)

    def records_before(self, moment: float) -> int:
        """Return how many of the kept records were written before a moment."""
        return bisect_left(
            self._records, moment, key=lambda one: one[3] if isinstance(one, tuple) else one.at
        )

    def records(self, start: int, limit: int) -> tuple[Record, ...]:
        """Return the kept records from index `start` on."""
        kept = self._records[start : start + limit]
        return tuple([record_of(one) if isinstance(one, tuple) else one for one in kept])

    def records_of(self, task: int, start: int, limit: int) -> list[tuple[int, Record]]:
        """Return the records of a task among `limit` kept ones, each with its index."""
        kept = enumerate(self._records[start : start + limit], start)
        return [
            (index, record_of(one) if isinstance(one, tuple) else one)
            for index, one in kept
            if (one[0].new.id if isinstance(one, tuple) else one.task) == task
        ]

    def _note_all(
        self,
        tasks: Sequence[Task],
        event: Transition,
        before: Status,
        worker: str | None,
        now: float,
    ) -> None:
        """Record the same transition of several plain tasks of one worker."""
        self._records += [
            (
                *(task, event, before, now, task.attempt, task.runs, task.token, worker),
                *(task.due, False, None, None),
            )
            for task in tasks
        ]

    def _cut_audit(self, limit: int) -> None:
        """Keep `limit` to twice as many records; cut many at once."""
        count = len(self._records)
        surplus = count - limit - (count - 2 * limit - 1) % (limit + 1)
        del self._records[:surplus]
        self.records_dropped += surplus
