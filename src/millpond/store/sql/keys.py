"""The idempotency keys of a pool: those that were read, and what has changed in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from millpond.core.admit import Known
from millpond.core.lifecycle import Status
from millpond.store.sql.cached_rows import CachedRows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.store.sql.codec import Row
    from millpond.store.sql.unit_of_work import SqlTables

    _Key: TypeAlias = tuple[str, int | None]
    """An idempotency key, and the run it counts in."""


class SqlKeys(CachedRows["_Key", Known, "Row"]):
    """The idempotency keys that were read."""

    def __init__(self, tables: SqlTables, pool: int) -> None:
        super().__init__()
        self._tables = tables
        self._pool = pool

    def load(self, names: Iterable[str]) -> None:
        """Read several keys at once, except those of runs."""
        wanted = [name for name in dict.fromkeys(names) if (name, None) not in self._stored]
        if len(wanted) < 2:
            return
        found: dict[_Key, Row] = {}
        for name, run, *row in self._tables.ask(
            "some_keys", (self._pool, self._tables.listed(wanted))
        ):
            found[name, run or None] = tuple(row)
        for key in (*((name, None) for name in wanted), *found):
            if key not in self._stored:
                self._take_in(key, found.get(key))

    def _ask(self, key: _Key) -> Row | None:
        row: Row | None = self._tables.ask("key", (self._pool, key[0], key[1] or 0)).fetchone()
        return row

    def _made(self, _: _Key, row: Row) -> Known:
        task, status, function, fingerprint = row
        return Known(task, Status(status), function, _unsigned(fingerprint))

    def _row(self, _: _Key, value: Known) -> Row:
        return (value.task, value.status.value, value.function, _signed(value.fingerprint))

    def write(self) -> None:
        """Write what has changed."""
        saved, dropped = [], []
        for (name, run), _, row in self._changes():
            if row is None:
                dropped.append((self._pool, name, run or 0))
            else:
                saved.append((self._pool, name, run or 0, *row))
        if dropped:
            self._tables.send("drop_key", dropped)
        if saved:
            self._tables.send("save_key", saved)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _unsigned(number: int) -> int:
    return number + (1 << 64) if number < 0 else number
