"""Outcomes: how a task ended, as data that can be passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from millpond.errors import ResultNotStored, ResultUnreadable
from millpond.runtime.error_info import ErrorInfo, read
from millpond.runtime.jobs.outcome import Unreadable

if TYPE_CHECKING:
    from millpond.core.settle import Ending

DecoderOf: TypeAlias = Callable[[str], Callable[[bytes], Any] | None]
"""Finds what decodes the results of a function, by its name; None where it is not registered."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one task ended: the argument of an on_complete callback, and the items of a stream."""

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
    """The return value, in the type its function is annotated with."""
    result_stored: bool = True
    """False: it completed and its return value was not stored; `result` is None then."""
    error: ErrorInfo | None = None
    """The error of its last attempt."""
    reason: str | None = None
    """Why it ended, where its handler did not end it."""
    attempts: int = 0
    """Charged runs."""

    @property
    def ok(self) -> bool:
        """Whether the task completed."""
        return self.status == "completed"

    @classmethod
    def of(cls, ending: Ending, decoder_of: DecoderOf) -> Outcome:
        """Return the outcome for a callback; the result has the type its function returns."""
        return cls(
            task_id=ending.task,
            pool=ending.pool,
            function=ending.function,
            status=ending.status,
            key=ending.key,
            labels=ending.labels,
            result=None
            if ending.result is None
            else decoded(ending.task, ending.pool, ending.function, ending.result, decoder_of),
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
    decoder_of: DecoderOf,
) -> Any:  # noqa: ANN401 - whatever the function returns
    """Return a stored result as its function's type, or as plain data where that is unknown."""
    decode = decoder_of(function) or msgspec.json.decode
    return read_result(task, pool, function, stored, decode)


def read_result(
    task: int, pool: str, function: str, stored: bytes, decode: Callable[[bytes], Any]
) -> Any:  # noqa: ANN401 - whatever the function returns
    """Return a stored result; ResultUnreadable if it does not decode."""
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
    """Return the stored result of a closure; ResultNotStored if there is none."""
    if stored is None:
        raise ResultNotStored(
            f"task {task} ({function}) in pool {pool!r} completed; its result was not stored and "
            "this process no longer has it: it was a closure, and JSON cannot hold the result in "
            "its own type. Return plain data, or submit a registered task",
            task_id=task,
            pool=pool,
            function=function,
        )
    return read_result(task, pool, function, stored, msgspec.json.decode)


def unknown_here(task: int, pool: str, function: str) -> ResultUnreadable:
    """Return the error for a result of a function that this process has not registered."""
    return ResultUnreadable(
        f"the result of task {task} in pool {pool!r} is stored, and this process has no function "
        f"{function!r} registered that knows its type: give mp.handle({task}, of=...) the task, or "
        f"read it as plain data: millpond task {task} --payload",
        task_id=task,
        pool=pool,
        function=function,
        reason="its function is not known here",
    )
