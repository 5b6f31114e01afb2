"""Searching tasks: how every store makes a page of tasks, within a bounded number of rows."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from millpond.store.protocol import Cursor, Place, SearchPage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


Candidate: TypeAlias = "tuple[Place, Task | None]"
"""A task with its place; None in place of one that its row alone has ruled out."""


def needles(wanted: TaskFilter) -> list[bytes]:
    """Return what the stored body of every task that is wanted holds, as it stands there."""
    texts = [wanted.function, wanted.key, *wanted.labels.values()]
    found = [text.encode("utf-8", "replace") for text in texts if text]
    return found if wanted.run is None else [*found, msgspec.msgpack.encode(wanted.run)]


def page_of(
    candidates: Iterable[Candidate],
    wanted: TaskFilter,
    *,
    limit: int,
    scan: int,
    now: float,
) -> tuple[list[Task], Place | None, int, bool]:
    """Return what is wanted of the candidates, after reading at most `scan` of them.

    Also where to go on, None if nothing is left, how many were read, and whether that was all that
    may be read.
    """
    found: list[Task] = []
    last: Place | None = None
    scanned = 0
    for place, task in candidates:
        if scanned == scan:
            return found, last, scanned, True
        if task is not None and wanted.fits(task, now):
            if len(found) == limit:
                return found, last, scanned, False
            found.append(task)
        last = place
        scanned += 1
    return found, None, scanned, False


def over_pools(
    pools: Sequence[str],
    after: Cursor | None,
    candidates: Callable[[str, Place | None], Iterable[Candidate]],
    wanted: TaskFilter,
    *,
    limit: int,
    scan: int,
    now: float,
    copy: Callable[[Task], Task],
) -> SearchPage:
    """Return a page of the tasks of some pools, in the order of their names."""
    begun, place = after or ("", None)
    tasks: list[Task] = []
    read = 0
    for pool in sorted(name for name in pools if name >= begun):
        if len(tasks) == limit or read >= scan:
            return SearchPage(
                tasks=tuple(map(copy, tasks)), next=(pool, None), partial=len(tasks) < limit
            )
        found, following, scanned, partial = page_of(
            candidates(pool, place if pool == begun else None),
            wanted,
            limit=limit - len(tasks),
            scan=scan - read,
            now=now,
        )
        tasks += found
        read += scanned
        if following is not None:
            return SearchPage(
                tasks=tuple(map(copy, tasks)), next=(pool, following), partial=partial
            )
    return SearchPage(tasks=tuple(map(copy, tasks)))
