"""Pools over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.errors import NewerPool
from millpond.store.sql.pool import SqlPool
from millpond.store.verbs.tables import PoolTable

if TYPE_CHECKING:
    from millpond.store.sql.codec import Row
    from millpond.store.sql.unit_of_work import SqlTables


class SqlPools(dict[str, PoolTable]):
    """The pools that were read, by name."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables
        self.by_id: dict[int, SqlPool] = {}
        self.handed: dict[int, SqlPool] = {}
        """Pools that a verb may have changed."""
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

    def get(self, name: str, default: PoolTable | None = None) -> PoolTable | None:  # type: ignore[override]
        """Return a pool, or None."""
        found: SqlPool | None = super().get(name)  # type: ignore[assignment]
        if found is None:
            if name in self._newer:
                raise self._newer[name]
            if self._all_read or name in self._absent:
                return default
            row = self._tables.ask("pool", (name,)).fetchone()
            if row is None:
                self._absent.add(name)
                return default
            found = self._take_in(row)
        self.handed[found.number] = found
        return found

    def __getitem__(self, name: str) -> PoolTable:
        if name in self:
            pool: SqlPool = super().__getitem__(name)  # type: ignore[assignment]
            self.handed[pool.number] = pool
            return pool
        found = self.get(name)
        if found is None:
            raise KeyError(name)
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

    def __setitem__(self, name: str, made: PoolTable) -> None:
        """Keep a pool that was just declared."""
        self._last = max(self._tables.ask("last_pool").fetchone()[0], self._last) + 1
        number = self._last
        pool = SqlPool.declared_now(self._tables, number, made)
        self.by_id[number] = self.handed[number] = pool
        super().__setitem__(name, pool)

    def items(self) -> Any:  # noqa: ANN401 - as dict's
        """Return every pool."""
        if not self._all_read:
            for row in list(self._tables.ask("pools")):
                if row[0] not in self.by_id:
                    self._understood(row)
            self._all_read = True
        self.handed.update(self.by_id)
        return sorted(super().items(), key=_by_number)

    def values(self) -> Any:  # noqa: ANN401 - as dict's
        """Return every pool."""
        return [pool for _, pool in self.items()]

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
        for number, pool in self.handed.items():
            rows = pool.trimmed()
            self._kept_of_all += rows - kept.get(number, 0)
            kept[number] = rows
        self.handed = {}
        return self._kept_of_all

    def _take_in(self, row: Row) -> SqlPool:
        try:
            pool = SqlPool.read(self._tables, row)
            self._tables.budgets.must_know(pool.spec)
        except NewerPool as error:
            self.newer[row[0]] = self._newer[row[1]] = error
            raise
        self.by_id[pool.number] = pool
        super().__setitem__(pool.name, pool)
        return pool


def _by_number(item: tuple[str, PoolTable]) -> int:
    pool = item[1]
    assert isinstance(pool, SqlPool)  # noqa: S101 - every pool of these tables is
    return pool.number
