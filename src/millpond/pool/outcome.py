"""Outcomes: how a task ended, as data that can be passed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.errors import ResultNotStored, ResultUnreadable
from millpond.runtime.error_info import ErrorInfo, read
from millpond.runtime.jobs.outcome import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from millpond.core.settle import Ending
    from millpond.pool.task import TaskFunction


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one task ended: what an on_complete callback is given, and what a stream yields."""

    task_id: int
    """The task."""
    pool: str
    """Its pool."""
    function: str
    """The name of its function."""
    status: str
    """`completed`, `failed`, `cancelled` or `rejected`."""
    key: str | None = None
    """Its key."""
    labels: dict[str, str] = {}
    """Its labels."""
    result: Any = None
    """What it returned, as the type its function is annotated with."""
    result_stored: bool = True
    """False: it completed, and what it returned was not stored; `result` is None then."""
    error: ErrorInfo | None = None
    """What its last attempt raised."""
    reason: str | None = None
    """Why it ended, where that was not its handler's doing."""
    attempts: int = 0
    """Charged runs."""

    @property
    def ok(self) -> bool:
        """Whether the task completed."""
        return self.status == "completed"

    @classmethod
    def of(cls, ending: Ending, tasks: Mapping[str, TaskFunction[..., Any, Any]]) -> Outcome:
        """Return what a callback is told; the result has the type its function returns."""
        return cls(
            task_id=ending.task,
            pool=ending.pool,
            function=ending.function,
            status=ending.status,
            key=ending.key,
            labels=ending.labels,
            result=None
            if ending.result is None
            else decoded(ending.task, ending.pool, ending.function, ending.result, tasks),
            result_stored=ending.status != "completed" or ending.result is not None,
            error=read(ending.error),
            reason=ending.reason,
            attempts=ending.attempt,
        )


def decoded(
    task: int,
    pool: str,
    function: str,
    stored: bytes,
    tasks: Mapping[str, TaskFunction[..., Any, Any]],
) -> Any:  # noqa: ANN401 - whatever the function returns
    """Return a stored result as its function's type, or as plain data where that is unknown."""
    known = tasks.get(function)
    decode = msgspec.json.decode if known is None else known.signature.decode_result
    return read_result(task, pool, function, stored, decode)


def read_result(
    task: int, pool: str, function: str, stored: bytes, decode: Callable[[bytes], Any]
) -> Any:  # noqa: ANN401 - whatever the function returns
    """Return a stored result; ResultUnreadable if it is not of the type that is asked for."""
    try:
        return decode(stored)
    except (Unreadable, msgspec.MsgspecError) as error:
        raise ResultUnreadable(
            f"the result of task {task} ({function}) in pool {pool!r} is stored and cannot be "
            f"read as what {function} returns here: {error}. Read it with the release that "
            f"stored it, or as plain data: millpond task {task} --payload",
            task_id=task,
            pool=pool,
            function=function,
            reason=str(error),
        ) from error


def closure_result(task: int, pool: str, function: str, stored: bytes | None) -> Any:  # noqa: ANN401
    """Return what a closure returned, as it was stored; ResultNotStored if it was not."""
    if stored is None:
        raise ResultNotStored(
            f"task {task} ({function}) in pool {pool!r} completed; what it returned was not stored "
            "and is known no longer: it was a closure, and its result would not have come back "
            "from JSON in its very type. Return plain data, or submit a registered task",
            task_id=task,
            pool=pool,
            function=function,
        )
    return read_result(task, pool, function, stored, msgspec.json.decode)


def unknown_here(task: int, pool: str, function: str) -> ResultUnreadable:
    """Return the error for a result whose type no function of this process tells."""
    return ResultUnreadable(
        f"the result of task {task} in pool {pool!r} is stored, and no function {function!r} is "
        f"registered here that tells its type: give mp.handle({task}, of=...) the task, or read it "
        f"as plain data: millpond task {task} --payload",
        task_id=task,
        pool=pool,
        function=function,
        reason="its function is not known here",
    )
