"""Workers: what each runs now, where, and until when it holds that."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from millpond.server import contract, cursors, shapes
from millpond.server.api.parameters import After, Limit
from millpond.server.openapi import operation
from millpond.server.site import answer, site_of

router = APIRouter(tags=["workers"])


@router.get("/workers", **operation(contract.WorkerPage))
async def list_workers(request: Request, *, limit: Limit = 100, after: After = None) -> Response:
    """List the workers in the order of joining."""
    site = site_of(request)
    now = site.now()
    found = await site.view.worker_list(after=cursors.number(after), limit=limit + 1)
    page = found[:limit]
    following = str(page[-1].number) if len(found) > limit else None
    items = [shapes.worker_item(one, now) for one in page]
    return answer(contract.WorkerPage(items=items, next=following, at=now))
