"""Parameters that several routes take."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query
from starlette.requests import Request

from millpond.core import bounds
from millpond.core.task_filter import TaskFilter
from millpond.server import contract
from millpond.server.refusals import Refused
from millpond.server.site import site_of

Limit = Annotated[int, Query(ge=1, le=500, description="At most so many.")]
After = Annotated[str | None, Query(max_length=300, description="What a page returned as next.")]
OneRun = Annotated[str, Path(min_length=1, max_length=bounds.MAX_RUN_NAME)]
OneName = Annotated[str, Path(min_length=1, max_length=bounds.MAX_NAME)]
OnePool = Annotated[
    str, Path(min_length=1, max_length=200, description="A pool, as the store calls it.")
]
OneTask = Annotated[str, Path(pattern="^[0-9]{1,19}$", description="The id of a task.")]
Pool = Annotated[str | None, Query(max_length=200, description="Of this pool only.")]
Status = Annotated[contract.State | None, Query(description="Of this state only.")]
Function = Annotated[str | None, Query(max_length=bounds.MAX_FUNCTION)]
Key = Annotated[str | None, Query(max_length=bounds.MAX_KEY)]
Labels = Annotated[list[str], Query(max_length=8, description="name=value; all must fit.")]
Error = Annotated[
    str | None, Query(max_length=200, description="A part of the error's type or message.")
]
Age = Annotated[float | None, Query(ge=0, le=bounds.MAX_SECONDS)]
Moment = Annotated[float | None, Query(ge=-bounds.MAX_MOMENT, le=bounds.MAX_MOMENT)]
Run = Annotated[str | None, Query(pattern="^[0-9]{1,19}$", description="Of this run only.")]
Payload = Annotated[bool, Query(description="Show payloads; what sounds secret stays hidden.")]
System = Annotated[bool, Query(description="Also those of events, triggers and schedules.")]

MAX_ID = 1 << 63


def number(identifier: str) -> int:
    """Return the id of a task or run as a number; one that is too large is unknown."""
    found = int(identifier)
    if found >= MAX_ID:
        raise Refused(404, "MILL-009", f"no task {identifier} is known")
    return found


async def _of_query(
    request: Request,
    *,
    status: Status = None,
    function: Function = None,
    key: Key = None,
    label: Labels = [],  # noqa: B006 - FastAPI copies it
    error: Error = None,
    run: Run = None,
    min_age: Age = None,
    max_age: Age = None,
    before: Moment = None,
) -> TaskFilter:
    named = contract.BulkFilter(
        status=status,
        function=function,
        key=key,
        label=label,
        error=error,
        run=run,
        min_age=min_age,
        max_age=max_age,
        before=before,
    )
    return wanted(site_of(request).now(), named)


Conditions = Annotated[TaskFilter, Depends(_of_query)]
"""The conditions that the query of a request names."""


def wanted(now: float, named: contract.BulkFilter) -> TaskFilter:
    """Return the conditions that a request names."""
    until = now - named.min_age if named.min_age is not None else None
    if named.before is not None:
        until = named.before if until is None else min(named.before, until)
    return TaskFilter(
        state=named.status,
        key=named.key,
        function=named.function,
        labels=dict(map(_label, named.label)),
        error=named.error,
        since=None if named.max_age is None else now - named.max_age,
        before=until,
        ended_before=named.ended_before,
        run=None if named.run is None else number(named.run),
    )


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        message = f"label={text!r} must be name=value"
        raise Refused(422, "invalid_request", message, fields={"label": "must be name=value"})
    return name, value
