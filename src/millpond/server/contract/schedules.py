"""Schedules."""

from __future__ import annotations

import msgspec


class ScheduleItem(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule."""

    id: str
    state: str
    """waiting, late or paused."""
    expression: str | None
    every: float | None
    tz: str
    next_at: float
    upcoming: list[float]
    """The next five firings."""
    paused: bool
    missed: str
    grace: float
    into: str | None
    task: str | None
    emits: str | None
    declared_at: float


class SchedulePage(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules, those that fire next first."""

    items: list[ScheduleItem]
    next: str | None
    at: float


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule that was fired by hand did."""

    schedule: str
    task: str | None
    """The task that was submitted."""
    event: str | None
    """The id of the event that was emitted."""
