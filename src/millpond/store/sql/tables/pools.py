"""Pools over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.errors import NewerPool
from millpond.store.sql.cached_rows import RequiredRows
from millpond.store.sql.pool import SqlPool

if TYPE_CHECKING:
    from millpond.store.sql.codec import Row
    from millpond.store.sql.unit_of_work import SqlTables
    from millpond.store.verbs.tables import PoolTable


class SqlPools(RequiredRows[str, SqlPool]):
    """The pools that were read, and which of them a verb may have changed."""

    def __init__(self, tables: SqlTables) -> None:
        self._tables = tables
        self._read: dict[str, SqlPool] = {}
        self.by_id: dict[int, SqlPool] = {}
        self.dirty: dict[int, SqlPool] = {}
        """Pools that a verb may have changed: each compares its rows and writes them."""
        self._absent: set[str] = set()
        self.newer: dict[int, NewerPool] = {}
        """Pools of a newer version that were read, by id."""
        self._newer: dict[str, NewerPool] = {}
        """The same by name; reading one raises NewerPool."""
        self._all_read = False
        self._kept: dict[int, int] = {}
        """How many rows of each pool are in memory."""
        self._kept_of_all = 0
        self._last = 0
        """The highest id of a pool, as far as known."""

    def get(self, name: str) -> SqlPool | None:
        """Return a pool for change, or None; a query if it is not in memory."""
        found = self._read.get(name)
        if found is None:
            if name in self._newer:
                raise self._newer[name]
            if self._all_read or name in self._absent:
                return None
            row = self._tables.ask("pool", (name,)).fetchone()
            if row is None:
                self._absent.add(name)
                return None
            found = self._take_in(row)
        self.dirty[found.number] = found
        return found

    def numbered(self, identifier: int) -> SqlPool:
        """Return the pool of a number."""
        found = self.by_id.get(identifier)
        if found is None:
            if identifier in self.newer:
                raise self.newer[identifier]
            row = self._tables.ask("pool_by_id", (identifier,)).fetchone()
            found = self._take_in(row)
        return found

    def understands(self, identifier: int) -> bool:
        """Return whether the pool of a number is one that this version understands."""
        try:
            self.numbered(identifier)
        except NewerPool:
            return False
        return True

    def add(self, name: str, pool: PoolTable) -> None:
        """Add a pool that was just declared; its row is written with the others."""
        assert isinstance(pool, SqlPool)  # noqa: S101 - of these tables they all are
        self._read[name] = self.by_id[pool.number] = self.dirty[pool.number] = pool

    def next_number(self) -> int:
        """Return an id for a new pool; always a query."""
        self._last = max(self._tables.ask("last_pool").fetchone()[0], self._last) + 1
        return self._last

    def all(self) -> list[SqlPool]:
        """Return every pool for change, in order of declaration."""
        if not self._all_read:
            for row in list(self._tables.ask("pools")):
                if row[0] not in self.by_id:
                    self._understood(row)
            self._all_read = True
        self.dirty.update(self.by_id)
        return sorted(self._read.values(), key=lambda pool: pool.number)

    def with_queued(self) -> list[SqlPool]:
        """Return the pools in which something is queued; the others are not read."""
        found = []
        for row in self._tables.ask("queued_pools").fetchall():
            known = self.by_id.get(row[0]) or self._understood(row)
            if known is not None:
                found.append(known)
        return found

    def _understood(self, row: Row) -> SqlPool | None:
        """Add a pool; None if only a newer version understands it."""
        try:
            return self._take_in(row)
        except NewerPool:
            return None

    def trimmed(self) -> int:
        """Drop what the next transaction hardly needs; return how many rows stay in memory."""
        kept = self._kept
        for number, pool in self.dirty.items():
            rows = pool.trimmed()
            self._kept_of_all += rows - kept.get(number, 0)
            kept[number] = rows
        self.dirty = {}
        return self._kept_of_all

    def _take_in(self, row: Row) -> SqlPool:
        try:
            pool = SqlPool.read(self._tables, row)
            self._tables.budgets.must_know(pool.spec)
        except NewerPool as error:
            self.newer[row[0]] = self._newer[row[1]] = error
            raise
        self.by_id[pool.number] = pool
        self._read[pool.name] = pool
        return pool
