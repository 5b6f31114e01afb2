"""Tasks from outside that were never claimed: what a bound counts."""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING

from millpond.core.spec import OnFull

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.spec import PoolSpec
    from millpond.core.task import Task

_EVICTING = (OnFull.DROP_OLDEST, OnFull.RING_BUFFER)


class UnclaimedTasks:
    """The never-claimed outside tasks of one pool; listed only if its bound needs it."""

    __slots__ = ("_by_key", "_by_lane", "_count", "_oldest", "listed")

    def __init__(self, spec: PoolSpec) -> None:
        self._count = 0
        self.listed = asks_which(spec)
        """Whether the bound of the pool needs more than their number."""
        self._oldest: OrderedDict[int, None] = _NONE
        self._by_key: dict[str | None, OrderedDict[int, None]] = {}
        self._by_lane: dict[str | None, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        return self._count

    def of_key(self, key: str | None) -> int:
        """Return how many of one key there are; known only if the bound needs it."""
        return len(self._by_key.get(key, ()))

    def of_lane(self, lane: str) -> int:
        """Return how many of one lane there are; known only if the bound needs it."""
        return len(self._by_lane.get(lane, ()))

    def oldest_of_lane(self, lane: str) -> int:
        """Return the id of the first of one lane."""
        return next(iter(self._by_lane[lane]))

    def oldest(self) -> int:
        """Return the id of the one that came first."""
        return next(iter(self._oldest))

    def oldest_of(self, key: str | None) -> int:
        """Return the id of the first of one key."""
        return next(iter(self._by_key[key]))

    def add(self, task: Task) -> None:
        """Count a new task."""
        self._count += 1
        if self.listed:
            self._list(task)

    def remove(self, task: Task) -> None:
        """Count one less: it was claimed, or it ended unclaimed."""
        self._count -= 1
        if self.listed:
            del self._oldest[task.new.id]
            _unlist(self._by_key, task.new.key, task.new.id)
            _unlist(self._by_lane, task.lane, task.new.id)

    def remove_some(self, count: int) -> None:
        """Count so many less, where the bound needs only their number."""
        self._count -= count

    def respec(self, spec: PoolSpec, queued: Iterable[Task]) -> None:
        """Apply another bound; one that needs more than the number lists all tasks: O(n)."""
        listed = asks_which(spec)
        if listed and not self.listed:
            for task in sorted((task for task in queued if task.fresh), key=attrgetter("seq")):
                self._list(task)
        elif not listed:
            self._oldest, self._by_key, self._by_lane = _NONE, {}, {}
        self.listed = listed

    def _list(self, task: Task) -> None:
        if self._oldest is _NONE:
            self._oldest = OrderedDict()
        self._oldest[task.new.id] = None
        self._by_key.setdefault(task.new.key, OrderedDict())[task.new.id] = None
        self._by_lane.setdefault(task.lane, OrderedDict())[task.new.id] = None


def _unlist(listed: dict[str | None, OrderedDict[int, None]], name: str | None, task: int) -> None:
    same = listed[name]
    del same[task]
    if not same:
        del listed[name]


_NONE: OrderedDict[int, None] = OrderedDict()


def asks_which(spec: PoolSpec) -> bool:
    policy = spec.backpressure
    if policy is None:
        return False
    bounds_parts = policy.per_key is not None or policy.per_lane is not None
    return bounds_parts or policy.on_full in _EVICTING
