"""Snapshots: a pool, its lanes and its tasks as they are at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from millpond.core.quantiles import Quantiles
from millpond.core.spec import PoolSpec
from millpond.runtime.error_info import ErrorInfo, read
from millpond.runtime.retention import Keep

if TYPE_CHECKING:
    from millpond.core.task import Task
    from millpond.store.protocol import LaneView, PoolView

LoopState = Literal["idle", "running", "scheduled", "saturated"]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at one moment; ended tasks are counted over its whole life."""

    id: str
    """Scope, scope id and name."""
    name: str
    """Its name."""
    scope: str
    """How far it reaches; in memory always `session`."""
    scope_id: str | None
    """The id of its scope, where the scope has one."""
    running: int
    """Tasks at work."""
    queued: int
    """Tasks that wait, for whatever reason."""
    scheduled: int
    """Those of them that are not due yet: delayed, or between two attempts."""
    parked: int
    """Those of them whose function no worker knows."""
    claimed: int
    """Those of them that a worker has claimed ahead."""
    completed: int
    """Tasks that ever completed."""
    failed: int
    """Tasks that ever failed."""
    cancelled: int
    """Tasks that were ever cancelled or purged."""
    rejected: int
    """Tasks that were ever dropped by a full queue."""
    kept: int
    """How many ended tasks are still kept."""
    dead: int
    """How many of them failed: those that a redrive queues again."""
    held_until: float | None
    """Until when a Throttled holds the pool back; None = it does not."""
    held_for: float | None
    """Seconds until it ends."""
    held_units: dict[str, float]
    """Lanes or keys that are held back on their own, and until when; the first hundred."""
    blocked_submitters: int
    """Submitters of this process that wait for room."""
    max_concurrent: int
    """The limit in force: as declared, or as resized."""
    max_per_key: int | None
    """The limit of each key, if there is one."""
    queue: str
    """The order, by name."""
    backpressure: str | None
    """The policy of its bound, by name."""
    lanes: int | None
    """How many lanes it has, if it has lanes."""
    ordered: bool
    """Whether each key is a lane."""
    prefetch: int
    """How many tasks a worker may claim ahead."""
    lease: float
    """Seconds for which a worker holds a task without renewing."""
    paused: bool
    """Whether nothing of it starts."""
    paused_units: tuple[str, ...]
    """Lanes or keys of which nothing starts."""
    closed: bool
    """Whether it takes no more work from outside."""
    state: LoopState
    """`idle`, `running`, `scheduled` or `saturated`; the last two say why it waits."""
    oldest_queued_age: float | None
    """Seconds since the oldest waiting task was submitted."""
    waits: Quantiles
    """Seconds from due to start, of the latest attempts."""
    run_times: Quantiles
    """Seconds from start to end, of the latest attempts."""
    stale_settles: int
    """Settlements that came too late and changed nothing."""
    keep: Keep
    """How long ended tasks are kept, as stored with the pool."""
    revision: int
    """The number of the latest change of its settings."""
    created_at: float
    """When the store first had it."""
    config: PoolSpec
    """Everything as declared."""

    @property
    def total(self) -> int:
        """Every task it ever had."""
        ended = self.completed + self.failed + self.cancelled + self.rejected
        return ended + self.running + self.queued


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One lane at one moment."""

    lane: str
    """Its name: a number, or the key in an ordered pool."""
    state: str
    """`idle`, `processing` or `paused`."""
    pending: int
    """Tasks of it that wait."""
    processed: int
    """Tasks of it that ever completed or failed."""
    current_sequence: int | None
    """The sequence of the one at work."""
    paused: bool
    """Whether the lane itself was paused."""

    @classmethod
    def of(cls, view: LaneView) -> LaneStatus:
        """Return a lane as the store has it."""
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
    """Its id."""
    pool: str
    """Its pool."""
    function: str
    """The name of its function."""
    status: str
    """Where it is."""
    key: str | None
    """Its key."""
    labels: dict[str, str]
    """Its labels."""
    lane: str | None
    """Its lane."""
    priority: int
    """Its priority."""
    seq: int
    """Its place in the pool's queue; pages go by it."""
    sequence: int
    """Its number in its lane, or in the pool."""
    attempt: int
    """Charged runs so far."""
    attempts: int
    """How many charged runs it may have."""
    runs: int
    """All runs, those that were given back too."""
    submitted_at: float
    """When it was submitted."""
    submitted_by: str
    """By whom."""
    due: float
    """When it may start."""
    revision: int
    """How often it was updated while it waited."""
    started_at: float | None
    """When its latest attempt began."""
    finished_at: float | None
    """When it ended."""
    worker: str | None
    """The worker that runs it, or has claimed it ahead."""
    parked: bool
    """Whether no worker knows its function."""
    progress: tuple[float, str] | None
    """The progress that its handler reported, and a text."""
    reason: str | None
    """Why it ended, where its handler did not end it."""
    error: ErrorInfo | None
    """The error of its latest failed attempt."""

    @classmethod
    def of(cls, task: Task) -> TaskInfo:
        """Return a task as the store has it."""
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
            revision=new.revision,
            started_at=task.started_at,
            finished_at=task.finished_at,
            worker=task.worker,
            parked=task.parked,
            progress=task.progress,
            reason=task.reason,
            error=read(task.error),
        )


def state_of(view: PoolView) -> LoopState:
    """Return the state of a pool's loop: saturated and scheduled say why it waits."""
    if view.running and view.running >= view.spec.max_concurrent:
        return "saturated"
    if view.running:
        return "running"
    if view.queued:
        waits = view.queued == view.scheduled + view.parked or view.paused or view.held_until
        return "scheduled" if waits else "running"
    return "idle"
