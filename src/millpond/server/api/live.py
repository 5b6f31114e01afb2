"""Live events: pools as they change, and the pools and tasks that a client names."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from millpond.server.api.parameters import number
from millpond.server.live import MOST_WATCHED, EventStream, Topics
from millpond.server.openapi import operation
from millpond.server.refusals import Refused
from millpond.server.site import site_of

router = APIRouter(tags=["live"])

_SAYS = (
    "text/event-stream. `pools`: {at, full, items}, each item a PoolGlance; the first has all "
    "pools, later ones those that changed. `pool`: {name, waits, run_times, units} of a pool that "
    "was named. `task`: a TaskItem of a task that was named."
)
_STREAM = {"text/event-stream": {"schema": {"type": "string"}}}


@router.get("/live", **operation(None, says=_SAYS, content=_STREAM))
async def listen(
    request: Request,
    pool: Annotated[list[str], Query(max_length=MOST_WATCHED)] = [],  # noqa: B006 - FastAPI copies it
    task: Annotated[list[str], Query(max_length=MOST_WATCHED)] = [],  # noqa: B006
) -> Response:
    """Listen to what changes, as server-sent events."""
    site = site_of(request)
    for one in task:
        if not (one.isascii() and one.isdecimal() and len(one) < 20):
            raise Refused(422, "invalid_request", "task must be an id", fields={"task": one[:40]})
    topics = Topics(tuple(pool), tuple(map(number, task)))
    _ = site.runtime  # refused with a status, before the stream begins
    return EventStream(site.live, topics, site.limits.listener())
