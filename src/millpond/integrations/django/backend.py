"""The task backend: `enqueue` submits to a pool per queue, `get_result` reads what is stored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core import checks
from django.db import close_old_connections, connections
from django.utils.module_loading import import_string

from millpond.core.backoff import Retry
from millpond.core.lifecycle import Status
from millpond.errors import ConfigError, UnknownTask
from millpond.integrations.django.store_of_database import url_of
from millpond.integrations.django.task_api import (
    BaseTaskBackend,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from millpond.pool.context import SyncContext
from millpond.pool.internals import internals_of
from millpond.pool.millpond import Millpond
from millpond.pool.snapshot import TaskInfo

if TYPE_CHECKING:
    from millpond.core.task import Task as Record
    from millpond.pool.task import TaskFunction

FUNCTION = "django.tasks"
"""The name of the one function that runs every task of Django."""

CONCURRENCY = 10
"""Tasks of one queue that run at once, unless OPTIONS say otherwise."""

_OPTIONS = ("database", "pools", "transactional", "url")
_STATUS = {
    Status.QUEUED: TaskResultStatus.READY,
    Status.RUNNING: TaskResultStatus.RUNNING,
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
}
_MADE: dict[str, Millpond] = {}
_LOCK = threading.Lock()


class MillpondBackend(BaseTaskBackend):  # type: ignore[misc] # Django has no types
    """Stores tasks in the project's own database, or in the store that `url` names.

    OPTIONS: `database`, the alias of the database ("default"); `url`, another store; `pools`, the
    options of `mp.pool` by queue; `transactional`, False to store tasks outside of `atomic()`.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = sorted(set(self.options) - set(_OPTIONS))
        if unknown:
            known = ", ".join(_OPTIONS)
            raise ConfigError("OPTIONS", unknown[0], f"is none of {known} (TASKS[{alias!r}])")
        self.database: str = self.options.get("database", "default")
        own = "url" not in self.options or "database" in self.options
        self.transactional: bool = self.options.get("transactional", own)

    @property
    def millpond(self) -> Millpond:
        """The Millpond of this backend; every thread of the process has the same."""
        with _LOCK:
            if self.alias not in _MADE:
                _MADE[self.alias] = self._make()
            return _MADE[self.alias]

    def _make(self) -> Millpond:
        url = self.options.get("url") or url_of(settings.DATABASES[self.database])
        mp = Millpond(url)
        pools = self.options.get("pools", {})
        for queue in sorted(self.queues | set(pools)):
            # Django promises no retries, and its tasks do not expect any.
            usual = {"max_concurrent": CONCURRENCY, "retry": Retry.never()}
            mp.pool(queue, **{**usual, **pools.get(queue, {})})
        mp.task(name=FUNCTION)(_runner(self))
        return mp

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Store a call of a task, inside the transaction that is open on the database."""
        self.validate_task(task)
        result = _new_result(self, task, args, kwargs)
        mp = self.millpond
        self._open(mp)
        function: TaskFunction[..., Any, Any] = mp.tasks[FUNCTION]
        call = function.bind(task.module_path, result.args, result.kwargs)
        options: dict[str, Any] = {
            "priority": task.priority,
            "labels": {"task": task.module_path},
        }
        if task.run_after is not None:
            options["run_at"] = _aware(task.run_after)
        handle = mp.get_pool(task.queue_name).sync.submit(
            call, connection=self._transaction(), **options
        )
        object.__setattr__(result, "id", str(handle.id))
        object.__setattr__(result, "enqueued_at", _moment(handle.submitted_at))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:  # noqa: ANN401 - TaskResult
        """Return the result of a task as it is stored now."""
        mp = self.millpond
        self._open(mp)
        try:
            handle = mp.sync.handle(int(result_id))
        except (UnknownTask, ValueError):
            raise TaskResultDoesNotExist(result_id) from None
        record = internals_of(handle).record
        if record is None or record.new.call.function != FUNCTION:
            raise TaskResultDoesNotExist(result_id)
        return _stored_result(
            self, record, handle.result if record.status is Status.COMPLETED else None
        )

    def check(self, **kwargs: Any) -> list[Any]:  # noqa: ANN401 - checks of Django
        """Warn of transactions on SQLite that cannot write after they have read."""
        found = list(super().check(**kwargs))
        database = settings.DATABASES.get(self.database, {})
        mode = str(database.get("OPTIONS", {}).get("transaction_mode", "DEFERRED"))
        is_sqlite = str(database.get("ENGINE", "")).endswith("sqlite3")
        if self.transactional and is_sqlite and mode.upper() == "DEFERRED":
            found.append(
                checks.Warning(
                    f"atomic() on the SQLite database {self.database!r} begins as a reader: "
                    "enqueue() raises StoreLocked if another process has written since",
                    hint=f"Set DATABASES[{self.database!r}]['OPTIONS'] = "
                    "{'transaction_mode': 'IMMEDIATE'}.",
                    id="millpond.W001",
                )
            )
        return found

    def _open(self, mp: Millpond) -> None:
        """Open it in this process; a transaction of this thread on the file would block that."""
        if not mp.is_open and mp.url is not None and mp.url.startswith("sqlite"):
            from pathlib import Path  # noqa: PLC0415 - at the first use only

            from millpond.store.sqlite.own_transaction import (  # noqa: PLC0415
                refuse_inside_own_transaction,
            )

            refuse_inside_own_transaction(Path(mp.url.removeprefix("sqlite:///")))
        mp.sync.open()

    def _transaction(self) -> Any:  # noqa: ANN401 - Django's connection, or None
        """Return the connection of the transaction that a task becomes part of."""
        if not self.transactional:
            return None
        connection = connections[self.database]
        return connection if connection.in_atomic_block else None


def backends() -> Iterator[MillpondBackend]:
    """Yield the backends of TASKS that are of this class."""
    for alias in task_backends.settings:
        backend = task_backends[alias]
        if isinstance(backend, MillpondBackend):
            yield backend


def millpond_of(alias: str = "default") -> Millpond:
    """Return the Millpond of a backend, for workers and for pools of your own."""
    backend = task_backends[alias]
    if not isinstance(backend, MillpondBackend):
        raise ConfigError("TASKS", alias, "has another backend than MillpondBackend")
    return backend.millpond


# In a worker


def _runner(backend: MillpondBackend) -> Any:  # noqa: ANN401 - a handler
    def run(ctx: SyncContext, path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Run one task of Django, in a thread, with its signals."""
        task = import_string(path)
        result = _new_result(backend, task, args, kwargs)
        now = datetime.now(UTC)
        values = {
            "id": str(ctx.task_id),
            "status": TaskResultStatus.RUNNING,
            "enqueued_at": _moment(ctx.submitted_at),
            "started_at": now,
            "last_attempted_at": now,
            "worker_ids": ["millpond"] * ctx.attempt,
        }
        for name, value in values.items():
            object.__setattr__(result, name, value)
        close_old_connections()
        try:
            return _call(backend, task, result)
        finally:
            close_old_connections()

    return run


def _call(backend: MillpondBackend, task: Any, result: Any) -> Any:  # noqa: ANN401
    task_started.send(type(backend), task_result=result)
    context = (TaskContext(task_result=result),) if task.takes_context else ()
    try:
        value = task.call(*context, *result.args, **result.kwargs)
    except BaseException:
        _finish(backend, result, TaskResultStatus.FAILED)
        raise
    object.__setattr__(result, "_return_value", value)
    _finish(backend, result, TaskResultStatus.SUCCESSFUL)
    return value


def _finish(backend: MillpondBackend, result: Any, status: Any) -> None:  # noqa: ANN401
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", datetime.now(UTC))
    task_finished.send(type(backend), task_result=result)


# Results


def _new_result(backend: MillpondBackend, task: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    return TaskResult(
        task=task,
        id="",
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=backend.alias,
        errors=[],
        worker_ids=[],
    )


def _stored_result(backend: MillpondBackend, record: Record, value: Any) -> Any:  # noqa: ANN401
    """Return a record of the store as Django knows it."""
    function = internals_of(backend.millpond.tasks[FUNCTION])
    (path, args, kwargs), _ = function.signature.decode(record.new.call.payload)
    info = TaskInfo.of(record)
    task = import_string(str(path)).using(priority=info.priority, queue_name=info.pool)
    result = _new_result(backend, task, args, kwargs)
    values = {
        "id": str(info.id),
        "status": _STATUS.get(record.status, TaskResultStatus.FAILED),
        "enqueued_at": _moment(info.submitted_at),
        "started_at": _moment(info.started_at),
        "last_attempted_at": _moment(info.started_at),
        "finished_at": _moment(info.finished_at),
        "worker_ids": [info.worker or "millpond"] * info.attempt,
        "_return_value": value,
    }
    for name, one in values.items():
        object.__setattr__(result, name, one)
    if info.error is not None:
        kind = info.error.type
        path_of_kind = kind if "." in kind else f"builtins.{kind}"
        text = info.error.traceback or str(info.error)
        result.errors.append(TaskError(exception_class_path=path_of_kind, traceback=text))
    return result


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _aware(moment: datetime) -> datetime:
    """Return a moment with a time zone: without USE_TZ Django means the local one."""
    return moment if moment.tzinfo is not None else moment.astimezone()
