"""Runs: the progress of their trees."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from millpond.core import bounds
from millpond.core.run import RunView
from millpond.core.task_filter import TaskFilter
from millpond.server import contract, cursors, shapes
from millpond.server.api import parameters as given
from millpond.server.openapi import operation
from millpond.server.refusals import Refused
from millpond.server.site import Site, answer, site_of
from millpond.store import search

router = APIRouter(tags=["runs"])

MOST_ENDED = 100
"""Ended tasks of a run that its page shows."""

SCAN = 200
"""Rows that are read to find them."""

Which = Annotated[Literal["open", "finished"], Query(description="Open or finished runs.")]


@router.get("/runs", **operation(contract.RunPage, errors=(404,)))
async def list_runs(
    request: Request,
    *,
    pool: given.Pool = None,
    status: Which = "open",
    limit: given.Limit = 50,
    after: given.After = None,
) -> Response:
    """List runs, pool by pool: the open ones, or the finished ones with the latest first."""
    site = site_of(request)
    begun, place = ("", None) if after is None else cursors.read(after)
    items: list[contract.RunItem] = []
    following: str | None = None
    for name in sorted(await site.pool_names(pool)):
        if name < begun:
            continue
        if len(items) == limit:
            following = cursors.written((name, None))
            break
        page = await site.view.runs(
            name,
            finished=status == "finished",
            after=place if name == begun else None,
            limit=limit - len(items),
        )
        items += map(shapes.run_item, page.runs)
        if page.next is not None:
            following = cursors.written((name, page.next))
            break
    return answer(contract.RunPage(items=items, next=following, at=site.now()))


@router.get("/runs/{run:path}", **operation(contract.RunDetail, errors=(404,)))
async def show_run(request: Request, run: given.OneRun, pool: given.Pool = None) -> Response:
    """Return a run by its id, or by its name and its pool, with the first of its live tasks."""
    site = site_of(request)
    view = await _found(site, run, pool)
    now = site.now()
    tasks = await site.view.run_tasks(view.id)
    return answer(
        contract.RunDetail(
            run=shapes.run_item(view),
            tasks=[shapes.task_item(task, now) for task in tasks],
            ended=await _ended(site, view, now),
            at=now,
        )
    )


async def _ended(site: Site, run: RunView, now: float) -> list[contract.TaskItem]:
    """Return the latest tasks of a run that have ended.

    None ended after its run: the search begins there, however much has ended since.
    """
    if not any(run.ended.values()):
        return []
    until = bounds.MAX_MOMENT if run.finished_at is None else run.finished_at
    page = await site.view.search(
        [run.pool],
        TaskFilter(run=run.id),
        after=(run.pool, (until, search.FIRST[1])),
        limit=MOST_ENDED,
        scan=SCAN,
        now=now,
    )
    return [shapes.task_item(task, now) for task in page.tasks]


async def _found(site: Site, run: str, pool: str | None) -> RunView:
    view = None
    if pool is not None:
        await site.pool(pool)
        view = await site.view.run_named(pool, run)
    if view is None and run.isascii() and run.isdecimal() and len(run) < 20:
        view = await site.view.run(given.number(run))
    if view is None:
        where = " is known; a run by name needs pool=" if pool is None else f" of pool {pool!r}"
        raise Refused(404, "unknown_run", f"no run {run!r}{where}")
    return view
