"""What the API takes and returns: the OpenAPI document is made from these.

Moments are seconds since 1970 and lengths of time are seconds. Ids of tasks and runs are texts,
because they have 63 bits and many readers of JSON round numbers beyond 53.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from millpond.core import bounds

Count = Annotated[int, Meta(ge=0, le=bounds.MAX_COUNT)]
Key = Annotated[str, Meta(min_length=1, max_length=bounds.MAX_KEY)]
Name = Annotated[str, Meta(min_length=1, max_length=bounds.MAX_NAME)]
Id = Annotated[str, Meta(pattern="^[0-9]{1,19}$")]
Seconds = Annotated[float, Meta(ge=0, le=bounds.MAX_SECONDS)]

State = Literal[
    "queued", "scheduled", "parked", "running", "completed", "failed", "cancelled", "rejected"
]


class Taken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of what the API takes: a field that it does not know is refused."""


# Errors


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused."""

    code: str
    """A stable code: MILL-... as in the library, or a word of the HTTP API."""
    message: str
    """A sentence for people."""
    fields: dict[str, Any]
    """What the refusal is about, by name."""
    docs: str
    """Where the documentation explains it."""


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Every answer with a status of 400 or more."""

    error: Problem


# Pools


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool did in the last minutes, as this server has seen it."""

    throughput: float
    """Tasks that completed, per second, over the last sparkline step that is over."""
    failures: float
    """Tasks that failed, per second, over the same time."""
    step: float
    """Seconds between two points of a sparkline."""
    spark: list[float]
    """Completed tasks per second, 60 points, oldest first."""
    failed_spark: list[float]
    """Failed tasks per second, 60 points, oldest first."""
    unknown: int
    """Points at the beginning from before this server saw the pool; 0 while all points are 0."""


class PoolGlance(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at a glance."""

    name: str
    """Its name as the store knows it: what paths of this API take."""
    id: str
    """Scope, scope id and name."""
    system: bool
    """Whether it belongs to events, triggers or schedules."""
    state: str
    """idle, running, saturated, waiting, scheduled, parked, held, paused or closed."""
    paused: bool
    paused_units: list[str]
    """Keys or lanes that are paused on their own."""
    closed: bool
    running: int
    limit: int
    """How many tasks may run at a time."""
    declared_limit: int
    """The same as the application declares it."""
    queued: int
    scheduled: int
    """Those of the queued that wait for their time."""
    parked: int
    """Those of the queued that no worker knows how to run."""
    claimed: int
    """Those of the queued that a worker holds ahead."""
    dead: int
    """Failed tasks that are kept: what a redrive would bring back."""
    kept: int
    """Ended tasks that are kept."""
    oldest_queued_at: float | None
    """When the first of the queued tasks was submitted."""
    held_until: float | None
    """Nothing of the pool starts before: a handler was throttled."""
    completed: int
    """Tasks that ever completed."""
    failed: int
    """Tasks that ever failed."""
    cancelled: int
    """Tasks that were ever cancelled."""
    rejected: int
    """Tasks that a full queue ever dropped."""
    queue: str
    """The order of the queue, by name."""
    on_full: str | None
    """What happens beyond the bound, if there is one."""
    bound: int | None
    """How many tasks may wait."""
    lanes: int | None
    ordered: bool
    max_per_key: int | None
    revision: int
    recent: Recent


class PoolPage(msgspec.Struct, frozen=True, kw_only=True):
    """Pools by name."""

    items: list[PoolGlance]
    next: str | None
    at: float
    """The moment that the counts are of."""


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that half, nine in ten and 99 in a hundred of the latest attempts stayed within."""

    p50: float
    p90: float
    p99: float
    samples: int


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """A key or lane of a pool."""

    unit: str | None
    """Its name; null stands for the tasks without a key."""
    share: str | None
    """The partition of a fair pool."""
    queued: int
    """Tasks that are ready."""
    running: int
    paused: bool
    held_until: float | None


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that were in force."""

    revision: int
    config: dict[str, Any]


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that a pool shares with others."""

    name: str
    running: int
    limit: int
    pools: list[str]
    waiting: list[str]


class PoolDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One pool: its counts, its limits, its keys or lanes, its settings."""

    pool: PoolGlance
    waits: Percentiles
    """From due to start."""
    run_times: Percentiles
    """From start to end."""
    units: list[Unit]
    """The first hundred keys or lanes by name; none where nothing depends on keys."""
    held_units: dict[str, float]
    """Keys or lanes that are held back on their own, and until when."""
    budgets: list[Budget]
    config: dict[str, Any]
    """The settings in force."""
    declared: dict[str, Any]
    """The settings as the application declares them."""
    revisions: list[Revision]
    """The latest settings, the latest first."""
    callbacks: dict[str, int]
    """on_complete callbacks: queued, running, completed, failed, cancelled."""
    created_at: float
    stale_settles: int
    at: float


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Rolling figures of a pool, one entry of each list per sample, oldest first."""

    pool: str
    at: list[float]
    completed: list[float]
    """Per second since the sample before."""
    failed: list[float]
    """Per second since the sample before."""
    running: list[int]
    limit: list[int]
    queued: list[int]
    dead: list[int]
    oldest_age: list[float]
    """Seconds since the first of the queued tasks was submitted."""
    wait_p50: list[float | None]
    wait_p90: list[float | None]
    wait_p99: list[float | None]
    run_p50: list[float | None]
    run_p90: list[float | None]
    run_p99: list[float | None]
    """Percentiles are sampled while somebody looks at the pool; null elsewhere."""


# Tasks


class ErrorOf(msgspec.Struct, frozen=True, kw_only=True):
    """An error of a handler."""

    type: str
    message: str


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
    """Pass it as after to go on; null = there are no more."""
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


class AuditItem(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the audit."""

    at: float
    kind: str
    pool: str
    position: int | None = None
    task: str | None = None
    event: str | None = None
    before: str | None = None
    after: str | None = None
    attempt: int | None = None
    worker: str | None = None
    key: str | None = None
    function: str | None = None
    run: str | None = None
    due: float | None = None
    reason: str | None = None
    detail: str | None = None
    """What an operator ordered."""
    by: str | None = None
    """Who ordered it, where that is known."""
    cause: str | None = None
    """The task on whose account it happened."""


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
    """What the audit tells of it, oldest first."""
    history_complete: bool
    """False: only the parts of the audit around the submit, the latest start and the end were read;
    GET /tasks/{task}/history has all of it."""
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
    """What a part of the audit tells of a task, oldest first."""

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


class SubmitOptions(Taken, frozen=True, kw_only=True):
    """What can be said about a task besides its work."""

    key: Key | None = None
    priority: Annotated[int, Meta(ge=bounds.MIN_PRIORITY, le=bounds.MAX_COUNT)] = 0
    weight: Annotated[int, Meta(ge=1, le=bounds.MAX_COUNT)] = 1
    delay: Seconds | None = None
    run_at: float | None = None
    """Not before this moment; wins over delay."""
    expires_in: Annotated[float, Meta(gt=0, le=bounds.MAX_SECONDS)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=bounds.MAX_SECONDS)] | None = None
    attempts: Annotated[int, Meta(ge=1, le=bounds.MAX_COUNT)] | None = None
    """How many charged runs it may have; the default is 3."""
    labels: dict[str, str] = {}
    idempotency_key: Key | None = None
    """The same as the header Idempotency-Key."""
    dedupe: Literal["forever", "success", "inflight", "waiting", "replace"] = "forever"


class Submission(Taken, frozen=True, kw_only=True):
    """A call of a registered function, by its name."""

    function: Annotated[str, Meta(min_length=1, max_length=bounds.MAX_FUNCTION)]
    """The name that workers know it by; the server need not know it."""
    args: list[Any] = []
    """Arguments by position; only where the server knows the function."""
    kwargs: dict[str, Any] = {}
    """Arguments by the names of the parameters."""
    options: SubmitOptions = SubmitOptions()


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was taken, or the one that its idempotency key stands for."""

    id: str
    pool: str
    status: str
    duplicate: bool
    """The idempotency key was known: this is the task it stands for."""
    location: str
    lane: str | None
    sequence: int
    position: int | None
    """How many stand ahead of it, where that is known."""


class BulkFilter(Taken, frozen=True, kw_only=True):
    """The same conditions as those of a list of tasks."""

    pool: str | None = None
    status: State | None = None
    function: str | None = None
    key: str | None = None
    label: list[str] = []
    """name=value, each."""
    error: str | None = None
    run: Id | None = None
    min_age: Seconds | None = None
    max_age: Seconds | None = None
    before: float | None = None
    """Submitted before this moment."""
    ended_before: float | None = None
    """Not ended yet, or before this moment: what a count has not seen is left out."""


class Bulk(Taken, frozen=True, kw_only=True):
    """One action for all tasks that meet conditions."""

    action: Literal["cancel", "redrive"]
    filter: BulkFilter
    expect: Count
    """The count that was shown before; if there are more, 409 refuses it, and nothing is done."""


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What an action did."""

    action: str
    changed: int
    """How many tasks it changed."""
    matched: int = 0
    """How many tasks met the conditions."""
    more: bool = False
    """There are more: do it again."""
    pool: str | None = None
    status: str | None = None
    """Of the task that was named, afterwards."""


class UnitOrder(Taken, frozen=True, kw_only=True):
    """An order for a whole pool, or for one key or lane of it."""

    key: Key | None = None
    lane: Key | None = None


class ResizeOrder(Taken, frozen=True, kw_only=True):
    """A new limit; null = as the application declares it."""

    limit: Count | None
    revision: Annotated[int, Meta(ge=0, le=bounds.MAX_NUMBER)] | None = None
    """The number of this change: refused unless it is above the one in force."""


class CancelOrder(Taken, frozen=True, kw_only=True):
    """How to cancel."""

    interrupt: bool = False
    """Interrupt a running handler, and do not only tell it."""


# Dead letters


class DeadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failed tasks of one pool, function and error."""

    pool: str
    function: str
    type: str
    message: str
    """The message, with numbers and quoted parts replaced by placeholders."""
    sample: str
    """The message of the latest of them, as it is."""
    count: int
    first_at: float
    last_at: float
    tasks: list[str]
    """The latest five."""


class DeadPage(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters grouped by error, the largest group first."""

    items: list[DeadGroup]
    scanned: int
    """How many failed tasks were looked at, the latest first."""
    total: int
    """How many are kept."""
    partial: bool
    """Not all of them were looked at."""
    at: float


# Runs, workers


class RunItem(msgspec.Struct, frozen=True, kw_only=True):
    """A run and the counts of its tree."""

    id: str
    pool: str
    name: str | None
    total: int
    live: int
    """Tasks that are queued or running."""
    ended: dict[str, int]
    """Tasks that ended, by status."""
    opened_at: float
    finished_at: float | None
    finished: bool
    stopped: str | None
    failed_task: str | None


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Runs, pool by pool."""

    items: list[RunItem]
    next: str | None
    at: float


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A run and the first of its tasks that are queued or running."""

    run: RunItem
    tasks: list[TaskItem]
    ended: list[TaskItem]
    """The latest of its tasks that have ended, as far as a short search of its pool finds them."""
    at: float


class HeldTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a worker runs."""

    id: str
    pool: str
    function: str
    key: str | None
    attempt: int
    started_at: float | None


class WorkerItem(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, what it runs now and until when it holds that."""

    id: str
    host: str | None
    pid: int | None
    process: str | None
    """The process it belongs to: several workers of one process share it."""
    version: str | None
    """The release of Millpond that it runs, where it told."""
    number: int
    lease: float
    expires_at: float
    """When its leases expire unless it renews them."""
    alive: bool
    functions: list[str] | None
    """The functions it knows; null = all."""
    closures_only: bool
    """It runs nothing but closures of its own process."""
    running: int
    holding: list[HeldTask]
    """The first hundred of the tasks it runs."""
    ahead: int
    """Tasks that it holds ahead."""


class WorkerPage(msgspec.Struct, frozen=True, kw_only=True):
    """Workers in the order of joining."""

    items: list[WorkerItem]
    next: str | None
    at: float


# Schedules, triggers, events, audit


class ScheduleItem(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule."""

    id: str
    state: str
    """waiting, late or paused."""
    expression: str | None
    every: float | None
    tz: str
    next_at: float
    upcoming: list[float]
    """The next five firings."""
    paused: bool
    missed: str
    grace: float
    into: str | None
    task: str | None
    emits: str | None
    declared_at: float


class SchedulePage(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules, those that fire next first."""

    items: list[ScheduleItem]
    next: str | None
    at: float


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule that was fired by hand did."""

    schedule: str
    task: str | None
    """The task that was submitted."""
    event: str | None
    """The id of the event that was emitted."""


class TriggerItem(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger."""

    id: str
    pool: str
    """The pool of its deliveries."""
    state: str
    """active, paused or removed."""
    on: list[str]
    into: str
    task: str | None
    priority_from: str | None
    key_from: str | None
    weight_from: str | None
    waiting: int
    submitted: int
    failed: int
    dead: int
    revision: int


class TriggerPage(msgspec.Struct, frozen=True, kw_only=True):
    """Triggers by id."""

    items: list[TriggerItem]
    next: str | None
    at: float


class EventItem(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is kept."""

    name: str
    id: str
    emitted_at: float
    emitted_by: str
    status: str
    replay: bool
    deliveries: dict[str, str]
    """The triggers it was for, and the task of each that delivers it."""
    task: str
    payload: Any = None
    """null unless payload=1 was asked for."""


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events, the latest first."""

    items: list[EventItem]
    next: str | None
    partial: bool
    at: float


class Emission(Taken, frozen=True, kw_only=True):
    """An event to emit."""

    name: Name
    payload: Any = None
    id: Annotated[str, Meta(min_length=1, max_length=bounds.MAX_EVENT_ID)] | None = None
    """Its id: an event of this name and id is emitted once only."""


class Emitted(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is stored."""

    name: str
    id: str
    task: str
    duplicate: bool


class ReceiptItem(msgspec.Struct, frozen=True, kw_only=True):
    """What a trigger made of an event."""

    trigger: str
    outcome: str
    """submitted, duplicate, rejected, skipped, failed or cancelled; pending: not yet decided."""
    pool: str | None
    task: str | None
    delivery: str | None
    reason: str | None


class ReceiptPage(msgspec.Struct, frozen=True, kw_only=True):
    """The receipts of one event."""

    event: str
    id: str
    items: list[ReceiptItem]


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Audit records, the latest first."""

    items: list[AuditItem]
    next: str | None
    partial: bool
    at: float


# Sessions


class Login(Taken, frozen=True, kw_only=True):
    """A token, for a browser that wants a session."""

    token: Annotated[str, Meta(max_length=4096)]


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what that one may do."""

    authenticated: bool
    token_required: bool
    actor: str | None
    """As the audit names it."""
    actions: bool
    """Whether this server lets requests change anything."""
    csrf: str | None
    """What a page sends as X-CSRF-Token with every request that changes something."""
    version: str | None
    store: str | None
    """Where the store is, without secrets."""
    now: float | None
    """The time of the store."""
