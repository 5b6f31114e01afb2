"""Audit: one record per transition of a task and per command of an operator.

Records are derived from the transition itself, never written by hand beside it, so nothing happens
unrecorded. The invariants of this library are predicates over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

import msgspec

from millpond.core.lifecycle import Status, Transition, advance
from millpond.core.task import Task

RUN_FINISHED = "run finished"
"""The detail of the record of a run's end."""


class RecordKind(StrEnum):
    """What a record is about."""

    SUBMIT = "submit"
    UPDATE = "update"
    CLAIM = "claim"
    DEQUEUE = "dequeue"
    DROP = "drop"
    RETRY = "retry"
    SETTLE = "settle"
    CANCEL = "cancel"
    LEASE_EXPIRED = "lease_expired"
    CONTROL = "control"


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One record: in order per task, comparable between runs."""

    at: float
    kind: RecordKind
    pool: str
    task: int | None = None
    event: Transition | None = None
    before: Status | None = None
    after: Status | None = None
    attempt: int = 0
    attempts: int = 0
    runs: int = 0
    token: int = 0
    worker: str | None = None
    key: str | None = None
    share: str | None = None
    lane: str | None = None
    seq: int = 0
    sequence: int = 0
    due: float = 0.0
    weight: int = 1
    fresh: bool = False
    run: int | None = None
    owner: str | None = None
    function: str = ""
    idempotency_key: str | None = None
    dedupe: str | None = None
    callback: bool = False
    """Whether the task has an on_complete callback."""
    cause: int | None = None
    """What caused it: the task that evicted this one, or the task or run whose end called it."""
    reason: str | None = None
    detail: str | None = None
    by: str | None = None
    """Who gave an order, where that is known."""


KIND_OF: dict[Transition, RecordKind] = {
    Transition.SUBMIT: RecordKind.SUBMIT,
    Transition.UPDATE: RecordKind.UPDATE,
    Transition.REDRIVE: RecordKind.CONTROL,
    Transition.CLAIM: RecordKind.CLAIM,
    Transition.LEASE: RecordKind.DEQUEUE,
    Transition.REFUSE: RecordKind.DROP,
    Transition.EVICT: RecordKind.DROP,
    Transition.RETRY: RecordKind.RETRY,
    Transition.CANCEL: RecordKind.CANCEL,
    Transition.LOSE: RecordKind.LEASE_EXPIRED,
    Transition.EXHAUST: RecordKind.LEASE_EXPIRED,
}


AuditNote: TypeAlias = tuple[
    Task,
    Transition,
    Status | None,
    float,
    int,
    int,
    int,
    str | None,
    float,
    bool,
    str | None,
    int | None,
]
"""A transition as a store may keep it: the task, and copies of what changes later.

Task, event, status before, moment, attempt, runs, token, worker, due, fresh, reason, cause.
"""


def note_of(
    task: Task, event: Transition, before: Status | None, at: float, cause: int | None = None
) -> AuditNote:
    """Return the note of a transition: everything its record needs that the task will not keep."""
    return (
        task,
        event,
        before,
        at,
        task.attempt,
        task.runs,
        task.token,
        task.worker,
        task.due,
        task.fresh,
        task.reason,
        cause,
    )


def record_of(noted: AuditNote) -> Record:
    """Return the record of a noted transition: the task as it was after it."""
    task, event, before, at, attempt, runs, token, worker, due, fresh, reason, cause = noted
    new = task.new
    return Record(
        at=at,
        kind=KIND_OF.get(event, RecordKind.SETTLE),
        pool=new.pool,
        task=new.id,
        event=event,
        before=before,
        after=advance(before, event),
        attempt=attempt,
        attempts=new.attempts,
        runs=runs,
        token=token,
        worker=worker,
        key=new.key,
        share=new.share,
        lane=task.lane,
        seq=task.seq,
        sequence=task.sequence,
        due=due,
        weight=new.weight,
        fresh=fresh,
        run=new.run,
        owner=new.owner,
        function=new.call.function,
        idempotency_key=new.idempotency_key,
        dedupe=new.dedupe if new.idempotency_key is not None else None,
        callback=new.on_complete is not None,
        cause=cause,
        reason=reason,
    )


def record(
    task: Task, event: Transition, before: Status | None, *, at: float, cause: int | None = None
) -> Record:
    """Return the record of one transition, from the task as it is after it."""
    return record_of(note_of(task, event, before, at, cause))


def command_record(
    pool: str,
    detail: str,
    *,
    at: float,
    task: int | None = None,
    run: int | None = None,
    weight: int = 1,
    unit: str | None = None,
    until: float = 0.0,
    by: str | None = None,
) -> Record:
    """Return the record of a command, or of a run's end.

    Of a hold, `key` is the lane or key and `due` its end; of a corrected weight, `weight` is it.
    """
    return Record(
        at=at,
        kind=RecordKind.CONTROL,
        pool=pool,
        detail=detail,
        task=task,
        run=run,
        weight=weight,
        key=unit,
        due=until,
        by=by,
    )


def matching(
    records: Sequence[Record], since: float | None, task: int | None
) -> tuple[Record, ...]:
    """Return the records at `since` or later and of `task`, where these are given."""
    return tuple(
        record
        for record in records
        if (since is None or record.at >= since) and (task is None or record.task == task)
    )
