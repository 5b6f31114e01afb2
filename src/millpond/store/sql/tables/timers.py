"""Moments over rows: expiring tasks and workers, parked tasks; and the ids of removed tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from millpond.core.order.heap import LazyHeap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.core.lease import RegisteredWorker
    from millpond.store.sql.codec import Row
    from millpond.store.sql.unit_of_work import SqlTables


class SqlExpiring(LazyHeap[int]):
    """Tasks by a moment in their rows."""

    def __init__(self, tables: SqlTables, statement: str, those_until: str) -> None:
        super().__init__()
        self._tables = tables
        self._statement = statement
        self._those_until = those_until

    def set(self, item: int, key: tuple[float, ...]) -> None:
        """Do nothing: the row has it."""

    def discard(self, item: int) -> None:
        """Do nothing: the row has it."""

    def _first(self) -> Row | None:
        tables = self._tables
        tables.write_rows()
        while True:
            row: Row | None = tables.ask(self._statement, (tables.left_alone(),)).fetchone()
            if row is None or tables.pools.understands(row[2]):
                return row

    def lowest(self) -> tuple[float, ...] | None:
        """Return the first moment."""
        return self._first()

    def peek(self) -> int | None:
        """Return the task with the first moment."""
        row = self._first()
        return None if row is None else row[1]

    def until(self, key: float, most: int) -> Iterator[int]:
        """Yield the tasks whose moment has passed; they are read at once."""
        tables = self._tables
        tables.write_rows()
        while True:
            rows = tables.ask(self._those_until, (key, tables.left_alone(), most)).fetchall()
            if all(tables.pools.understands(pool) for pool in {row[1] for row in rows}):
                break
        found = [row[0] for row in rows]
        tables.tasks.load(found)
        return iter(found)


class SqlExpiringWorkers(LazyHeap[str]):
    """Workers by when their leases end: there are few."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables
        self.left: set[str] = set()
        """Workers that hold tasks of a newer version."""

    def set(self, item: str, key: tuple[float, ...]) -> None:
        """Do nothing: the row of the worker has it."""
        del key
        self.left.discard(item)

    def discard(self, item: str) -> None:
        """Do nothing: the row has it."""

    def _first(self) -> RegisteredWorker | None:
        workers = self._tables.workers.values()
        if self.left:
            workers = [one for one in workers if one.id not in self.left]
        return min(workers, key=lambda one: (one.expires_at, one.number), default=None)

    def lowest(self) -> tuple[float, ...] | None:
        """Return when the first of them expires."""
        first = self._first()
        return None if first is None else (first.expires_at, first.number)

    def peek(self) -> str | None:
        """Return which expires first."""
        first = self._first()
        return None if first is None else first.id


class SqlRemoved(dict[int, None]):
    """The ids of tasks that retention removed."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables

    def __contains__(self, identifier: object) -> bool:
        asked = (self._tables.listed([cast("int", identifier)]),)
        return self._tables.ask("was_removed", asked).fetchone() is not None
