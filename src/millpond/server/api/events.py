"""Events and triggers: each event, the triggers that received it, and their deliveries."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from millpond.core.event import EVENTS, TRIGGERS, Event
from millpond.core.task_filter import TaskFilter
from millpond.errors import UnknownEvent
from millpond.pool.events.receipt import EventInfo, receipt_of
from millpond.pool.internals import internals_of
from millpond.server import contract, cursors, redaction
from millpond.server.api import parameters as given
from millpond.server.openapi import operation
from millpond.server.site import Site, actor_of, answer, body_of, path_to, site_of
from millpond.store.protocol import PoolView

router = APIRouter(tags=["events"])

SCAN = 200
"""Events that one request reads, at most, to find those of a name."""

EventName = Annotated[str | None, Query(max_length=200, description="Of this name only.")]


@router.get("/triggers", **operation(contract.TriggerPage))
async def list_triggers(request: Request) -> Response:
    """List the triggers of the store: the events each receives, and how many it delivered."""
    site = site_of(request)
    views, at = await site.live.overview()
    items = [_trigger(view) for view in views if view.declared.trigger is not None]
    return answer(contract.TriggerPage(items=items, next=None, at=at))


def _trigger(view: PoolView) -> contract.TriggerItem:
    spec = view.declared.trigger
    assert spec is not None  # noqa: S101 - the caller lists only pools with a trigger
    return contract.TriggerItem(
        id=view.spec.name.removeprefix(TRIGGERS),
        pool=view.spec.name,
        state="removed" if not spec.on else "paused" if view.paused else "active",
        on=list(spec.on),
        into=spec.into,
        task=spec.task,
        priority_from=spec.priority_from,
        key_from=spec.key_from,
        weight_from=spec.weight_from,
        waiting=view.queued + view.running,
        submitted=view.totals.get("completed", 0),
        failed=view.totals.get("failed", 0),
        dead=view.dead,
        revision=view.revision,
    )


@router.get("/events", **operation(contract.EventPage))
async def list_events(
    request: Request,
    *,
    name: EventName = None,
    payload: given.Payload = False,
    limit: given.Limit = 50,
    after: given.After = None,
) -> Response:
    """List the events that are kept: those on their way first, then the latest first."""
    site = site_of(request)
    now = site.now()
    behind = None if after is None else cursors.read(after)
    if await site.view.pool(EVENTS, measured=False) is None:
        # Its pool is declared with the first event that is emitted.
        return answer(contract.EventPage(items=[], next=None, partial=False, at=now))
    page = await site.view.search(
        [EVENTS],
        TaskFilter(key=name),
        after=behind,
        limit=limit,
        scan=max(SCAN, limit),
        now=now,
    )
    items = [_event(site, EventInfo.of(task), payload=payload) for task in page.tasks]
    following = None if page.next is None else cursors.written(page.next)
    return answer(contract.EventPage(items=items, next=following, partial=page.partial, at=now))


def _event(site: Site, event: EventInfo, *, payload: bool) -> contract.EventItem:
    return contract.EventItem(
        name=event.name,
        id=event.id,
        emitted_at=event.emitted_at,
        emitted_by=event.emitted_by,
        status=event.status,
        replay=event.replay,
        deliveries={trigger: str(task) for trigger, task in event.deliveries.items()},
        task=str(event.task_id),
        payload=redaction.redacted(event.payload, site.settings.redact) if payload else None,
    )


@router.post(
    "/events",
    **operation(
        contract.Emitted,
        takes=contract.Emission,
        status=202,
        says="It is stored; Location names its receipts.",
        known="An event of this name and id was stored before.",
    ),
)
async def emit(request: Request) -> Response:
    """Emit an event: every trigger for events of its name submits one task."""
    site = site_of(request)
    body = await body_of(request, contract.Emission)
    _ = site.runtime
    emitted = await internals_of(site.mp).events.emit_as(
        actor_of(request), body.name, body.payload, body.id
    )
    stored = contract.Emitted(
        name=emitted.event.name,
        id=emitted.event_id,
        task=str(emitted.task_id),
        duplicate=emitted.duplicate,
    )
    receipts = path_to(request, f"/events/{emitted.task_id}/receipts")
    return answer(stored, 200 if emitted.duplicate else 202, {"location": receipts})


@router.get("/events/{task}/receipts", **operation(contract.ReceiptPage, errors=(404,)))
async def list_receipts(request: Request, task: given.OneTask) -> Response:
    """Return what each trigger made of an event; it is named by the task it is kept as."""
    site = site_of(request)
    record = await site.view.task(given.number(task))
    if record is None or record.new.pool != EVENTS:
        raise UnknownEvent(f"no event is kept as task {task}", name="", event_id=task)
    info = EventInfo.of(record)
    event = Event(info.name, info.id)
    items = [await _receipt(site, event, one, by) for one, by in info.deliveries.items()]
    return answer(contract.ReceiptPage(event=info.name, id=info.id, items=items))


async def _receipt(site: Site, event: Event, trigger: str, delivery: int) -> contract.ReceiptItem:
    record = await site.view.task(delivery)
    if record is None or not record.status.terminal:
        outcome = "unknown" if record is None else "pending"
        return contract.ReceiptItem(
            trigger=trigger,
            outcome=outcome,
            pool=None,
            task=None,
            delivery=str(delivery),
            reason=None,
        )
    receipt = receipt_of(trigger, event, delivery, record)
    return contract.ReceiptItem(
        trigger=trigger,
        outcome=receipt.outcome,
        pool=receipt.pool,
        task=None if receipt.task_id is None else str(receipt.task_id),
        delivery=str(delivery),
        reason=receipt.reason,
    )
