"""A heap from which any item can be removed: O(log n) amortised, memory bounded by its items.

An item with the highest key, as turns and moments mostly have, goes to the end of a sorted list in
O(1); only other items go into a real heap beside it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized

Item = TypeVar("Item")
Entry: TypeAlias = tuple[tuple[float, ...], int, Item]

_SLACK = 32
_TAKEN: Any = None


class Ordered(Protocol[Item]):
    """Items by key, lowest first: what a backlog and a ring ask of a heap."""

    @property
    def entries(self) -> Sized:
        """Falsy if there is no item."""

    def __contains__(self, item: object) -> bool: ...

    def set(self, item: Item, key: tuple[float, ...]) -> None:
        """Put `item` at `key`, wherever it stood before."""

    def discard(self, item: Item) -> None:
        """Remove `item` if it is here."""

    def pop(self) -> Item:
        """Take out the item with the lowest key; there must be one."""

    def peek(self) -> Item | None:
        """Return the item with the lowest key, or None."""

    def lowest(self) -> tuple[float, ...] | None:
        """Return the lowest key, or None."""

    def key_of(self, item: Item) -> tuple[float, ...]:
        """Return the key of `item`."""

    def top(self) -> Entry[Item] | None:
        """Return the entry with the lowest key, (key, serial, item), or None."""


class LazyHeap(Generic[Item]):
    """Items by key, lowest first. Moving or removing one leaves a dead entry behind.

    Dead entries are skipped when they come first and swept out when they outnumber the live ones,
    so a storm of cancellations cannot grow the heap.
    """

    __slots__ = ("_head", "_heap", "_row", "_serial", "entries")

    def __init__(self) -> None:
        self.entries: dict[Item, Entry[Item]] = {}
        """The entries by item: (key, serial, item). Read only; falsy if the heap is empty."""
        self._row: list[Entry[Item]] = []
        self._head = 0
        self._heap: list[Entry[Item]] | None = None
        self._serial = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.entries)

    def __contains__(self, item: object) -> bool:
        return item in self.entries

    def set(self, item: Item, key: tuple[float, ...]) -> None:
        """Put `item` at `key`, wherever it stood before."""
        before = self.entries.get(item)
        if before is not None and before[0] == key:
            return
        # The serial keeps two items with equal keys comparable without comparing the items.
        self._serial += 1
        entry = (key, self._serial, item)
        self.entries[item] = entry
        row = self._row
        if not row or key >= row[-1][0]:
            row.append(entry)
        else:
            if self._heap is None:
                self._heap = []
            heappush(self._heap, entry)
        if before is not None:
            self._sweep_if_due()

    def discard(self, item: Item) -> None:
        """Remove `item` if it is here."""
        if self.entries.pop(item, None) is not None:
            self._sweep_if_due()

    def pop(self) -> Item:
        """Take out the item with the lowest key; there must be one."""
        entry = self.top()
        if entry is None:
            raise IndexError
        del self.entries[entry[2]]
        # It comes first, so its entry is at the head of the list or of the heap.
        if self._row and self._row[self._head] is entry:
            self._take_head()
        elif self._heap:
            heappop(self._heap)
        return entry[2]

    def peek(self) -> Item | None:
        """Return the item with the lowest key, or None."""
        entry = self.top()
        return None if entry is None else entry[2]

    def lowest(self) -> tuple[float, ...] | None:
        """Return the lowest key, or None."""
        entry = self.top()
        return None if entry is None else entry[0]

    def firsts(self, most: int) -> Iterator[Item]:
        """Yield the lowest item up to `most` times; the caller removes each."""
        for _ in range(most):
            item = self.peek()
            if item is None:
                return
            yield item

    def until(self, key: float, most: int) -> Iterator[Item]:
        """Yield the lowest item up to `most` times while its key begins with at most `key`."""
        for _ in range(most):
            entry = self.top()
            if entry is None or entry[0][0] > key:
                return
            yield entry[2]

    def key_of(self, item: Item) -> tuple[float, ...]:
        """Return the key of `item`."""
        return self.entries[item][0]

    def top(self) -> Entry[Item] | None:
        """Return the entry with the lowest key, (key, serial, item), or None."""
        entries, first = self.entries, None
        while self._row:
            first = self._row[self._head]
            if entries.get(first[2]) is first:
                break
            self._take_head()
            first = None
        heap = self._heap
        if not heap:
            return first
        while heap and entries.get(heap[0][2]) is not heap[0]:
            heappop(heap)
        if heap and (first is None or heap[0] < first):
            return heap[0]
        return first

    def _take_head(self) -> None:
        row, head = self._row, self._head + 1
        if head == len(row):
            self._row = []
            self._head = 0
        elif head > _SLACK and 2 * head > len(row):
            del row[:head]
            self._head = 0
        else:
            row[head - 1] = _TAKEN
            self._head = head

    def _sweep_if_due(self) -> None:
        kept = len(self._row) - self._head
        if self._heap:
            kept += len(self._heap)
        if kept > 2 * len(self.entries) + _SLACK:
            self._row, self._head, self._heap = sorted(self.entries.values()), 0, None
