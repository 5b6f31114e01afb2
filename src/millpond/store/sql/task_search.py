"""Searching the tasks of a pool: rows by an index; only those that may fit are decoded."""

from __future__ import annotations

from heapq import merge
from math import inf
from typing import TYPE_CHECKING, Any

from millpond.core.lifecycle import Status
from millpond.store import search
from millpond.store.sql.codec import SEQ_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from millpond.core.task import Task
    from millpond.core.task_filter import TaskFilter
    from millpond.store.protocol import Place
    from millpond.store.search import Candidate
    from millpond.store.sql.codec import Row
    from millpond.store.sql.pool import SqlPool
    from millpond.store.sql.unit_of_work import SqlTables

PAGE = 200
LAST_SEQ = (1 << SEQ_BITS) - 1

FEW_PARKED = 1000
"""Parked tasks that are sorted as they are read; where there are more, the queue is searched."""

_DUE, _RUNNING = 11, 20
"""Where these stand in a live row."""

_FINISHED_AT = 4
"""Where this stands in an ended row."""


class TaskSearch:
    """One search in one pool."""

    def __init__(self, tables: SqlTables, pool: SqlPool, wanted: TaskFilter, size: int) -> None:
        self._tables = tables
        self._pool = pool
        self._wanted = wanted
        self._size = size
        """Rows of the first page."""
        self._needles = search.needles(wanted)
        self._low = pool.number << SEQ_BITS

    def behind(self, place: Place | None) -> Iterable[Candidate]:
        """Return the tasks among which it looks, in its order, behind a place."""
        order = search.order_of(self._wanted, strict=self._pool.spec.strict)
        if order is search.by_end:
            return self._latest_first(place or search.FIRST)
        if order is search.by_due:
            return self._pages(self._later, place or search.START)
        seq = 0 if place is None else place[1]
        if self._wanted.status is Status.RUNNING:
            rows = self._rows("held_in_pool", (self._pool.number,))
            return (one for one in map(self._live, rows) if one[0][1] > seq)
        if self._wanted.state == "parked" and self._pool.parked.count <= FEW_PARKED:
            return map(self._live, self._rows("parked_of_pool", (self._pool.number, self._at(seq))))
        return self._pages(self._queued, (0.0, seq))

    def _latest_first(self, after: Place) -> Iterator[Candidate]:
        """Yield tasks with the latest end first; of any status, the live ones before them."""
        status = self._wanted.status
        if status is None and after[0] == inf:
            yield from self._pages(self._live_before, after)
            after = search.FIRST
        if status is not None:
            yield from self._ended(after, completed=status is Status.COMPLETED)
            return
        both = (self._ended(after, completed=one) for one in (False, True))
        yield from merge(*both, key=_place, reverse=True)

    def _ended(self, after: Place, *, completed: bool) -> Iterator[Candidate]:
        def read(moment: float, seq: int, most: int) -> list[Candidate]:
            arguments = (self._pool.number, int(completed), moment, self._at(seq), most)
            return [self._candidate_ended(row) for row in self._rows("ended_by_end", arguments)]

        return self._pages(read, after)

    def _live_before(self, _: float, seq: int, most: int) -> list[Candidate]:
        rows = self._rows("live_before", (self._low, self._at(seq), most))
        return [self._live(row, inf) for row in rows]

    def _later(self, due: float, seq: int, most: int) -> list[Candidate]:
        rows = self._rows("later_of_pool", (self._pool.number, due, self._at(seq), most))
        return [self._live(row, row[_DUE]) for row in rows]

    def _queued(self, _: float, seq: int, most: int) -> list[Candidate]:
        end = (self._pool.number + 1) << SEQ_BITS
        rows = self._rows("live_of_pool", (self._at(seq), end, most))
        return [
            ((0.0, row[0] & LAST_SEQ), None) if row[_RUNNING] else self._live(row) for row in rows
        ]

    # Rows

    def _rows(self, statement: str, arguments: tuple[Any, ...]) -> list[Row]:
        return self._tables.ask(statement, arguments).fetchall()

    def _at(self, seq: int) -> int:
        return self._low | min(seq, LAST_SEQ)

    def _live(self, row: Row, moment: float = 0.0) -> Candidate:
        place = moment, row[0] & LAST_SEQ
        if self._is_out(row):
            return place, None
        return place, self._tables.tasks.taken_in(row, self._pool.name)

    def _candidate_ended(self, row: Row) -> Candidate:
        place = row[_FINISHED_AT], row[0] & LAST_SEQ
        if self._is_out(row):
            return place, None
        return place, self._tables.tasks.taken_in_ended(row, self._pool.name)

    def _is_out(self, row: Row) -> bool:
        """Return whether the body of a task, unread, lacks something that is wanted."""
        if not self._needles:
            return False
        body = bytes(row[-1])
        return not all(needle in body for needle in self._needles)

    def _pages(
        self, read: Callable[[float, int, int], list[Candidate]], after: Place
    ) -> Iterator[Candidate]:
        """Yield what a statement finds behind a place, page by page."""
        size = self._size
        while page := read(*after, size):
            yield from page
            if len(page) < size:
                return
            after, size = page[-1][0], PAGE


def _place(candidate: tuple[Place, Task | None]) -> Place:
    return candidate[0]
