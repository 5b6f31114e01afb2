"""Reading the audit: pages of it, the records of one task, and the story of a task."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from millpond.core.audit import matching
from millpond.core.task import copied
from millpond.store.protocol import AuditPage, Story
from millpond.store.sql.audit import decoded_lazily, decoded_of, may_name, submitted_in
from millpond.store.story import History, follow_ups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.core.audit import Record
    from millpond.core.task import Task
    from millpond.store.sql.unit_of_work import SqlTables

RECORDS_PER_FOUND = 100
"""Records that are searched for each record of one task that is asked for."""

MOST_ROWS = 50
"""Rows that one statement reads at most: a row may hold a thousand records."""


def page_from(tables: SqlTables, after: int, limit: int) -> AuditPage:
    """Return records behind a position, oldest first."""
    records: list[Record] = []
    first = None
    for last, count, entry, _ in _rows(tables, after):
        if first is None:
            first = max(after, last - count)
        skipped = max(first - (last - count), 0) if not records else 0
        records += islice(decoded_lazily(entry, skipped), limit - len(records))
        if len(records) >= limit:
            break
    if first is None:
        return AuditPage((), max(after, tables.read_record_count()))
    return AuditPage(tuple(records[:limit]), first + len(records[:limit]))


def page_of_task(
    tables: SqlTables, task: int, after: int, since: float | None, limit: int
) -> AuditPage:
    """Return the records of one task in some rows; rows without its id are not decoded."""
    records: list[Record] = []
    searched, last = 0, max(after, 0)
    for position, count, entry, _ in _rows(tables, after):
        last, searched = position, searched + count
        if may_name(entry, task):
            skipped = max(after - (position - count), 0)
            of_task = (one for n, one in decoded_of(entry, task) if n >= skipped)
            records += matching(list(of_task), since, task)
        if searched >= RECORDS_PER_FOUND * limit:
            return AuditPage(tuple(records), last)
    return AuditPage(tuple(records), max(last, after, tables.read_record_count()))


def position_before(tables: SqlTables, moment: float) -> int:
    """Return the position behind which all records of a moment and later are stored."""
    (found,) = tables.ask("audit_before", (moment, moment, moment)).fetchone()
    return found or 0


def story_of(tables: SqlTables, task: Task) -> Story:
    """Return a task, its audit records as far as a short search finds them, its follow-ups."""
    history = History(task)
    submitted: list[tuple[int, int]] = []

    def read(since: float, until: float, most: int) -> bool:
        for position, count, entry, at in _rows(tables, position_before(tables, since)):
            first = position - count
            if may_name(entry, task.new.id):
                for number, one in decoded_of(entry, task.new.id):
                    history.found[first + number] = one
                if task.finished_at is not None and history.has_end:
                    submitted.extend((first + n, one) for n, one in submitted_in(entry))
                    return False
            most -= count
            if at > until or most <= 0:
                return False
        return True

    history.search(read)
    named = [one for one in history.nearest(submitted) if one != task.new.id]
    tables.tasks.load(named)
    candidates = [one for name in named if (one := tables.tasks.get(name)) is not None]
    return Story(
        task=copied(task),
        records=history.records,
        complete=history.complete,
        follow_ups=tuple(map(copied, follow_ups(task, candidates))),
    )


def _rows(tables: SqlTables, after: int) -> Iterator[tuple[int, int, bytes, float]]:
    """Yield rows behind a position: that of its last record, how many, they, and the last moment.

    A statement reads few rows at first and then more, because most readers need few.
    """
    size = 2
    while rows := tables.ask("audit", (after, size)).fetchall():
        yield from rows
        if len(rows) < size:
            return
        after, size = rows[-1][0], min(2 * size, MOST_ROWS)
