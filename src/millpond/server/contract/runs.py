"""Runs."""

from __future__ import annotations

import msgspec

from millpond.server.contract.tasks import TaskItem


class RunItem(msgspec.Struct, frozen=True, kw_only=True):
    """A run and the counts of its tree."""

    id: str
    pool: str
    name: str | None
    total: int
    live: int
    """Tasks that are queued or running."""
    ended: dict[str, int]
    """Tasks that ended, by status."""
    opened_at: float
    finished_at: float | None
    finished: bool
    stopped: str | None
    failed_task: str | None


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Runs, pool by pool."""

    items: list[RunItem]
    next: str | None
    at: float


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A run and the first of its tasks that are queued or running."""

    run: RunItem
    tasks: list[TaskItem]
    ended: list[TaskItem]
    """The latest of its tasks that have ended, as far as a short search of its pool finds them."""
    at: float
