"""Searching tasks: how every store makes a page of tasks, within a bounded number of rows."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from millpond.store.protocol import Place, SearchPage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millpond.core.task import Task
    from millpond.core.task_filter import TaskFilter

FIRST: Place = (inf, (1 << 63) - 1)
"""Before everything in an order that begins with the latest."""

START: Place = (0.0, 0)
"""Before everything in an order that begins with the earliest."""


def by_seq(task: Task) -> Place:
    """Return the place of a task in the order of the queue."""
    return 0.0, task.seq


def by_due(task: Task) -> Place:
    """Return the place of a task among those that wait for their time."""
    return task.due, task.seq


def by_end(task: Task) -> Place:
    """Return the place of a task among those that ended; live tasks come after all of them."""
    return (inf if task.finished_at is None else task.finished_at), task.seq


def order_of(wanted: TaskFilter, *, strict: bool) -> Callable[[Task], Place]:
    """Return the order in which a search finds tasks; in a strict pool a lane has no other."""
    status = wanted.status
    if status is None or status.terminal:
        return by_end
    if wanted.state == "scheduled" and not strict:
        return by_due
    return by_seq


def page_of(
    candidates: Iterable[Task],
    wanted: TaskFilter,
    order: Callable[[Task], Place],
    *,
    limit: int,
    scan: int,
    now: float,
    copy: Callable[[Task], Task],
) -> SearchPage:
    """Return a page of the candidates that are wanted, after reading at most `scan` of them."""
    found: list[Task] = []
    last: Place | None = None
    scanned = 0
    for task in candidates:
        if scanned == scan:
            return SearchPage(tasks=tuple(found), next=last, partial=True, scanned=scanned)
        if wanted.fits(task, now):
            if len(found) == limit:
                return SearchPage(tasks=tuple(found), next=last, scanned=scanned)
            found.append(copy(task))
        last = order(task)
        scanned += 1
    return SearchPage(tasks=tuple(found), scanned=scanned)
