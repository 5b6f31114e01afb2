"""Actions: what is ordered, and what an order changed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from millpond.core import bounds
from millpond.server.contract.basics import Count, Id, Key, Lasting, Priority, Seconds, State


class BulkFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same conditions as those of a list of tasks."""

    pool: str | None = None
    status: State | None = None
    function: str | None = None
    key: str | None = None
    label: list[str] = []
    """name=value, each."""
    error: str | None = None
    run: Id | None = None
    min_age: Seconds | None = None
    max_age: Seconds | None = None
    before: float | None = None
    """Submitted before this moment."""
    ended_before: float | None = None
    """Not ended yet, or before this moment: what a count has not seen is left out."""


class Bulk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One action for all tasks that meet conditions."""

    action: Literal["cancel", "redrive"]
    filter: BulkFilter
    expect: Count
    """The count that was shown before; if there are more, 409 refuses it, and nothing is done."""


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What an action did."""

    action: str
    changed: int
    """How many tasks it changed."""
    matched: int = 0
    """How many tasks met the conditions."""
    more: bool = False
    """There are more: do it again."""
    pool: str | None = None
    status: str | None = None
    """Of the task that was named, afterwards."""


class UnitOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An order for a whole pool, or for one of its keys or lanes."""

    key: Key | None = None
    lane: Key | None = None


class ResizeOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new limit; null = as the application declares it."""

    limit: Count | None
    revision: Annotated[int, Meta(ge=0, le=bounds.MAX_NUMBER)] | None = None
    """The number of this change: refused unless it is above the one in force."""


class CancelOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to cancel."""

    interrupt: bool = False
    """Interrupt a running handler, and do not only ask it to stop."""


class TaskUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a task that waits; what is left out stays as it is."""

    kwargs: dict[str, Any] | UnsetType = UNSET
    """All its arguments, by the names of the parameters: with others it has a new budget of
    attempts."""
    priority: Priority | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET
    """All its labels."""
    delay: Seconds | UnsetType = UNSET
    """Start it after so many seconds; 0 = as soon as its pool allows, also out of the wait for a
    retry."""
    run_at: float | UnsetType = UNSET
    """Not before this moment; not together with delay."""
    expires_in: Lasting | UnsetType = UNSET
    timeout: Lasting | UnsetType = UNSET
    revision: Annotated[int, Meta(ge=0, le=bounds.MAX_NUMBER)] | UnsetType = UNSET
    """The revision of the task that you have seen: refused if it has another one by now."""


class TaskUpdated(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was changed."""

    id: str
    pool: str
    state: str
    revision: int
    """How often it has been changed."""
