"""The audit, the latest record first."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from millpond.server import contract, cursors, shapes
from millpond.server.api import parameters as given
from millpond.server.openapi import operation
from millpond.server.site import answer, site_of

router = APIRouter(tags=["audit"])

SCAN = 500
"""Records that one request reads, at most, to find those it is for."""

CHUNK = 500

Kind = Annotated[
    Literal[
        "submit",
        "update",
        "claim",
        "dequeue",
        "drop",
        "retry",
        "settle",
        "cancel",
        "lease_expired",
        "control",
    ]
    | None,
    Query(description="Of this kind only."),
]


@router.get("/audit", **operation(contract.AuditPage))
async def list_audit(
    request: Request,
    *,
    pool: given.Pool = None,
    kind: Kind = None,
    limit: given.Limit = 50,
    after: given.After = None,
) -> Response:
    """List audit records, the latest first, of one pool or kind or of all."""
    site = site_of(request)
    end = cursors.number(after) if after is not None else await site.view.audit_end()
    chunk = limit if pool is None and kind is None else CHUNK
    items: list[contract.AuditItem] = []
    scanned = 0
    while end > 0 and scanned < SCAN and len(items) < limit:
        start = max(end - chunk, 0)
        page = await site.view.audit(after=start, limit=end - start)
        first = page.next - len(page.records) + 1
        numbered = [(n, one) for n, one in enumerate(page.records, first) if n <= end]
        if not numbered:
            # The store has pruned all earlier records.
            end = 0
            break
        for position, record in reversed(numbered):
            end, scanned = position - 1, scanned + 1
            if pool in (None, record.pool) and kind in (None, record.kind):
                items.append(shapes.audit_item(record, position))
                if len(items) == limit:
                    break
    following = str(end) if end > 0 else None
    partial = following is not None and len(items) < limit
    return answer(contract.AuditPage(items=items, next=following, partial=partial, at=site.now()))
