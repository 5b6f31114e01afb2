"""An ordered set over rows whose lowest items are read page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from millpond.core.order.heap import Entry, LazyHeap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Item = TypeVar("Item")
Key: TypeAlias = tuple[float, ...]


class Paged(Generic[Item]):
    """`Ordered` over rows: items that were read or changed are in memory, the rest in the database.

    A row that is read for the first time stands where the file says; one that was read or changed
    before stands where it was put, whatever the file says. So the file may be written meanwhile.
    """

    __slots__ = (
        "_all_read",
        "_behind",
        "_count",
        "_heap",
        "_most",
        "_read",
        "_size",
        "_taken_over",
    )

    def __init__(
        self,
        read: Callable[[Key | None, int], list[tuple[Key, Item]]],
        *,
        count: int | None = None,
        size: int = 16,
        most: int = 512,
    ) -> None:
        self._read = read
        self._heap: LazyHeap[Item] = LazyHeap()
        """The items in memory."""
        self._behind: Key | None = None
        self._all_read = count == 0
        self._taken_over: set[Item] = set()
        self._count = count
        self._size = size
        self._most = most

    @property
    def entries(self) -> Paged[Item]:
        """Itself: falsy if it has no items."""
        return self

    def __len__(self) -> int:
        if self._count is None:
            raise NotImplementedError
        return self._count

    def __bool__(self) -> bool:
        return self.top() is not None if self._count is None else self._count > 0

    def __iter__(self) -> Iterator[Item]:
        while not self._all_read:
            self._next_page()
        return iter(self._heap)

    def __contains__(self, item: object) -> bool:
        return item in self._heap

    def known(self, item: Item, key: Key) -> None:
        """Add an item whose row was read for another reason."""
        if item not in self._taken_over:
            self._taken_over.add(item)
            self._heap.set(item, key)

    def set(self, item: Item, key: Key) -> None:
        """Put `item` at `key`, wherever it was before."""
        if self._count is not None and item not in self._heap:
            self._count += 1
        self._taken_over.add(item)
        self._heap.set(item, key)

    def discard(self, item: Item) -> None:
        """Remove `item`."""
        self._taken_over.add(item)
        if item in self._heap:
            self._heap.discard(item)
            if self._count is not None:
                self._count -= 1

    def pop(self) -> Item:
        """Remove and return the item with the lowest key; there must be one."""
        entry = self.top()
        if entry is None:
            raise IndexError
        self.discard(entry[2])
        return entry[2]

    def peek(self) -> Item | None:
        """Return the item with the lowest key, or None."""
        entry = self.top()
        return None if entry is None else entry[2]

    def lowest(self) -> Key | None:
        """Return the lowest key, or None."""
        entry = self.top()
        return None if entry is None else entry[0]

    def key_of(self, item: Item) -> Key:
        """Return the key of `item`, which must have been read."""
        return self._heap.key_of(item)

    def top(self) -> Entry[Item] | None:
        """Return the entry with the lowest key, or None."""
        while True:
            entry = self._heap.top()
            if self._all_read:
                return entry
            if entry is not None and self._behind is not None and entry[0] <= self._behind:
                return entry
            self._next_page()

    def nearest(self) -> Entry[Item] | None:
        """Return the lowest item in memory, without reading."""
        return self._heap.top()

    def expect(self, count: int) -> None:
        """Make the next page as long as the number of items that will be taken."""
        self._size = max(self._size, count)

    @property
    def known_items(self) -> int:
        """How many items are in memory, or known to be removed."""
        return len(self._taken_over)

    def begin_with(self, page: list[tuple[Key, Item]], *, all_of_it: bool) -> None:
        """Add a first page that was read together with others."""
        if self._behind is None and not self._all_read:
            self._take_in(page, all_of_it=all_of_it)

    def _next_page(self) -> None:
        page = self._read(self._behind, self._size)
        self._take_in(page, all_of_it=len(page) < self._size)
        self._size = max(min(self._size * 2, self._most), self._size)

    def _take_in(self, page: list[tuple[Key, Item]], *, all_of_it: bool) -> None:
        for key, item in page:
            self.known(item, key)
        self._all_read = all_of_it
        if page:
            self._behind = page[-1][0]
