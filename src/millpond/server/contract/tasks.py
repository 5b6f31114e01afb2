"""Tasks: lists, counts, the story of one, its result."""

from __future__ import annotations

from typing import Any

import msgspec

from millpond.server.contract.audit import AuditItem
from millpond.server.contract.basics import ErrorOf


class TaskItem(msgspec.Struct, frozen=True, kw_only=True):
    """A task, without what it was called with and what it returned."""

    id: str
    pool: str
    function: str
    status: str
    state: str
    """The status; of a queued task scheduled or parked where it is that."""
    key: str | None
    labels: dict[str, str]
    lane: str | None
    sequence: int
    priority: int
    weight: int
    attempt: int
    """Charged runs so far."""
    attempts: int
    """How many charged runs it may have."""
    runs: int
    """All runs, those that were given back too."""
    revision: int
    """How often it has been changed while it waited."""
    submitted_at: float
    submitted_by: str
    due_at: float
    """When it may start."""
    started_at: float | None
    finished_at: float | None
    expires_at: float | None
    waited: float | None
    """Seconds that the latest attempt waited from when it was due, or waits so far."""
    ran: float | None
    """Seconds that the latest attempt ran, or runs so far."""
    timeout: float | None
    worker: str | None
    """The worker that runs it, or holds it ahead."""
    progress: float | None
    """How far its handler says it is, from 0 to 1."""
    progress_text: str | None
    cancel_requested: bool
    idempotency_key: str | None
    run: str | None
    """The run it belongs to."""
    closure: bool
    """Whether only the process that submitted it can run it."""
    reason: str | None
    """Why it ended, where that was not its handler's doing."""
    error: ErrorOf | None
    """What its latest failed attempt raised."""


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that meet the conditions."""

    items: list[TaskItem]
    next: str | None
    """Pass it as after to go on; null = this is the last page."""
    partial: bool
    """The search read as many rows as it may: more tasks may follow behind next."""
    at: float


class TaskCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks meet the conditions, counted up to a bound."""

    count: int
    more: bool
    """There may be more: the count stopped at its bound, or could not read further."""
    at: float
    """The moment of the count: pass it as before to leave out what came later."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a task."""

    attempt: int
    worker: str | None
    started_at: float
    waited: float
    ended_at: float | None
    ran: float | None
    outcome: str
    """running, or the event that ended it; ended, without a moment, where the part of the audit
    that has this event was not read."""
    reason: str | None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The trace that the submit of a task was part of."""

    trace_id: str
    traceparent: str
    url: str | None


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """What a task was called with and what it returned; entries that sound secret are hidden."""

    arguments: Any
    result: Any
    steps: dict[str, Any]
    """Results of steps that its attempts have done (ctx.once)."""


class TaskStory(msgspec.Struct, frozen=True, kw_only=True):
    """One task, from its submit to its end."""

    task: TaskItem
    why: str
    """Why it is not running, in a sentence; or that it is, or how it ended."""
    attempts: list[Attempt]
    history: list[AuditItem]
    """The audit records of the task, oldest first."""
    history_complete: bool
    """False: only the parts of the audit around the submit, the latest start and the end were read;
    GET /tasks/{task}/history has every record."""
    traceback: str | None
    """Of the latest failed attempt."""
    on_complete: str | None
    """The function that is called with its outcome."""
    parent: str | None
    """The task that submitted it."""
    follow_ups: list[TaskItem]
    """Tasks that its handler submitted, and its callback; the first fifty."""
    trace: Trace | None
    payload: Payload | None
    """null unless payload=1 was asked for."""
    at: float


class TaskHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a task in one part of the audit, oldest first."""

    items: list[AuditItem]
    next: str | None
    """Pass it as after to go on; null = that was the rest."""


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended, or where it is after the time to wait."""

    id: str
    status: str
    done: bool
    result: Any = None
    """What it returned, if it has completed."""
    error: ErrorOf | None = None
    reason: str | None = None
