"""Rows by key: the few words with which rules and verbs read and change stored rows.

In memory a dictionary answers. A store on disk answers with a repository. It keeps the rows that it
has read in a dictionary, and `get` may be a query. It compares every row that it returned with the
stored one, and writes the changed ones before the transaction ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, ItemsView, Iterable, ValuesView

K_contra = TypeVar("K_contra", contravariant=True)
V = TypeVar("V")
Key = TypeVar("Key")


class Rows(Protocol[K_contra, V]):
    """Rows by key, each the same object whenever a verb gets it."""

    def get(self, key: K_contra, /) -> V | None:
        """Return a row, or None; the caller may change it."""

    def require(self, key: K_contra, /) -> V:
        """Return a row that must be there; raises KeyError."""

    def add(self, key: K_contra, row: V, /) -> None:
        """Add a row, or replace it."""


class ListedRows(Rows[K_contra, V], Protocol):
    """Rows of which there are few enough to go through all."""

    def all(self) -> Iterable[V]:
        """Return every row; the caller may change them."""


class RemovableRows(Rows[K_contra, V], Protocol):
    """Rows that come and go."""

    def remove(self, key: K_contra, /) -> None:
        """Remove a row that must be there."""


class DictRows(Generic[Key, V]):
    """Rows in memory: every method is one of a plain dictionary, at the same cost."""

    __slots__ = ("add", "all", "get", "items", "peek", "remove", "require")

    def __init__(self) -> None:
        rows: dict[Key, V] = {}
        self.get: Callable[[Key], V | None] = rows.get
        self.require: Callable[[Key], V] = rows.__getitem__
        self.peek: Callable[[Key], V | None] = rows.get
        self.all: Callable[[], ValuesView[V]] = rows.values
        self.items: Callable[[], ItemsView[Key, V]] = rows.items
        self.add: Callable[[Key, V], None] = rows.__setitem__
        self.remove: Callable[[Key], None] = rows.__delitem__
