"""Rows of one table that a unit of work has read: each once, written where it differs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class RequiredRows(ABC, Generic[K, V]):
    """Rows by key, of which one may have to be there."""

    @abstractmethod
    def get(self, key: K, /) -> V | None:
        """Return a row for change, or None; a query if it is not in memory."""

    def require(self, key: K, /) -> V:
        """Return a row for change; it must be there."""
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found


class CachedRows(RequiredRows[K, V], Generic[K, V, R]):
    """Rows that are compared with what is stored when a verb may have changed them."""

    def __init__(self) -> None:
        self._read: dict[K, V] = {}
        self._stored: dict[K, R | None] = {}
        """As stored; None = it is not there."""
        self._dirty: set[K] = set()

    @abstractmethod
    def _ask(self, key: K, /) -> R | None:
        """Return a row as stored, or None: a query."""

    @abstractmethod
    def _made(self, key: K, row: R, /) -> V:
        """Return what the verbs know of a row."""

    @abstractmethod
    def _row(self, key: K, value: V, /) -> R:
        """Return the row to store."""

    def get(self, key: K, /) -> V | None:
        """Return a row for change, or None; a query if it is not in memory."""
        self._dirty.add(key)
        return self.look_at(key)

    def look_at(self, key: K, /) -> V | None:
        """Return a row for reading only, or None; a query if it is not in memory."""
        found = self._read.get(key)
        if found is not None or key in self._stored:
            return found
        return self._take_in(key, self._ask(key))

    def add(self, key: K, value: V, /) -> None:
        """Add a new row; it is written with the others."""
        self._stored.setdefault(key, None)
        self._dirty.add(key)
        self._read[key] = value

    def remove(self, key: K) -> None:
        """Remove a row; it is deleted with the other changes."""
        self.get(key)
        del self._read[key]

    def _take_in(self, key: K, row: R | None) -> V | None:
        self._stored[key] = row
        if row is None:
            return None
        value = self._read[key] = self._made(key, row)
        return value

    def known(self, key: K, row: R) -> None:
        """Add a row that was read with others."""
        if key not in self._stored and key not in self._read:
            self._take_in(key, row)

    @property
    def known_rows(self) -> int:
        """How many rows were read, absent ones too."""
        return len(self._stored)

    def _changes(self) -> Iterator[tuple[K, R | None, R | None]]:
        """Yield the rows that differ from the stored ones: key, as stored, and as it is now."""
        for key in self._dirty:
            value, stored = self._read.get(key), self._stored.get(key)
            row = None if value is None else self._row(key, value)
            if row != stored:
                self._stored[key] = row
                yield key, stored, row

    def let_go(self) -> None:
        """Forget which rows may have changed: all are written."""
        self._dirty = set()

    def forget(self) -> None:
        """Read everything again from now on."""
        self._read.clear()
        self._stored.clear()
        self._dirty.clear()
