"""Snapshots: a pool, its lanes and its tasks as they are at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from millpond.core.errors import ConfigError
from millpond.core.lifecycle import Status
from millpond.core.quantiles import Quantiles
from millpond.core.spec import PoolSpec
from millpond.runtime.error import ErrorInfo, read

if TYPE_CHECKING:
    from millpond.core.task import Task
    from millpond.pool.pool import Pool
    from millpond.store.protocol import LaneView, PoolView

LoopState = Literal["idle", "running", "scheduled", "saturated"]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at one moment; ended tasks are counted over its whole life."""

    id: str
    name: str
    scope: str
    scope_id: str | None
    running: int
    queued: int
    scheduled: int
    parked: int
    claimed: int
    completed: int
    failed: int
    cancelled: int
    rejected: int
    kept: int
    """How many ended tasks are still kept."""
    blocked_submitters: int
    max_concurrent: int
    max_per_key: int | None
    queue: str
    backpressure: str | None
    lanes: int | None
    ordered: bool
    prefetch: int
    lease: float
    paused: bool
    paused_units: tuple[str, ...]
    closed: bool
    state: LoopState
    oldest_queued_age: float | None
    waits: Quantiles
    run_times: Quantiles
    stale_settles: int
    revision: int
    created_at: float
    config: PoolSpec

    @property
    def total(self) -> int:
        """Every task it ever had."""
        ended = self.completed + self.failed + self.cancelled + self.rejected
        return ended + self.running + self.queued


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One lane at one moment."""

    lane: str
    state: str
    pending: int
    processed: int
    current_sequence: int | None
    paused: bool

    @classmethod
    def of(cls, view: LaneView) -> LaneStatus:
        """Return what the store tells of a lane."""
        return cls(
            lane=view.lane,
            state=str(view.state),
            pending=view.pending,
            processed=view.processed,
            current_sequence=view.current_sequence,
            paused=view.paused,
        )


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One task at one moment."""

    id: int
    pool: str
    function: str
    status: str
    key: str | None
    labels: dict[str, str]
    lane: str | None
    priority: int
    seq: int
    sequence: int
    attempt: int
    attempts: int
    runs: int
    submitted_at: float
    submitted_by: str
    due: float
    started_at: float | None
    finished_at: float | None
    worker: str | None
    parked: bool
    progress: tuple[float, str] | None
    reason: str | None
    error: ErrorInfo | None

    @classmethod
    def of(cls, task: Task) -> TaskInfo:
        """Return what is told of a task."""
        new = task.new
        return cls(
            id=new.id,
            pool=new.pool,
            function=new.call.function,
            status=str(task.status),
            key=new.key,
            labels=dict(new.labels),
            lane=task.lane,
            priority=new.priority,
            seq=task.seq,
            sequence=task.sequence,
            attempt=task.attempt,
            attempts=new.attempts,
            runs=task.runs,
            submitted_at=task.submitted_at,
            submitted_by=new.submitted_by,
            due=task.due,
            started_at=task.started_at,
            finished_at=task.finished_at,
            worker=task.worker,
            parked=task.parked,
            progress=task.progress,
            reason=task.reason,
            error=read(task.error),
        )


async def snapshot(pool: Pool) -> Snapshot:
    """Read a pool."""
    runtime = pool.runtime
    view = await runtime.view.pool(pool.name, now=runtime.clock())
    assert view is not None  # noqa: S101 - it was declared before it was asked about
    oldest = view.oldest_queued_at
    bound = view.spec.backpressure
    return Snapshot(
        id=pool.id,
        name=pool.name,
        scope=pool.scope,
        scope_id=pool.scope_id,
        running=view.running,
        queued=view.queued,
        scheduled=view.scheduled,
        parked=view.parked,
        claimed=view.claimed,
        completed=view.totals.get(Status.COMPLETED, 0),
        failed=view.totals.get(Status.FAILED, 0),
        cancelled=view.totals.get(Status.CANCELLED, 0),
        rejected=view.totals.get(Status.REJECTED, 0),
        kept=view.kept,
        blocked_submitters=runtime.submitter.blocked(pool.name),
        max_concurrent=view.spec.max_concurrent,
        max_per_key=view.spec.max_per_key,
        queue=str(view.spec.order.kind),
        backpressure=None if bound is None else str(bound.on_full),
        lanes=view.spec.lanes,
        ordered=view.spec.ordered,
        prefetch=view.spec.prefetch,
        lease=pool.millpond.lease,
        paused=view.paused,
        paused_units=view.paused_units,
        closed=view.closed,
        state=state_of(view),
        oldest_queued_age=None if oldest is None else max(runtime.clock() - oldest, 0.0),
        waits=view.waits,
        run_times=view.run_times,
        stale_settles=view.stale_settles,
        revision=view.revision,
        created_at=view.created_at,
        config=pool.spec,
    )


def state_of(view: PoolView) -> LoopState:
    """Return what the loop of a pool is at: saturated and scheduled say why it waits."""
    if view.running and view.running >= view.spec.max_concurrent:
        return "saturated"
    if view.running:
        return "running"
    if view.queued:
        return "scheduled" if view.queued == view.scheduled or view.paused else "running"
    return "idle"


async def tasks(
    pool: Pool, *, status: str | None, key: str | None, after: int, limit: int
) -> list[TaskInfo]:
    """Return a page of a pool's tasks."""
    try:
        wanted = None if status is None else Status(status)
    except ValueError:
        known = ", ".join(Status)
        raise ConfigError("status", status, f"must be one of {known}") from None
    page = await pool.runtime.view.tasks(
        pool.name, status=wanted, key=key, after=after, limit=limit
    )
    return [TaskInfo.of(task) for task in page.tasks]


def plain(value: Any) -> Any:  # noqa: ANN401 - structures of plain data
    """Return a snapshot as dicts and lists."""
    return msgspec.to_builtins(value)
