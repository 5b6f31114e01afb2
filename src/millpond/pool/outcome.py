"""Outcomes: how a task ended, as data that can be passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from millpond.core.lifecycle import Status
from millpond.core.settle import Ending, RunEnding
from millpond.errors import ResultNotStored, ResultUnreadable
from millpond.runtime.error_info import ErrorInfo, read
from millpond.runtime.jobs.outcome import Unreadable

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


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: the argument of a call that was given to `run.on_complete`."""

    run_id: int
    """The run."""
    pool: str
    """Its pool."""
    name: str | None = None
    """Its name."""
    total: int
    """Tasks it had: seed, follow-ups and all."""
    completed: int
    """Those that completed."""
    failed: int
    """Those that failed."""
    cancelled: int
    """Those that were cancelled."""
    rejected: int
    """Those that a full queue dropped."""
    stopped: str | None = None
    """Why it was stopped before its end: `run_failed`, `over_budget` or `cancelled`."""
    opened_at: float
    """When it was opened, in seconds since 1970."""
    finished_at: float
    """When it ended, in seconds since 1970."""
    tasks: tuple[Outcome, ...] = ()
    """How its first tasks ended, in the order of their submits: at most 100, and 1 MiB together."""

    @property
    def ok(self) -> bool:
        """Whether every task completed."""
        return self.completed == self.total

    @property
    def results(self) -> list[Any]:
        """The results of the completed among `tasks`."""
        return [task.result for task in self.tasks if task.ok]

    @property
    def left_out(self) -> int:
        """How many tasks of the run are not in `tasks`: too many, too large, or no longer kept."""
        return self.total - len(self.tasks)


def outcome_of(ending: Ending | RunEnding, decoder_of: DecoderOf) -> Outcome | RunOutcome:
    """Return the outcome for a callback; results have the types their functions return."""
    if isinstance(ending, RunEnding):
        return _outcome_of_run(ending, decoder_of)
    return _outcome_of_task(ending, decoder_of)


def _outcome_of_task(ending: Ending, decoder_of: DecoderOf) -> Outcome:
    return Outcome(
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


def _outcome_of_run(ending: RunEnding, decoder_of: DecoderOf) -> RunOutcome:
    ended = ending.ended
    return RunOutcome(
        run_id=ending.run,
        pool=ending.pool,
        name=ending.name,
        total=ending.total,
        completed=ended.get(Status.COMPLETED, 0),
        failed=ended.get(Status.FAILED, 0),
        cancelled=ended.get(Status.CANCELLED, 0),
        rejected=ended.get(Status.REJECTED, 0),
        stopped=ending.stopped,
        opened_at=ending.opened_at,
        finished_at=ending.finished_at,
        tasks=tuple([_outcome_of_task(task, decoder_of) for task in ending.tasks]),
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
