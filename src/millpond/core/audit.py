"""Audit: one record for each arrow a task takes and each order an operator gives.

Records are derived from the transition itself, never written by hand beside it, so nothing can
happen unrecorded. The invariants of this library are predicates over them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from millpond.core.lifecycle import Event, Status, advance
from millpond.core.task import Task


class Kind(StrEnum):
    """What a record is about."""

    SUBMIT = "submit"
    CLAIM = "claim"
    DEQUEUE = "dequeue"
    DROP = "drop"
    RETRY = "retry"
    SETTLE = "settle"
    CANCEL = "cancel"
    LEASE_EXPIRED = "lease_expired"
    CONTROL = "control"


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of the audit: in order per task, comparable between runs."""

    at: float
    kind: Kind
    pool: str
    task: int | None = None
    event: Event | None = None
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
    """Whether the end of the task calls another (on_complete)."""
    cause: int | None = None
    """The task on whose account it happened: the replacement of an evicted one, a callback's."""
    reason: str | None = None
    detail: str | None = None
    by: str | None = None
    """Who gave an order, where that is known."""


KIND_OF: dict[Event, Kind] = {
    Event.SUBMIT: Kind.SUBMIT,
    Event.REDRIVE: Kind.CONTROL,
    Event.CLAIM: Kind.CLAIM,
    Event.LEASE: Kind.DEQUEUE,
    Event.REFUSE: Kind.DROP,
    Event.EVICT: Kind.DROP,
    Event.RETRY: Kind.RETRY,
    Event.CANCEL: Kind.CANCEL,
    Event.LOSE: Kind.LEASE_EXPIRED,
    Event.EXHAUST: Kind.LEASE_EXPIRED,
}


Note: TypeAlias = tuple[
    Task,
    Event,
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
"""An arrow as a store may keep it: the task, and by value only what later arrows change.

Task, event, status before, moment, attempt, runs, token, worker, due, fresh, reason, cause.
"""


def note(
    task: Task, event: Event, before: Status | None, at: float, cause: int | None = None
) -> Note:
    """Note an arrow: all that its record needs and that the task will not know any more."""
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


def told(noted: Note) -> Record:
    """Derive the record of an arrow from its note: the task as it was after it."""
    task, event, before, at, attempt, runs, token, worker, due, fresh, reason, cause = noted
    new = task.new
    return Record(
        at=at,
        kind=KIND_OF.get(event, Kind.SETTLE),
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
    task: Task, event: Event, before: Status | None, *, at: float, cause: int | None = None
) -> Record:
    """Derive the record of one arrow from the task as it is after it."""
    return told(note(task, event, before, at, cause))


def order_record(
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
    """Derive the record of an order, or of a run's end.

    A hold tells which lane or key as `key` and until when as `due`; a corrected weight, what it is.
    """
    return Record(
        at=at,
        kind=Kind.CONTROL,
        pool=pool,
        detail=detail,
        task=task,
        run=run,
        weight=weight,
        key=unit,
        due=until,
        by=by,
    )
