"""The order in which one verb changes several tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.core.task import Task


def by_pool_and_place(task: Task) -> tuple[str, int]:
    """Sort key: one verb changes several tasks by pool and place."""
    return task.new.pool, task.seq
