"""Every error Millpond raises. The reference (`millpond docs errors`) draws their tree."""

from __future__ import annotations

from typing import ClassVar


class MillpondError(Exception):
    """The root: every error of this library has a stable code and says what it is about."""

    code: ClassVar[str] = "MILL-000"
    docs_site: ClassVar[str] = ""
    """Where you serve the site that `make site` builds, if you do: an address for `docs`."""

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code

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


class PoolFull(MillpondError, code="MILL-001"):
    """A bounded pool refused a submit: its queue holds as many tasks as it may."""

    pool: str
    lane: str | None
    depth: int
    bound: int


class NoCapacity(MillpondError, code="MILL-002"):
    """A fail-fast pool refused a submit: nothing could start at once."""

    pool: str
    reason: str


class ConfigError(MillpondError, code="MILL-003"):
    """An option has an invalid value; raised where it is passed."""

    option: str
    value: object
    reason: str

    def __init__(self, option: str, value: object, reason: str) -> None:
        super().__init__(
            f"{option}={_shown(value)} {reason}", option=option, value=value, reason=reason
        )


class BulkheadRejected(MillpondError, code="MILL-004"):
    """A bulkhead refused a permit; `reason` says why, `capacity` how full it was."""

    bulkhead: str
    reason: str
    capacity: object


class BatchTooLarge(MillpondError, code="MILL-005"):
    """A batch is larger than the pool's bound, so it can never be accepted as a whole."""

    pool: str
    size: int
    bound: int


class PoolClosed(MillpondError, code="MILL-006"):
    """The pool is closed and accepts no more tasks."""

    pool: str


class IdempotencyConflict(MillpondError, code="MILL-007"):
    """An idempotency key was used again with another function or other arguments."""

    pool: str
    key: str
    task_id: int


class UnknownPool(MillpondError, code="MILL-008"):
    """No pool with that name was declared."""

    pool: str


class NewerPool(MillpondError, code="MILL-082"):
    """A newer version of Millpond declared this pool with an option that this one does not know.

    This process ignores the pool and serves the others. Update this process, or declare the pool
    without the option.
    """

    pool: str
    option: str


class NoPoolForEvent(UnknownPool, code="MILL-070"):
    """A trigger submits to a pool that was never declared: its event is a dead letter."""

    trigger: str
    event: str


class UnknownTask(MillpondError, code="MILL-009"):
    """No task has that id."""

    task_id: int


class UnknownTrigger(MillpondError, code="MILL-071"):
    """No trigger has that id."""

    trigger: str


class UnknownEvent(MillpondError, code="MILL-072"):
    """No event with that name and id is stored: it never existed, or retention removed it."""

    name: str
    event_id: str


class ConfigConflict(MillpondError, code="MILL-010"):
    """A declaration changes a setting that cannot change while tasks wait; `field` names it."""

    pool: str
    field: str
    stored: object
    declared: object


class StaleRevision(MillpondError, code="MILL-011"):
    """A change was based on an older revision than the one in force."""

    name: str
    given: int
    current: int


class NotWaiting(MillpondError, code="MILL-099"):
    """A task that runs or has ended was to be changed: only a waiting task can be."""

    task_id: int
    status: str


class IllegalTransition(MillpondError, code="MILL-012"):
    """The lifecycle of a task does not have this transition: a bug of this library."""

    status: str
    event: str


class BadPayload(MillpondError, TypeError, code="MILL-013"):
    """A task was called with an argument that it does not take, or that cannot be stored.

    `parameter` names the argument; None if the call as a whole does not fit, as with too many
    arguments. It is also a `TypeError`, like a plain call with the same mistake.
    """

    task: str
    parameter: str | None
    reason: str


class ArgumentsDoNotFit(MillpondError, code="MILL-096"):
    """The stored arguments of a task do not fit the function of this worker.

    The function lacks a parameter, has a new one without default, or takes another type. The task
    is parked, uncharged, until a worker with a fitting function registers; after a day it fails
    with reason `unfit_arguments`. `redrive` queues it again in either case.
    """

    task_id: int
    pool: str
    function: str
    field: str
    worker: str
    reason: str


class ResultNotStored(MillpondError, code="MILL-097"):
    """A closure completed, and its result was not stored: only its own process had it.

    A closure's result is stored if JSON returns it in the same type, within `max_payload`.
    Return plain data (dict, list, str, numbers, None), or submit a registered task, whose
    annotation says how its result is stored.
    """

    task_id: int
    pool: str
    function: str


class ResultUnreadable(MillpondError, code="MILL-098"):
    """A stored result cannot be decoded as the return type of the function in this process.

    The task completed, and the stored result is kept. Read it with a release of the program whose
    function returns that type, or as plain data: `millpond task ID --payload`.
    """

    task_id: int
    pool: str
    function: str
    reason: str


class PayloadTooLarge(MillpondError, code="MILL-014"):
    """A task's encoded arguments have more bytes than `max_payload`."""

    task: str
    size: int
    limit: int


class StoreError(MillpondError, code="MILL-020"):
    """The store could not carry out a request; nothing was changed, unless the subclass says so."""

    of_value = False
    """Whether the store refused one value, and would accept others."""
    of_counts = False
    """Whether a count in the store was about to become impossible."""


class Miscounted(StoreError, code="MILL-081"):
    """A write changed another number of rows than expected: the stored rows are inconsistent.

    Nothing was changed. The store recounts its rows and repeats the operation.
    """

    of_counts = True
    statement: str
    expected: int
    touched: int


class StoreClosed(StoreError, code="MILL-021"):
    """The store was used before it was opened or after it was closed."""


class AlreadyOpen(MillpondError, code="MILL-022"):
    """This Millpond object is already open."""


class NotOpen(MillpondError, code="MILL-023"):
    """The Millpond is not open: use it inside `async with mp:`."""


class DuplicateName(MillpondError, code="MILL-024"):
    """This Millpond already has a pool or task with that name."""

    kind: str
    name: str


class NotSupported(MillpondError, code="MILL-025"):
    """This store does not support the feature; the message says which one does."""

    feature: str


class Unserved(MillpondError, code="MILL-026"):
    """A caller waits for a task of a pool without a live worker; logged, never raised."""

    pool: str


class TaskEnded(MillpondError, code="MILL-030"):
    """An awaited task ended without a result."""

    task_id: int
    pool: str
    attempts: int


class TaskFailed(TaskEnded, code="MILL-031"):
    """The task failed: its handler raised on the last attempt, or it could not run."""

    error_type: str
    error_message: str
    traceback_text: str
    reason: str | None


class TaskCancelled(TaskEnded, code="MILL-032"):
    """The task was cancelled: alone, with its run, or by its handler, which raised `Cancelled`."""

    reason: str | None


class TaskRejected(TaskEnded, code="MILL-033"):
    """The task was dropped from a full pool before it ever ran."""

    reason: str | None
    policy: str | None


class WouldDeadlock(MillpondError, code="MILL-034"):
    """A handler waits for a task that can start only after that handler has ended."""

    pool: str
    task_id: int
    awaited: int


class Stuck(MillpondError, code="MILL-035"):
    """A run cannot continue: all its remaining tasks are paused, parked or without a worker."""

    pool: str
    run: str | None
    tasks: tuple[str, ...]


class RunStopped(MillpondError, code="MILL-036"):
    """A run stopped before its work was done; `report` has its counts."""

    pool: str
    run: str | None
    report: object


class RunFailed(RunStopped, code="MILL-037"):
    """A task of a run with on_error="fail" failed; its waiting tasks were cancelled."""

    task_id: int


class RunOverBudget(RunStopped, code="MILL-038"):
    """A run exceeded max_tasks; its waiting tasks were cancelled."""

    max_tasks: int


class BadStoreURL(MillpondError, code="MILL-040"):
    """The URL of a store is malformed, or names a place where no store can be."""

    url: str
    reason: str


class StoreMissing(StoreError, code="MILL-041"):
    """The store does not exist: the folder, the file, the database or its tables are missing."""

    path: str


class StoreNotWritable(StoreError, code="MILL-042"):
    """The store is read-only: permissions, a read-only disk, a server that is a replica.

    SQLite writes two files beside the database (`-wal` and `-shm`), so the folder must be writable.
    """

    path: str


class UnsafePlace(StoreError, code="MILL-091"):
    """Another user could change the store through a file or folder beside it; it was not opened.

    A file of another user, a symbolic link, or a folder in which every user may rename files. The
    message names the file and says what to do.
    """

    path: str


class NotADatabase(StoreError, code="MILL-043"):
    """The file is not a SQLite database; it was not changed."""

    path: str


class StoreLocked(StoreError, code="MILL-044"):
    """Another process held the database too long, and the store gave up; nothing was changed."""

    path: str
    waited: float


class StoreFull(StoreError, code="MILL-045"):
    """The disk or the file of the store is full; nothing was changed."""

    path: str


class StoreFailing(StoreError, code="MILL-046"):
    """The disk or the file system reported an error; `sqlite` is SQLite's name for it."""

    path: str
    sqlite: str


class StoreCorrupt(StoreError, code="MILL-047"):
    """The database is corrupt."""

    path: str


class OutcomeUnknown(StoreError, code="MILL-048"):
    """The commit failed, or its answer was lost: the change may be stored or not.

    Check before repeating it, or submit with an idempotency key, which makes a repeat harmless.
    """

    path: str


class SchemaTooNew(StoreError, code="MILL-049"):
    """A newer release migrated the store's tables to a schema that this one does not know."""

    path: str
    found: int
    known: int


class SchemaChanged(StoreError, code="MILL-050"):
    """A migration applied to the store differs from the one in this release."""

    path: str
    version: int


class MigrationNeeded(StoreError, code="MILL-051"):
    """The store lacks tables or functions of this release, and `migrate=False` was given."""

    path: str
    found: int
    needed: int


class SQLiteTooOld(StoreError, code="MILL-052"):
    """The SQLite library of this Python is too old for the store."""

    found: str
    needed: str


class StoreForked(StoreError, code="MILL-053"):
    """A forked process used its parent's store, or a SQLite file that its parent had open."""

    path: str


class ForeignConnection(StoreError, code="MILL-054"):
    """A submit cannot use this connection: it is of another file, database, driver or thread."""

    path: str
    found: str


class NotInTransaction(StoreError, code="MILL-055"):
    """The given connection has no open transaction for the submit."""

    path: str


class TransactionTooLong(StoreError, code="MILL-056"):
    """A handler held its transaction open too long: it was rolled back.

    All other writers of the same file wait while it is open.
    """

    path: str
    held: float
    limit: float


class TransactionControl(StoreError, code="MILL-057"):
    """A handler tried to begin, commit or roll back the transaction that settles its attempt.

    Millpond commits it together with the completion of the attempt, or not at all.
    """

    statement: str


class DriverMissing(MillpondError, code="MILL-060"):
    """A required package is not installed; install the named extra of this library."""

    extra: str


class StoreUnreachable(StoreError, code="MILL-061"):
    """The database server did not answer, closed the connection, or is shutting down.

    Nothing was changed. The server may be back in a moment.
    """

    path: str


class StoreDenied(StoreError, code="MILL-062"):
    """The database server rejected the login: password, role, or pg_hba.conf."""

    path: str


class MissingRights(StoreError, code="MILL-063"):
    """The database user lacks privileges; `grants` are the statements that grant them."""

    path: str
    grants: tuple[str, ...]


class TooManyConnections(StoreError, code="MILL-064"):
    """The database server accepts no further connections."""

    path: str


class PostgresTooOld(StoreError, code="MILL-065"):
    """The PostgreSQL server is too old for the store."""

    found: str
    needed: str


class TransactionAborted(StoreError, code="MILL-066"):
    """The given transaction has failed already: roll it back before you submit in it."""

    path: str


class UnstorableText(StoreError, code="MILL-067"):
    """A text has a character that the database cannot store: NUL, or one outside its encoding."""

    of_value = True
    path: str


class Unstorable(MillpondError, code="MILL-085"):
    """A task's outcome could not be stored; only this task ended as failed.

    The message has the database's error. Bounds on all values should prevent this: a value that
    passes them is a bug of this library, or was written to the tables by another program.
    """

    pool: str
    task_id: int


class PoolerBetween(StoreError, code="MILL-068"):
    """A pooler gives each transaction another session, or refuses settings: the URL must say so.

    Nothing was changed. See the URL options `pooler` and `listen`.
    """

    path: str


class WrongEncoding(StoreError, code="MILL-069"):
    """The encoding of the database does not preserve all texts."""

    path: str
    found: str


class BadSchedule(MillpondError, code="MILL-080"):
    """A schedule is invalid: its crontab line, time zone or interval, or it never fires."""

    field: str
    value: object


class LeaseLost(MillpondError, code="MILL-058"):
    """An attempt lost its lease before it could commit; nothing was written."""

    pool: str
    task_id: int
    attempt: int


class AlreadySettled(MillpondError, code="MILL-059"):
    """The attempt was already completed by an earlier commit; nothing was written now."""

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
