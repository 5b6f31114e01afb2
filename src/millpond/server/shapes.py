"""From what a store returns to what the API returns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.event import SYSTEM
from millpond.core.lifecycle import Status, Transition
from millpond.core.ticks import rounded
from millpond.pool.shown_state import ran, shown_state, shown_task_state, waited
from millpond.runtime.error_info import read
from millpond.runtime.jobs.policy import carried
from millpond.server import contract

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.audit import Record
    from millpond.core.quantiles import Quantiles
    from millpond.core.run import RunView
    from millpond.core.spec import PoolSpec
    from millpond.core.task import Task
    from millpond.store.protocol import PoolView, UnitView, WorkerView

LONGEST_MESSAGE = 500
"""Characters of an error that a list shows."""

SCOPED = ("pipeline:", "tenant:", "org:")

_OWNER = re.compile(r"(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{8}\Z")


def pool_id(name: str) -> str:
    """Return scope, scope id and name of a pool."""
    return name if name.startswith((*SCOPED, SYSTEM)) else f"app::{name}"


def pool_summary(view: PoolView, now: float, recent: contract.Recent) -> contract.PoolGlance:
    """Return a pool in short."""
    spec, bound = view.spec, view.spec.backpressure
    total = view.totals.get
    return contract.PoolGlance(
        name=spec.name,
        id=pool_id(spec.name),
        system=spec.name.startswith(SYSTEM),
        state=shown_state(view, now),
        paused=view.paused,
        paused_units=list(view.paused_units),
        closed=view.closed,
        running=view.running,
        limit=spec.max_concurrent,
        declared_limit=view.declared.max_concurrent,
        queued=view.queued,
        scheduled=view.scheduled,
        parked=view.parked,
        claimed=view.claimed,
        dead=view.dead,
        kept=view.kept,
        oldest_queued_at=view.oldest_queued_at,
        held_until=view.held_until or None,
        completed=total(Status.COMPLETED, 0),
        failed=total(Status.FAILED, 0),
        cancelled=total(Status.CANCELLED, 0),
        rejected=total(Status.REJECTED, 0),
        queue=str(spec.order.kind),
        on_full=None if bound is None else str(bound.on_full),
        bound=None if bound is None else bound.depth,
        lanes=spec.lanes,
        ordered=spec.ordered,
        max_per_key=spec.max_per_key,
        revision=view.revision,
        recent=recent,
    )


def percentiles(measured: Quantiles) -> contract.Percentiles:
    """Return quantiles as they are shown."""
    return contract.Percentiles(
        p50=rounded(measured.p50),
        p90=rounded(measured.p90),
        p99=rounded(measured.p99),
        samples=measured.samples,
    )


def unit(view: UnitView) -> contract.Unit:
    """Return a key or lane."""
    return contract.Unit(
        unit=view.unit,
        share=view.share,
        queued=view.queued,
        running=view.running,
        paused=view.paused,
        held_until=view.held_until or None,
    )


def config(spec: PoolSpec) -> dict[str, Any]:
    """Return the settings of a pool as plain data."""
    found: dict[str, Any] = msgspec.to_builtins(spec)
    return found


def task_item(task: Task, now: float) -> contract.TaskItem:
    """Return a task without what it was called with and what it returned."""
    new = task.new
    fraction, text = task.progress or (None, None)
    return contract.TaskItem(
        id=str(new.id),
        pool=new.pool,
        function=new.call.function,
        status=str(task.status),
        state=shown_task_state(task, now),
        key=new.key,
        labels=new.labels,
        lane=task.lane,
        sequence=task.sequence,
        priority=new.priority,
        weight=new.weight,
        attempt=task.attempt,
        attempts=new.attempts,
        runs=task.runs,
        revision=new.revision,
        submitted_at=task.submitted_at,
        submitted_by=new.submitted_by,
        due_at=task.due,
        started_at=task.started_at,
        finished_at=task.finished_at,
        expires_at=task.expires_at,
        waited=_rounded(waited(task, now)),
        ran=_rounded(ran(task, now)),
        timeout=new.timeout,
        worker=task.worker,
        progress=fraction,
        progress_text=text,
        cancel_requested=task.cancel_requested,
        idempotency_key=new.idempotency_key,
        run=None if new.run is None else str(new.run),
        closure=new.owner is not None,
        reason=task.reason,
        error=error_of(task.error),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else rounded(seconds)


def error_of(stored: bytes | None) -> contract.ErrorOf | None:
    """Return a stored error without its traceback."""
    info = read(stored)
    if info is None:
        return None
    return contract.ErrorOf(type=info.type, message=info.message[:LONGEST_MESSAGE])


def audit_item(record: Record, position: int | None = None) -> contract.AuditItem:
    """Return an audit record without the token of its fence: a client could settle with it."""
    moved = record.event is not None
    return contract.AuditItem(
        at=record.at,
        kind=str(record.kind),
        pool=record.pool,
        position=position,
        task=None if record.task is None else str(record.task),
        event=None if record.event is None else str(record.event),
        before=None if record.before is None else str(record.before),
        after=None if record.after is None else str(record.after),
        attempt=record.attempt if moved else None,
        worker=record.worker,
        key=record.key,
        function=record.function or None,
        run=None if record.run is None else str(record.run),
        due=record.due or None,
        reason=record.reason,
        detail=record.detail,
        by=record.by,
        cause=None if record.cause is None else str(record.cause),
    )


def attempts(history: Sequence[Record], now: float, *, running: bool) -> list[contract.Attempt]:
    """Return each run of a task: when, by whom, how long it had waited, how it ended.

    `running` says whether the task runs now: otherwise every attempt has ended, also one whose end
    is not among the records.
    """
    found: list[contract.Attempt] = []
    due: float | None = None
    for record in history:
        if record.event is Transition.LEASE:
            found[-1:] = map(_ended, found[-1:])
            found.append(
                contract.Attempt(
                    attempt=record.attempt,
                    worker=record.worker,
                    started_at=record.at,
                    waited=max(record.at - (record.due if due is None else due), 0.0),
                    ended_at=None,
                    ran=max(now - record.at, 0.0),
                    outcome="running",
                    reason=None,
                )
            )
        elif record.before is Status.RUNNING and found:
            found[-1] = msgspec.structs.replace(
                found[-1],
                ended_at=record.at,
                ran=max(record.at - found[-1].started_at, 0.0),
                outcome=str(record.event),
                reason=record.reason,
            )
        if record.event is not None and record.after is Status.QUEUED:
            due = record.due
    if not running:
        found[-1:] = map(_ended, found[-1:])
    return found


def _ended(attempt: contract.Attempt) -> contract.Attempt:
    """Return an attempt that is over; when and how is unknown if no record said so."""
    if attempt.outcome != "running":
        return attempt
    return msgspec.structs.replace(attempt, outcome="ended", ran=None)


def trace_of(task: Task, url: str | None) -> contract.Trace | None:
    """Return the trace that a task carries, if there was telemetry when it was submitted."""
    if not task.new.options:
        return None
    parent = carried(task.new.options).trace.get("traceparent", "")
    parts = parent.split("-")
    if len(parts) < 4:
        return None
    shown = None if url is None else url.replace("{trace_id}", parts[1])
    return contract.Trace(trace_id=parts[1], traceparent=parent, url=shown)


def run_item(view: RunView) -> contract.RunItem:
    """Return a run."""
    return contract.RunItem(
        id=str(view.id),
        pool=view.pool,
        name=view.name,
        total=view.total,
        live=view.live,
        ended=view.ended,
        opened_at=view.opened_at,
        finished_at=view.finished_at,
        finished=view.finished,
        stopped=view.stopped,
        failed_task=None if view.failed_task is None else str(view.failed_task),
    )


def worker_item(view: WorkerView, now: float) -> contract.WorkerItem:
    """Return a worker, with the host and the process that its owner names."""
    found = _OWNER.match(view.owner or "")
    return contract.WorkerItem(
        id=view.id,
        host=found["host"] if found else None,
        pid=int(found["pid"]) if found else None,
        process=view.owner,
        version=view.version,
        number=view.number,
        lease=view.lease,
        expires_at=view.expires_at,
        alive=view.expires_at > now,
        functions=_functions(view),
        closures_only=view.functions is not None and not view.functions,
        running=view.running,
        holding=[
            contract.HeldTask(
                id=str(one.task),
                pool=one.pool,
                function=one.function,
                key=one.key,
                attempt=one.attempt,
                started_at=one.started_at,
            )
            for one in view.holding
        ],
        ahead=view.ahead,
    )


def _functions(view: WorkerView) -> list[str] | None:
    """Return the functions that a worker knows, without those of the library itself."""
    if view.functions is None:
        return None
    return [name for name in view.functions if name and not name.startswith(SYSTEM)]
