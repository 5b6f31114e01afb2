"""Every error Millpond raises.

MillpondError                code, docs
├── ConfigError              option, value, reason
├── BulkheadRejected         bulkhead, reason, capacity
├── PoolFull                 pool, lane, depth, bound
├── NoCapacity               pool, reason
├── BatchTooLarge            pool, size, bound
├── PoolClosed               pool
├── IdempotencyConflict      pool, key, task_id
├── UnknownPool              pool
│   └── NoPoolForEvent       trigger, event
├── NewerPool                pool, option
├── UnknownTask              task_id
├── UnknownTrigger           trigger
├── UnknownEvent             name, event_id
├── ConfigConflict           pool, field, stored, declared
├── StaleRevision            name, given, current
├── IllegalTransition        status, event
├── BadPayload               task, parameter, reason; also a TypeError
├── ArgumentsDoNotFit        task_id, pool, function, field, worker, reason
├── ResultNotStored          task_id, pool, function
├── ResultUnreadable         task_id, pool, function, reason
├── PayloadTooLarge          task, size, limit
├── StoreError
│   ├── StoreClosed
│   ├── StoreForked          path
│   ├── StoreMissing         path
│   ├── StoreNotWritable     path
│   ├── UnsafePlace          path
│   ├── NotADatabase         path
│   ├── StoreLocked          path, waited
│   ├── StoreFull            path
│   ├── StoreFailing         path, sqlite
│   ├── StoreCorrupt         path
│   ├── OutcomeUnknown       path
│   ├── Miscounted           statement, expected, touched
│   ├── SchemaTooNew         path, found, known
│   ├── SchemaChanged        path, version
│   ├── MigrationNeeded      path, found, needed
│   ├── SQLiteTooOld         found, needed
│   ├── ForeignConnection    path, found
│   ├── NotInTransaction     path
│   ├── TransactionTooLong   path, held, limit
│   ├── TransactionControl   statement
│   ├── TransactionAborted   path
│   ├── StoreUnreachable     path
│   ├── StoreDenied          path
│   ├── MissingRights        path, grants
│   ├── TooManyConnections   path
│   ├── PostgresTooOld       found, needed
│   ├── UnstorableText       path
│   ├── PoolerBetween        path
│   └── WrongEncoding        path, found
├── Unstorable               pool, task_id
├── BadSchedule              field, value
├── BadStoreURL              url, reason
├── DriverMissing            extra
├── AlreadyOpen
├── NotOpen
├── DuplicateName            kind, name
├── NotSupported             feature
├── Unserved                 pool
├── TaskEnded                task_id, pool, attempts
│   ├── TaskFailed           error_type, error_message, traceback_text, reason
│   ├── TaskCancelled        reason
│   └── TaskRejected         reason, policy
├── LeaseLost                pool, task_id, attempt
├── AlreadySettled           pool, task_id, attempt
├── WouldDeadlock            pool, task_id, awaited
├── Stuck                    pool, run, tasks
└── RunStopped               pool, run, report
    ├── RunFailed            task_id
    └── RunOverBudget        max_tasks
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AlreadyOpen",
    "AlreadySettled",
    "ArgumentsDoNotFit",
    "BadPayload",
    "BadSchedule",
    "BadStoreURL",
    "BatchTooLarge",
    "BulkheadRejected",
    "ConfigConflict",
    "ConfigError",
    "DriverMissing",
    "DuplicateName",
    "ForeignConnection",
    "IdempotencyConflict",
    "IllegalTransition",
    "LeaseLost",
    "MigrationNeeded",
    "MillpondError",
    "Miscounted",
    "MissingRights",
    "NewerPool",
    "NoCapacity",
    "NoPoolForEvent",
    "NotADatabase",
    "NotInTransaction",
    "NotOpen",
    "NotSupported",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PoolClosed",
    "PoolFull",
    "PoolerBetween",
    "PostgresTooOld",
    "ResultNotStored",
    "ResultUnreadable",
    "RunFailed",
    "RunOverBudget",
    "RunStopped",
    "SQLiteTooOld",
    "SchemaChanged",
    "SchemaTooNew",
    "StaleRevision",
    "StoreClosed",
    "StoreCorrupt",
    "StoreDenied",
    "StoreError",
    "StoreFailing",
    "StoreForked",
    "StoreFull",
    "StoreLocked",
    "StoreMissing",
    "StoreNotWritable",
    "StoreUnreachable",
    "Stuck",
    "TaskCancelled",
    "TaskEnded",
    "TaskFailed",
    "TaskRejected",
    "TooManyConnections",
    "TransactionAborted",
    "TransactionControl",
    "TransactionTooLong",
    "UnknownEvent",
    "UnknownPool",
    "UnknownTask",
    "UnknownTrigger",
    "UnsafePlace",
    "Unserved",
    "Unstorable",
    "UnstorableText",
    "WouldDeadlock",
    "WrongEncoding",
]


class MillpondError(Exception):
    """The root: every error of this library has a stable code and says what it is about."""

    code: ClassVar[str] = "MILL-000"

    def __init__(self, message: str, /, **fields: object) -> None:
        super().__init__(f"{self.code} {message}")
        self.message = message
        self.__dict__.update(fields)

    def __reduce__(self) -> tuple[object, ...]:
        # An error must survive a trip between processes with its fields.
        return type(self).__new__, (type(self), *self.args), self.__dict__

    @property
    def docs(self) -> str:
        """Where the documentation explains this error."""
        return f"docs/reference/errors.md#{self.code.lower()}"


class PoolFull(MillpondError):
    """A bounded pool refused a submit: its queue holds as many tasks as it may."""

    code = "MILL-001"
    pool: str
    lane: str | None
    depth: int
    bound: int


class NoCapacity(MillpondError):
    """A fail-fast pool refused a submit: nothing could start at once."""

    code = "MILL-002"
    pool: str
    reason: str


class ConfigError(MillpondError):
    """An option has a value it cannot have; raised where it was given."""

    code = "MILL-003"
    option: str
    value: object
    reason: str

    def __init__(self, option: str, value: object, reason: str) -> None:
        super().__init__(
            f"{option}={_shown(value)} {reason}", option=option, value=value, reason=reason
        )


class BulkheadRejected(MillpondError):
    """A bulkhead refused a permit; `reason` says why, `capacity` how full it was then."""

    code = "MILL-004"
    bulkhead: str
    reason: str
    capacity: object


class BatchTooLarge(MillpondError):
    """A batch is larger than the pool's bound: it could never be taken whole."""

    code = "MILL-005"
    pool: str
    size: int
    bound: int


class PoolClosed(MillpondError):
    """The pool takes no more work."""

    code = "MILL-006"
    pool: str


class IdempotencyConflict(MillpondError):
    """A known idempotency key came back with another function or other arguments."""

    code = "MILL-007"
    pool: str
    key: str
    task_id: int


class UnknownPool(MillpondError):
    """No pool of that name was declared."""

    code = "MILL-008"
    pool: str


class NewerPool(MillpondError):
    """A newer version of Millpond declared this pool with an option that this one does not know.

    This process leaves the pool alone and goes on with the others. Update it, or declare the pool
    without the option.
    """

    code = "MILL-082"
    pool: str
    option: str


class NoPoolForEvent(UnknownPool):
    """A trigger is to submit to a pool that nobody has declared: its event is a dead letter."""

    code = "MILL-070"
    trigger: str
    event: str


class UnknownTask(MillpondError):
    """No task has that id."""

    code = "MILL-009"
    task_id: int


class UnknownTrigger(MillpondError):
    """No trigger has that id."""

    code = "MILL-071"
    trigger: str


class UnknownEvent(MillpondError):
    """No event of that name and id is kept: there was none, or it is too old to be replayed."""

    code = "MILL-072"
    name: str
    event_id: str


class ConfigConflict(MillpondError):
    """A declaration changes what cannot change under a backlog; `field` names it."""

    code = "MILL-010"
    pool: str
    field: str
    stored: object
    declared: object


class StaleRevision(MillpondError):
    """A change was based on an older revision than the one in force."""

    code = "MILL-011"
    name: str
    given: int
    current: int


class IllegalTransition(MillpondError):
    """A task was asked to take an arrow its lifecycle does not have: a bug of this library."""

    code = "MILL-012"
    status: str
    event: str


class BadPayload(MillpondError, TypeError):
    """A task was called with an argument it does not take, or one that could not be stored.

    `parameter` names the culprit; None if the call as a whole does not fit, as with too many
    arguments. It is also a `TypeError`, as a plain call with the same mistake would be.
    """

    code = "MILL-013"
    task: str
    parameter: str | None
    reason: str


class ArgumentsDoNotFit(MillpondError):
    """The stored arguments of a task do not fit its function as a worker has it.

    The function lacks a parameter, has a new one without default, or takes another type. The task
    is parked, uncharged, until a worker comes whose function takes them; after a day it fails with
    reason `unfit_arguments`. `redrive` queues it again in either case.
    """

    code = "MILL-096"
    task_id: int
    pool: str
    function: str
    field: str
    worker: str
    reason: str


class ResultNotStored(MillpondError):
    """A closure completed, and what it returned was not stored: it was known in its process only.

    A closure's result is stored if it comes back from JSON in its very type, within `max_payload`.
    Return plain data (dict, list, str, numbers, None), or submit a registered task, whose
    annotation says how its result is stored.
    """

    code = "MILL-097"
    task_id: int
    pool: str
    function: str


class ResultUnreadable(MillpondError):
    """A stored result cannot be read as the type that its function returns here.

    The task completed, and the result is kept as it was stored. Read it with a release of the
    program whose function returns that type, or as plain data: `millpond task ID --payload`.
    """

    code = "MILL-098"
    task_id: int
    pool: str
    function: str
    reason: str


class PayloadTooLarge(MillpondError):
    """A task's encoded arguments have more bytes than may be stored."""

    code = "MILL-014"
    task: str
    size: int
    limit: int


class StoreError(MillpondError):
    """The store could not carry out a verb; nothing was changed, unless its kind says otherwise."""

    code = "MILL-020"
    of_value = False
    """Whether the store refused a value, and would take others."""
    of_counts = False
    """Whether a count that the store keeps was about to become impossible."""


class Miscounted(StoreError):
    """A write touched other rows than it must: what is stored is not what was read before.

    Nothing was changed. The store counts its rows anew, and what was asked for is done again.
    """

    code = "MILL-081"
    of_counts = True
    statement: str
    expected: int
    touched: int


class StoreClosed(StoreError):
    """The store was asked for something before it was opened or after it was closed."""

    code = "MILL-021"


class AlreadyOpen(MillpondError):
    """The Millpond is open already; one object is opened once at a time."""

    code = "MILL-022"


class NotOpen(MillpondError):
    """The Millpond is not open: work needs `async with mp:` around it."""

    code = "MILL-023"


class DuplicateName(MillpondError):
    """A pool or task of that name exists on this Millpond already."""

    code = "MILL-024"
    kind: str
    name: str


class NotSupported(MillpondError):
    """The store in use cannot do this; the message says which one can."""

    code = "MILL-025"
    feature: str


class Unserved(MillpondError):
    """Somebody waits for a task of a pool that no live worker serves; logged, never raised."""

    code = "MILL-026"
    pool: str


class TaskEnded(MillpondError):
    """A task that was awaited ended without a result."""

    code = "MILL-030"
    task_id: int
    pool: str
    attempts: int


class TaskFailed(TaskEnded):
    """The task failed: its handler raised until its attempts were used up, or it could not run."""

    code = "MILL-031"
    error_type: str
    error_message: str
    traceback_text: str
    reason: str | None


class TaskCancelled(TaskEnded):
    """The task was cancelled, by somebody or with its run."""

    code = "MILL-032"
    reason: str | None


class TaskRejected(TaskEnded):
    """The task was dropped from a full pool before it ever ran."""

    code = "MILL-033"
    reason: str | None
    policy: str | None


class WouldDeadlock(MillpondError):
    """A handler waits for a task that could only start once that handler has ended."""

    code = "MILL-034"
    pool: str
    task_id: int
    awaited: int


class Stuck(MillpondError):
    """A run cannot go on: all that is left of it is paused, parked or served by nobody."""

    code = "MILL-035"
    pool: str
    run: str | None
    tasks: tuple[str, ...]


class RunStopped(MillpondError):
    """A run was stopped before its work was done; `report` tells how far it came."""

    code = "MILL-036"
    pool: str
    run: str | None
    report: object


class RunFailed(RunStopped):
    """A task of a run with on_error="fail" failed; what waited was cancelled."""

    code = "MILL-037"
    task_id: int


class RunOverBudget(RunStopped):
    """A run reached max_tasks with more to do; what waited was cancelled."""

    code = "MILL-038"
    max_tasks: int


class BadStoreURL(MillpondError):
    """The URL of a store cannot be understood, or names no place where a store can be."""

    code = "MILL-040"
    url: str
    reason: str


class StoreMissing(StoreError):
    """There is no such store: no such folder, no file that may be made, no database or tables."""

    code = "MILL-041"
    path: str


class StoreNotWritable(StoreError):
    """The store may only be read: permissions, a read-only disk, a server that is a replica.

    SQLite writes two more files beside the database (`-wal` and `-shm`), so the folder counts too.
    """

    code = "MILL-042"
    path: str


class UnsafePlace(StoreError):
    """Somebody else could change the store through a file or folder beside it; nothing was opened.

    A file that another user made, a symbolic link, or a folder in which everybody may rename files.
    The message names the file and says what to do.
    """

    code = "MILL-091"
    path: str


class NotADatabase(StoreError):
    """The file is there, and is something else than a SQLite database; it was left as it is."""

    code = "MILL-043"
    path: str


class StoreLocked(StoreError):
    """Somebody held the database for so long that the store gave up; nothing was changed."""

    code = "MILL-044"
    path: str
    waited: float


class StoreFull(StoreError):
    """There is no room left on the disk of the store, or in its file; nothing was changed."""

    code = "MILL-045"
    path: str


class StoreFailing(StoreError):
    """The disk or the file system reported an error; `sqlite` is the database's name for it."""

    code = "MILL-046"
    path: str
    sqlite: str


class StoreCorrupt(StoreError):
    """The database is damaged: what it says of itself does not fit together."""

    code = "MILL-047"
    path: str


class OutcomeUnknown(StoreError):
    """The commit failed, or its answer was lost: whether the change is stored is not known.

    Ask again before doing it again, or submit with an idempotency key, which makes a repeat
    harmless.
    """

    code = "MILL-048"
    path: str


class SchemaTooNew(StoreError):
    """A newer release has changed the store's tables in ways this one does not know."""

    code = "MILL-049"
    path: str
    found: int
    known: int


class SchemaChanged(StoreError):
    """A migration that was applied to the store is not the one this release has."""

    code = "MILL-050"
    path: str
    version: int


class MigrationNeeded(StoreError):
    """The store's tables are older than this release needs, and `migrate=False` was given."""

    code = "MILL-051"
    path: str
    found: int
    needed: int


class SQLiteTooOld(StoreError):
    """Python was built with a SQLite library that lacks what the store needs."""

    code = "MILL-052"
    found: str
    needed: str


class StoreForked(StoreError):
    """A process made by fork asked the store its parent had opened; it must open its own."""

    code = "MILL-053"
    path: str


class ForeignConnection(StoreError):
    """The connection given cannot be joined: it is not of the store's file, driver or thread."""

    code = "MILL-054"
    path: str
    found: str


class NotInTransaction(StoreError):
    """The connection given has no transaction open that a submit could be part of."""

    code = "MILL-055"
    path: str


class TransactionTooLong(StoreError):
    """A handler held its transaction for longer than it may: it was rolled back.

    Everybody else who writes to the same file waits as long as it is open.
    """

    code = "MILL-056"
    path: str
    held: float
    limit: float


class TransactionControl(StoreError):
    """A handler tried to begin, commit or roll back the transaction that settles its attempt.

    It is committed for the handler, with the completion of the attempt, or not at all.
    """

    code = "MILL-057"
    statement: str


class DriverMissing(MillpondError):
    """A package that is needed is not installed: one of the extras of this library has it."""

    code = "MILL-060"
    extra: str


class StoreUnreachable(StoreError):
    """The server of the store did not answer, ended the connection, or is going down.

    Nothing was changed. It may be there again in a moment.
    """

    code = "MILL-061"
    path: str


class StoreDenied(StoreError):
    """The server of the store did not let this user in: password, role, or rules of access."""

    code = "MILL-062"
    path: str


class MissingRights(StoreError):
    """The user of the store lacks rights on it; `grants` are the statements that give them."""

    code = "MILL-063"
    path: str
    grants: tuple[str, ...]


class TooManyConnections(StoreError):
    """The server of the store takes no further connections."""

    code = "MILL-064"
    path: str


class PostgresTooOld(StoreError):
    """The PostgreSQL server is of a release that lacks what the store needs."""

    code = "MILL-065"
    found: str
    needed: str


class TransactionAborted(StoreError):
    """The transaction given has failed before: until it is rolled back, nothing can join it."""

    code = "MILL-066"
    path: str


class UnstorableText(StoreError):
    """A text holds what the database cannot: a NUL character, or one outside of its encoding."""

    code = "MILL-067"
    of_value = True
    path: str


class Unstorable(MillpondError):
    """A task's outcome could not be stored; the task ended as failed, and no other with it.

    The message has what the database said. Values have bounds so that this does not happen: one
    that got past them is a bug of ours, or of whoever wrote to the tables.
    """

    code = "MILL-085"
    pool: str
    task_id: int


class PoolerBetween(StoreError):
    """A pooler lends another session for each transaction, or takes no settings: the URL must say.

    Nothing was changed. See `pooler` and `listen` among the options of the URL.
    """

    code = "MILL-068"
    path: str


class WrongEncoding(StoreError):
    """The database is of an encoding in which texts are not what they were."""

    code = "MILL-069"
    path: str
    found: str


class BadSchedule(MillpondError):
    """A schedule cannot be: its crontab line, its time zone or its pace is none, or never fires."""

    code = "MILL-080"
    field: str
    value: object


class LeaseLost(MillpondError):
    """An attempt lost its lease before it could commit; nothing of it was written."""

    code = "MILL-058"
    pool: str
    task_id: int
    attempt: int


class AlreadySettled(MillpondError):
    """An attempt has committed its completion before, and so is over; nothing was written now."""

    code = "MILL-059"
    pool: str
    task_id: int
    attempt: int


_LONGEST_SHOWN = 80


def _shown(value: object) -> str:
    """Return `value` as a short printable text: messages end in logs and terminals."""
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001 - a number of 5,000 digits cannot be shown, nor some objects
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
