"""Outcomes: how a task ended, as data that can be passed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.runtime.error import ErrorInfo, read

if TYPE_CHECKING:
    from collections.abc import Mapping

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
            result=decoded(ending.function, ending.result, tasks),
            error=read(ending.error),
            reason=ending.reason,
            attempts=ending.attempt,
        )


def decoded(
    function: str, stored: bytes | None, tasks: Mapping[str, TaskFunction[..., Any, Any]]
) -> Any:  # noqa: ANN401 - whatever the function returns
    """Return a stored result as its function's type, or as plain data where that is unknown."""
    if stored is None:
        return None
    known = tasks.get(function)
    if known is not None:
        return known.signature.decode_result(stored)
    return msgspec.json.decode(stored)
