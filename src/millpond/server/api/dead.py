"""Dead letters, grouped by what went wrong."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from millpond.core.task_filter import TaskFilter
from millpond.runtime.error_info import read
from millpond.server import contract
from millpond.server.api import parameters as given
from millpond.server.openapi import operation
from millpond.server.site import answer, site_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.task import Task

router = APIRouter(tags=["dead letters"])

MOST_LOOKED_AT = 200
"""Dead letters that one request groups: the latest of each pool."""

LEAST_OF_A_POOL = 10

MOST_GROUPS = 200
NAMED = 5
LONGEST = 300

_VARYING = re.compile(
    r"'[^']*'|\"[^\"]*\"|\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}\b|\d+(?:\.\d+)?"
)


@router.get("/dead", **operation(contract.DeadPage, errors=(404,)))
async def list_dead(request: Request, *, pool: given.Pool = None) -> Response:
    """Group the dead letters of a pool, or of all, by function and error; the latest 200."""
    site = site_of(request)
    views, at = await site.live.overview()
    # Dead letters of triggers and schedules count too: no other page lists them.
    kept = {view.spec.name: view.dead for view in views if pool in (None, view.spec.name)}
    names = [name for name, dead in kept.items() if dead] or ([] if pool is None else [pool])
    tasks: list[Task] = []
    for name in names:
        share = max(MOST_LOOKED_AT // len(names), LEAST_OF_A_POOL)
        page = await site.view.search(
            [name], TaskFilter(state="failed"), limit=share, scan=2 * share, now=at
        )
        tasks += page.tasks
    groups = sorted(grouped(tasks), key=lambda group: (-group.count, -group.last_at))
    total = max(sum(kept.values()), len(tasks))
    return answer(
        contract.DeadPage(
            items=groups[:MOST_GROUPS],
            scanned=len(tasks),
            total=total,
            partial=len(tasks) < total,
            at=at,
        )
    )


def grouped(tasks: Iterable[Task]) -> list[contract.DeadGroup]:
    """Return tasks, the latest of each group first, as groups of one pool, function and error."""
    groups: dict[tuple[str, str, str, str], list[Task]] = {}
    for task in tasks:
        kind, common, _ = _parsed(task.error, task.reason)
        address = task.new.pool, task.new.call.function, kind, common
        groups.setdefault(address, []).append(task)
    return [
        contract.DeadGroup(
            pool=pool,
            function=function,
            type=kind,
            message=message,
            sample=_parsed(members[0].error, members[0].reason)[2],
            count=len(members),
            first_at=min(task.finished_at or 0.0 for task in members),
            last_at=max(task.finished_at or 0.0 for task in members),
            tasks=[str(task.new.id) for task in members[:NAMED]],
        )
        for (pool, function, kind, message), members in groups.items()
    ]


@lru_cache(maxsize=1024)
def _parsed(stored: bytes | None, reason: str | None) -> tuple[str, str, str]:
    """Return the type of an error, what its message has in common with others, its beginning.

    An open page asks for the same dead letters again and again.
    """
    info = read(stored)
    if info is None:
        return reason or "unknown", "", ""
    return info.type, _common(info.message), info.message[:LONGEST]


def _common(message: str) -> str:
    """Return what messages of one cause have in common: without numbers, ids and quoted parts."""
    first = message.strip().splitlines()[0] if message.strip() else ""
    return _VARYING.sub("…", first)[:LONGEST]
