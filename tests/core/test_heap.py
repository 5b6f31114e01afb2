"""The lazy heap against a plain dict, and its memory under storms."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millpond.core.order.heap import _SLACK, LazyHeap

ITEMS = st.integers(0, 12)
KEYS = st.tuples(st.integers(0, 4), st.integers(0, 3))


def entries(heap: LazyHeap[int]) -> int:
    """How many entries a heap keeps, dead ones too."""
    return sum(entry is not None for entry in heap._row) + len(heap._heap or ())


class HeapMachine(RuleBasedStateMachine):
    """Sets, moves and discards, compared with a dict that is searched from end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.heap: LazyHeap[int] = LazyHeap()
        self.model: dict[int, tuple[float, ...]] = {}

    @rule(item=ITEMS, key=KEYS)
    def put(self, item: int, key: tuple[float, ...]) -> None:
        """Put an item at a key, new or moved."""
        self.heap.set(item, key)
        self.model[item] = key

    @rule(item=ITEMS)
    def discard(self, item: int) -> None:
        """Take an item out, there or not."""
        self.heap.discard(item)
        self.model.pop(item, None)

    @rule()
    def pop(self) -> None:
        """Take out the lowest, as its users do."""
        item = self.heap.peek()
        if item is not None:
            self.heap.discard(item)
            del self.model[item]

    @invariant()
    def same_as_the_model(self) -> None:
        """The lowest key, who stands there, the size and each item's key agree."""
        lowest = min(self.model.values(), default=None)
        assert lowest == self.heap.lowest()
        item = self.heap.peek()
        assert item is None if lowest is None else self.model.get(item or 0) == lowest
        assert len(self.model) == len(self.heap)
        assert self.model == {i: self.heap.key_of(i) for i in self.model}
        assert all((i in self.heap) == (i in self.model) for i in range(13))

    @invariant()
    def memory_is_bounded(self) -> None:
        """Dead entries never outnumber the living by more than a constant."""
        assert entries(self.heap) <= 2 * len(self.heap) + _SLACK


TestHeap = HeapMachine.TestCase


@given(st.lists(KEYS, min_size=1, max_size=40))
def test_it_empties_in_sorted_order(keys: list[tuple[float, ...]]) -> None:
    """Taking the lowest again and again sorts."""
    heap: LazyHeap[int] = LazyHeap()
    for item, key in enumerate(keys):
        heap.set(item, key)
    drained = []
    while (lowest := heap.lowest()) is not None:
        drained.append(lowest)
        heap.discard(heap.peek() or 0)
    assert sorted(keys) == drained


def test_equal_keys_come_out_in_the_order_they_came_in() -> None:
    """Ties need no comparison of items, which may not be comparable."""
    heap: LazyHeap[object] = LazyHeap()
    items = [object() for _ in range(20)]
    for item in items:
        heap.set(item, (1.0,))
    drained: list[object] = []
    while (item := heap.peek()) is not None:
        drained.append(item)
        heap.discard(item)
    assert items == drained


def test_a_storm_of_moves_leaves_no_memory() -> None:
    """Ten items moved a hundred thousand times take the room of ten items."""
    heap: LazyHeap[int] = LazyHeap()
    largest = 0
    for n in range(100_000):
        heap.set(n % 10, (float(-n),))
        largest = max(largest, entries(heap))
    assert largest <= 2 * 10 + _SLACK + 1
    assert 9 == heap.peek()


def test_a_storm_of_cancellations_leaves_no_memory() -> None:
    """Ten thousand come and go behind one that stays at the top."""
    heap: LazyHeap[int] = LazyHeap()
    heap.set(-1, (-1.0,))
    for n in range(10_000):
        heap.set(n, (float(n),))
    for n in range(10_000):
        heap.discard(n)
    assert (1, -1) == (len(heap), heap.peek())
    assert entries(heap) <= 2 + _SLACK
