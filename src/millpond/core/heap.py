"""A heap from which anything can be taken: O(log n) amortised, memory bounded by what is in it."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

Item = TypeVar("Item")

_SLACK = 32


class LazyHeap(Generic[Item]):
    """Items by key, lowest first. Moving or removing one leaves a dead entry behind.

    Dead entries are skipped when they surface and swept out when they outnumber the living, so
    a storm of cancellations cannot grow the heap.
    """

    __slots__ = ("_entries", "_heap", "_serial")

    def __init__(self) -> None:
        self._entries: dict[Item, tuple[tuple[float, ...], int, Item]] = {}
        self._heap: list[tuple[tuple[float, ...], int, Item]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._entries)

    def __contains__(self, item: object) -> bool:
        return item in self._entries

    def set(self, item: Item, key: tuple[float, ...]) -> None:
        """Put `item` at `key`, wherever it stood before."""
        before = self._entries.get(item)
        if before is not None and before[0] == key:
            return
        # The serial keeps two items with equal keys comparable without comparing the items.
        self._serial += 1
        entry = (key, self._serial, item)
        self._entries[item] = entry
        heap = self._heap
        if before is not None and heap[0] is before:
            heapreplace(heap, entry)
            return
        heappush(heap, entry)
        if len(heap) > 2 * len(self._entries) + _SLACK:
            self._sweep()

    def discard(self, item: Item) -> None:
        """Remove `item` if it is here."""
        if self._entries.pop(item, None) is None:
            return
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._sweep()

    def peek(self) -> Item | None:
        """Return the item with the lowest key, or None."""
        entry = self.top()
        return None if entry is None else entry[2]

    def lowest(self) -> tuple[float, ...] | None:
        """Return the lowest key, or None."""
        entry = self.top()
        return None if entry is None else entry[0]

    def key_of(self, item: Item) -> tuple[float, ...]:
        """Return the key at which `item` stands."""
        return self._entries[item][0]

    def top(self) -> tuple[tuple[float, ...], int, Item] | None:
        """Return the entry with the lowest key, (key, serial, item), or None."""
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            if entries.get(entry[2]) is entry:
                return entry
            heappop(heap)
        return None

    def _sweep(self) -> None:
        self._heap = list(self._entries.values())
        heapify(self._heap)
