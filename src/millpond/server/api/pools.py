"""Pools: a summary of each, one in detail, its figures over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from millpond.core.event import SYSTEM
from millpond.core.lifecycle import Status
from millpond.server import contract, shapes
from millpond.server.api.parameters import After, Limit, OnePool, System
from millpond.server.openapi import operation
from millpond.server.site import answer, site_of

if TYPE_CHECKING:
    from millpond.store.protocol import BudgetView, PoolView

router = APIRouter(tags=["pools"])

_OF_CALLBACKS = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


@router.get("/pools", **operation(contract.PoolPage))
async def list_pools(
    request: Request, *, system: System = False, limit: Limit = 200, after: After = None
) -> Response:
    """List the pools by name: state, counts, and rates over the last minutes."""
    site = site_of(request)
    views, at = await site.live.overview()
    found = [
        view
        for view in views
        if (system or not view.spec.name.startswith(SYSTEM)) and view.spec.name > (after or "")
    ]
    page = found[:limit]
    following = page[-1].spec.name if len(found) > limit else None
    items = [site.live.summary(view, at) for view in page]
    return answer(contract.PoolPage(items=items, next=following, at=at))


@router.get("/pools/{pool:path}/history", **operation(contract.History, errors=(404,)))
async def show_history(
    request: Request,
    pool: OnePool,
    seconds: Annotated[float, Query(gt=0, le=3600, description="How far back.")] = 900.0,
) -> Response:
    """Return the rolling figures of a pool, as this server has sampled them."""
    site = site_of(request)
    await site.live.look_at(pool)
    return answer(site.live.history.of(pool, site.now() - seconds))


@router.get("/pools/{pool:path}", **operation(contract.PoolDetail, errors=(404,)))
async def show_pool(request: Request, pool: OnePool) -> Response:
    """Return one pool: its counts, limits, keys or lanes, and its settings."""
    site = site_of(request)
    now = site.now()
    found = await site.pool_in_full(pool)
    view = found.view
    await site.live.look_at(pool, found)
    return answer(
        contract.PoolDetail(
            pool=site.live.summary(view, now),
            waits=shapes.percentiles(view.waits),
            run_times=shapes.percentiles(view.run_times),
            units=[shapes.unit(one) for one in found.units],
            held_units=dict(view.held_units),
            budgets=[_budget(one) for one in found.budgets],
            config=shapes.config(view.spec),
            declared=shapes.config(view.declared),
            revisions=[
                contract.Revision(revision=number, config=shapes.config(spec))
                for number, spec in found.revisions
            ],
            callbacks=_callbacks(found.callbacks),
            created_at=view.created_at,
            stale_settles=view.stale_settles,
            at=now,
        )
    )


def _budget(view: BudgetView) -> contract.Budget:
    return contract.Budget(
        name=view.spec.name,
        running=view.running,
        limit=view.spec.max_concurrent,
        pools=list(view.pools),
        waiting=list(view.waiting),
    )


def _callbacks(view: PoolView | None) -> dict[str, int]:
    if view is None:
        return {}
    ended = {str(status): view.totals.get(status, 0) for status in _OF_CALLBACKS}
    return {"queued": view.queued, "running": view.running, **ended}
