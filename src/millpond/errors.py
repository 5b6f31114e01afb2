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
├── NotWaiting               task_id, status
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


class MillpondError(Exception):
    """The root: every error of this library has a stable code and says what it is about."""

    code: ClassVar[str] = "MILL-000"
    docs_site: ClassVar[str] = ""
    """Where you serve the site that `make site` builds, if you do: an address for `docs`."""

    def __init__(self, message: str, /, **fields: object) -> None:
        super().__init__(f"{self.code} {message}")
        self.message = message
        self.__dict__.update(fields)

    def __reduce__(self) -> tuple[object, ...]:
        # An error must survive a trip between processes with its fields.
        return type(self).__new__, (type(self), *self.args), self.__dict__

    @property
    def docs(self) -> str:
        """Where the documentation explains this error: a command, or an address of `docs_site`."""
        if not self.docs_site:
            return f"millpond docs {self.code}"
        return f"{self.docs_site.rstrip('/')}/reference/errors.html#{self.code.lower()}"


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
    """An option has an invalid value; raised where it is passed."""

    code = "MILL-003"
    option: str
    value: object
    reason: str

    def __init__(self, option: str, value: object, reason: str) -> None:
        super().__init__(
            f"{option}={_shown(value)} {reason}", option=option, value=value, reason=reason
        )


class BulkheadRejected(MillpondError):
    """A bulkhead refused a permit; `reason` says why, `capacity` how full it was."""

    code = "MILL-004"
    bulkhead: str
    reason: str
    capacity: object


class BatchTooLarge(MillpondError):
    """A batch is larger than the pool's bound, so it can never be accepted as a whole."""

    code = "MILL-005"
    pool: str
    size: int
    bound: int


class PoolClosed(MillpondError):
    """The pool is closed and accepts no more tasks."""

    code = "MILL-006"
    pool: str


class IdempotencyConflict(MillpondError):
    """An idempotency key was used again with another function or other arguments."""

    code = "MILL-007"
    pool: str
    key: str
    task_id: int


class UnknownPool(MillpondError):
    """No pool with that name was declared."""

    code = "MILL-008"
    pool: str


class NewerPool(MillpondError):
    """A newer version of Millpond declared this pool with an option that this one does not know.

    This process ignores the pool and serves the others. Update this process, or declare the pool
    without the option.
    """

    code = "MILL-082"
    pool: str
    option: str


class NoPoolForEvent(UnknownPool):
    """A trigger submits to a pool that was never declared: its event is a dead letter."""

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
    """No event with that name and id is stored: it never existed, or retention removed it."""

    code = "MILL-072"
    name: str
    event_id: str


class ConfigConflict(MillpondError):
    """A declaration changes a setting that cannot change while tasks wait; `field` names it."""

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


class NotWaiting(MillpondError):
    """A task that runs or has ended was to be changed: only a waiting task can be."""

    code = "MILL-099"
    task_id: int
    status: str


class IllegalTransition(MillpondError):
    """The lifecycle of a task does not have this transition: a bug of this library."""

    code = "MILL-012"
    status: str
    event: str


class BadPayload(MillpondError, TypeError):
    """A task was called with an argument that it does not take, or that cannot be stored.

    `parameter` names the argument; None if the call as a whole does not fit, as with too many
    arguments. It is also a `TypeError`, like a plain call with the same mistake.
    """

    code = "MILL-013"
    task: str
    parameter: str | None
    reason: str


class ArgumentsDoNotFit(MillpondError):
    """The stored arguments of a task do not fit the function of this worker.

    The function lacks a parameter, has a new one without default, or takes another type. The task
    is parked, uncharged, until a worker with a fitting function registers; after a day it fails
    with reason `unfit_arguments`. `redrive` queues it again in either case.
    """

    code = "MILL-096"
    task_id: int
    pool: str
    function: str
    field: str
    worker: str
    reason: str


class ResultNotStored(MillpondError):
    """A closure completed, and its result was not stored: only its own process had it.

    A closure's result is stored if JSON returns it in the same type, within `max_payload`.
    Return plain data (dict, list, str, numbers, None), or submit a registered task, whose
    annotation says how its result is stored.
    """

    code = "MILL-097"
    task_id: int
    pool: str
    function: str


class ResultUnreadable(MillpondError):
    """A stored result cannot be decoded as the return type of the function in this process.

    The task completed, and the stored result is kept. Read it with a release of the program whose
    function returns that type, or as plain data: `millpond task ID --payload`.
    """

    code = "MILL-098"
    task_id: int
    pool: str
    function: str
    reason: str


class PayloadTooLarge(MillpondError):
    """A task's encoded arguments have more bytes than `max_payload`."""

    code = "MILL-014"
    task: str
    size: int
    limit: int


class StoreError(MillpondError):
    """The store could not do what was asked; nothing was changed, unless the subclass says so."""

    code = "MILL-020"
    of_value = False
    """Whether the store refused one value, and would accept others."""
    of_counts = False
    """Whether a count in the store was about to become impossible."""


class Miscounted(StoreError):
    """A write changed another number of rows than expected: the stored rows are inconsistent.

    Nothing was changed. The store recounts its rows and repeats the operation.
    """

    code = "MILL-081"
    of_counts = True
    statement: str
    expected: int
    touched: int


class StoreClosed(StoreError):
    """The store was used before it was opened or after it was closed."""

    code = "MILL-021"


class AlreadyOpen(MillpondError):
    """This Millpond object is already open."""

    code = "MILL-022"


class NotOpen(MillpondError):
    """The Millpond is not open: use it inside `async with mp:`."""

    code = "MILL-023"


class DuplicateName(MillpondError):
    """This Millpond already has a pool or task with that name."""

    code = "MILL-024"
    kind: str
    name: str


class NotSupported(MillpondError):
    """This store does not support the feature; the message says which one does."""

    code = "MILL-025"
    feature: str


class Unserved(MillpondError):
    """A caller waits for a task of a pool without a live worker; logged, never raised."""

    code = "MILL-026"
    pool: str


class TaskEnded(MillpondError):
    """An awaited task ended without a result."""

    code = "MILL-030"
    task_id: int
    pool: str
    attempts: int


class TaskFailed(TaskEnded):
    """The task failed: its handler raised on the last attempt, or it could not run."""

    code = "MILL-031"
    error_type: str
    error_message: str
    traceback_text: str
    reason: str | None


class TaskCancelled(TaskEnded):
    """The task was cancelled: alone, with its run, or by its handler, which raised `Cancelled`."""

    code = "MILL-032"
    reason: str | None


class TaskRejected(TaskEnded):
    """The task was dropped from a full pool before it ever ran."""

    code = "MILL-033"
    reason: str | None
    policy: str | None


class WouldDeadlock(MillpondError):
    """A handler waits for a task that can start only after that handler has ended."""

    code = "MILL-034"
    pool: str
    task_id: int
    awaited: int


class Stuck(MillpondError):
    """A run cannot continue: all its remaining tasks are paused, parked or without a worker."""

    code = "MILL-035"
    pool: str
    run: str | None
    tasks: tuple[str, ...]


class RunStopped(MillpondError):
    """A run stopped before its work was done; `report` has its counts."""

    code = "MILL-036"
    pool: str
    run: str | None
    report: object


class RunFailed(RunStopped):
    """A task of a run with on_error="fail" failed; its waiting tasks were cancelled."""

    code = "MILL-037"
    task_id: int


class RunOverBudget(RunStopped):
    """A run exceeded max_tasks; its waiting tasks were cancelled."""

    code = "MILL-038"
    max_tasks: int


class BadStoreURL(MillpondError):
    """The URL of a store is malformed, or names a place where no store can be."""

    code = "MILL-040"
    url: str
    reason: str


class StoreMissing(StoreError):
    """The store does not exist: the folder, the file, the database or its tables are missing."""

    code = "MILL-041"
    path: str


class StoreNotWritable(StoreError):
    """The store is read-only: permissions, a read-only disk, a server that is a replica.

    SQLite writes two files beside the database (`-wal` and `-shm`), so the folder must be writable.
    """

    code = "MILL-042"
    path: str


class UnsafePlace(StoreError):
    """Another user could change the store through a file or folder beside it; it was not opened.

    A file of another user, a symbolic link, or a folder in which every user may rename files. The
    message names the file and says what to do.
    """

    code = "MILL-091"
    path: str


class NotADatabase(StoreError):
    """The file is not a SQLite database; it was not changed."""

    code = "MILL-043"
    path: str


class StoreLocked(StoreError):
    """Another process held the database too long, and the store gave up; nothing was changed."""

    code = "MILL-044"
    path: str
    waited: float


class StoreFull(StoreError):
    """The disk or the file of the store is full; nothing was changed."""

    code = "MILL-045"
    path: str


class StoreFailing(StoreError):
    """The disk or the file system reported an error; `sqlite` is SQLite's name for it."""

    code = "MILL-046"
    path: str
    sqlite: str


class StoreCorrupt(StoreError):
    """The database is corrupt."""

    code = "MILL-047"
    path: str


class OutcomeUnknown(StoreError):
    """The commit failed, or its answer was lost: the change may be stored or not.

    Check before repeating it, or submit with an idempotency key, which makes a repeat harmless.
    """

    code = "MILL-048"
    path: str


class SchemaTooNew(StoreError):
    """A newer release migrated the store's tables to a schema that this one does not know."""

    code = "MILL-049"
    path: str
    found: int
    known: int


class SchemaChanged(StoreError):
    """A migration applied to the store differs from the one in this release."""

    code = "MILL-050"
    path: str
    version: int


class MigrationNeeded(StoreError):
    """The store lacks tables or functions of this release, and `migrate=False` was given."""

    code = "MILL-051"
    path: str
    found: int
    needed: int


class SQLiteTooOld(StoreError):
    """The SQLite library of this Python is too old for the store."""

    code = "MILL-052"
    found: str
    needed: str


class StoreForked(StoreError):
    """A forked process used its parent's store, or a SQLite file that its parent had open."""

    code = "MILL-053"
    path: str


class ForeignConnection(StoreError):
    """A submit cannot use this connection: it is of another file, database, driver or thread."""

    code = "MILL-054"
    path: str
    found: str


class NotInTransaction(StoreError):
    """The given connection has no open transaction for the submit."""

    code = "MILL-055"
    path: str


class TransactionTooLong(StoreError):
    """A handler held its transaction open too long: it was rolled back.

    All other writers of the same file wait while it is open.
    """

    code = "MILL-056"
    path: str
    held: float
    limit: float


class TransactionControl(StoreError):
    """A handler tried to begin, commit or roll back the transaction that settles its attempt.

    Millpond commits it together with the completion of the attempt, or not at all.
    """

    code = "MILL-057"
    statement: str


class DriverMissing(MillpondError):
    """A required package is not installed; install the named extra of this library."""

    code = "MILL-060"
    extra: str


class StoreUnreachable(StoreError):
    """The database server did not answer, closed the connection, or is shutting down.

    Nothing was changed. The server may be back in a moment.
    """

    code = "MILL-061"
    path: str


class StoreDenied(StoreError):
    """The database server rejected the login: password, role, or pg_hba.conf."""

    code = "MILL-062"
    path: str


class MissingRights(StoreError):
    """The database user lacks privileges; `grants` are the statements that grant them."""

    code = "MILL-063"
    path: str
    grants: tuple[str, ...]


class TooManyConnections(StoreError):
    """The database server accepts no further connections."""

    code = "MILL-064"
    path: str


class PostgresTooOld(StoreError):
    """The PostgreSQL server is too old for the store."""

    code = "MILL-065"
    found: str
    needed: str


class TransactionAborted(StoreError):
    """The given transaction has failed already: roll it back before you submit in it."""

    code = "MILL-066"
    path: str


class UnstorableText(StoreError):
    """A text has a character that the database cannot store: NUL, or one outside its encoding."""

    code = "MILL-067"
    of_value = True
    path: str


class Unstorable(MillpondError):
    """A task's outcome could not be stored; only this task ended as failed.

    The message has the database's error. Bounds on all values should prevent this: a value that
    passes them is a bug of this library, or was written to the tables by another program.
    """

    code = "MILL-085"
    pool: str
    task_id: int


class PoolerBetween(StoreError):
    """A pooler gives each transaction another session, or refuses settings: the URL must say so.

    Nothing was changed. See the URL options `pooler` and `listen`.
    """

    code = "MILL-068"
    path: str


class WrongEncoding(StoreError):
    """The encoding of the database does not preserve all texts."""

    code = "MILL-069"
    path: str
    found: str


class BadSchedule(MillpondError):
    """A schedule is invalid: its crontab line, time zone or interval, or it never fires."""

    code = "MILL-080"
    field: str
    value: object


class LeaseLost(MillpondError):
    """An attempt lost its lease before it could commit; nothing was written."""

    code = "MILL-058"
    pool: str
    task_id: int
    attempt: int


class AlreadySettled(MillpondError):
    """The attempt was already completed by an earlier commit; nothing was written now."""

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
