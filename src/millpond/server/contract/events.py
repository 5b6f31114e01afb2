"""Events, the triggers that they are for, and the receipts of triggers."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from millpond.core import bounds
from millpond.server.contract.basics import Name


class TriggerItem(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger."""

    id: str
    pool: str
    """The pool of its deliveries."""
    state: str
    """active, paused or removed."""
    on: list[str]
    into: str
    task: str | None
    priority_from: str | None
    key_from: str | None
    weight_from: str | None
    waiting: int
    submitted: int
    failed: int
    dead: int
    revision: int


class TriggerPage(msgspec.Struct, frozen=True, kw_only=True):
    """Triggers by id."""

    items: list[TriggerItem]
    next: str | None
    at: float


class EventItem(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is kept."""

    name: str
    id: str
    emitted_at: float
    emitted_by: str
    status: str
    replay: bool
    deliveries: dict[str, str]
    """The triggers it was for, and the task of each that delivers it."""
    task: str
    payload: Any = None
    """null unless payload=1 was asked for."""


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events, the latest first."""

    items: list[EventItem]
    next: str | None
    partial: bool
    at: float


class Emission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event to emit."""

    name: Name
    payload: Any = None
    id: Annotated[str, Meta(min_length=1, max_length=bounds.MAX_EVENT_ID)] | None = None
    """Its id: an event of this name and id is emitted once only."""


class Emitted(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is stored."""

    name: str
    id: str
    task: str
    duplicate: bool


class ReceiptItem(msgspec.Struct, frozen=True, kw_only=True):
    """What a trigger made of an event."""

    trigger: str
    outcome: str
    """submitted, duplicate, rejected, skipped, failed or cancelled; pending: not yet decided."""
    pool: str | None
    task: str | None
    delivery: str | None
    reason: str | None


class ReceiptPage(msgspec.Struct, frozen=True, kw_only=True):
    """The receipts of one event."""

    event: str
    id: str
    items: list[ReceiptItem]
