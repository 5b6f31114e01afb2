"""Order: which queued task is next, in O(log n) for every question.

A pool's queue has three levels, each a heap, each holding only what could start now:

    ring of shares        a fair pool has one share per partition, any other pool just one
      groups of a share   tasks that share a limit: one lane or one key
        tasks of a group  lowest (rank, seq) first

A group at its limit, paused or held back is not in its share's heap, and a share without groups
is not in the ring, so nothing that is blocked is ever looked at. What only time will make ready
stands in one heap of timers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from millpond.core import rate as gcra
from millpond.core.heap import LazyHeap
from millpond.core.ring import Owner, Ring, Share
from millpond.core.spec import OrderKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.core.spec import Order, PoolSpec
    from millpond.core.task import Task, TaskId

Unit: TypeAlias = str | None
"""A lane in a pool with lanes, else a key; None is everything that has neither."""


def rank(order: Order, priority: int, submitted_at: float, seq: int) -> float:
    """Return the place of a task among those of its group: lowest first, then by seq.

    It never changes, so one index serves every order. Aging too: a task that gains one priority
    per `aging` seconds overtakes exactly those submitted less than priority * aging before it.
    """
    match order.kind:
        case OrderKind.FIFO | OrderKind.FAIR:
            return 0.0
        case OrderKind.LIFO:
            return float(-seq)
        case OrderKind.PRIORITY if order.aging is None:
            return float(-priority)
        case OrderKind.PRIORITY:
            return submitted_at - priority * order.aging


def lane_of(key: str, lanes: int) -> str:
    """Return the lane of a key: the same one in every process, release and store."""
    return str(crc32(key.encode()) % lanes)


class _Group:
    """Queued tasks of one unit, one share and one owner."""

    __slots__ = ("owner", "share", "tasks", "unit")

    def __init__(self, share: Share, unit: Unit, owner: Owner) -> None:
        self.share = share
        self.unit = unit
        self.owner = owner
        self.tasks: LazyHeap[TaskId] = LazyHeap()


class _UnitState:
    """What limits one lane or key: how many run, pauses, its rate."""

    __slots__ = ("blocked", "groups", "not_before", "paused", "running", "tat")

    def __init__(self) -> None:
        self.groups: dict[tuple[Share, Owner], _Group] = {}
        self.running = 0
        self.paused = False
        self.blocked = False
        self.not_before = 0.0
        self.tat = 0.0

    def forgettable(self, now: float) -> bool:
        """Whether nothing would be lost by forgetting this unit."""
        idle = not (self.groups or self.running or self.paused or self.blocked)
        return idle and self.not_before <= now and self.tat <= now


class Backlog:
    """The queued tasks of one pool and the running counts that decide which may start."""

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self._tasks: dict[TaskId, Task] = {}
        self._units: dict[Unit, _UnitState] = {}
        self._shares: dict[tuple[Share, Owner], LazyHeap[_Group]] = {}
        self._ring = Ring(spec.order)
        self._task_timers: LazyHeap[TaskId] = LazyHeap()
        self._unit_timers: LazyHeap[Unit] = LazyHeap()

    def __len__(self) -> int:
        return len(self._tasks)

    # What is asked

    def peek(self, owner: Owner) -> Task | None:
        """Return the task that is next for a worker of `owner`, or None if none may start."""
        group = self._next_group(owner)
        if group is None:
            return None
        head = group.tasks.peek()
        return None if head is None else self._tasks[head]

    def next_moment(self) -> float | None:
        """Return when time alone will make something ready, or None."""
        moments = [t.lowest() for t in (self._task_timers, self._unit_timers)]
        return min((m[0] for m in moments if m is not None), default=None)

    def startable(self, owner: Owner, now: float) -> Iterator[Task]:
        """Yield every task that a worker of `owner` could start at `now`; O(n), for tests."""
        heads = {
            head
            for state in self._units.values()
            for group in state.groups.values()
            if (head := group.tasks.peek()) is not None
        }
        for task in self._tasks.values():
            blocked = self.strict(task.unit) and task.new.id not in heads
            if task.due > now or blocked or task.new.owner not in (None, owner):
                continue
            if self.may_start_now(task.unit, now):
                yield task

    def running_in(self, unit: Unit) -> int:
        """Return how many tasks of a lane or key run now."""
        state = self._units.get(unit)
        return 0 if state is None else state.running

    def may_start_now(self, unit: Unit, now: float) -> bool:
        """Return whether the limits of a lane or key would let one task more start."""
        state = self._units.get(unit)
        return state is None or self._open(unit, state, now)

    # What happens

    def add(self, task: Task, now: float) -> None:
        """Queue `task` at its place, or at its timer if it is not due."""
        self._tasks[task.new.id] = task
        if task.due > now and not self.strict(task.unit):
            self._task_timers.set(task.new.id, (task.due, task.seq))
        else:
            self._insert(task, now)

    def discard(self, task: Task, now: float) -> None:
        """Take a queued task out, wherever it stands."""
        del self._tasks[task.new.id]
        self._task_timers.discard(task.new.id)
        state = self._units.get(task.unit)
        group = state.groups.get((self._share(task), task.new.owner)) if state else None
        if group is not None:
            group.tasks.discard(task.new.id)
            self._place(group, now)

    def start(self, task: Task, now: float) -> None:
        """Move the task that `peek` named from queued to running."""
        if self.spec.order.kind is OrderKind.FAIR:
            self._ring.serve(self._share(task))
        state = self._units[task.unit]
        state.running += 1
        self._charge_rate(task.unit, state, now)
        self.discard(task, now)
        self._refresh(task.unit, now)

    def finish(self, unit: Unit, now: float) -> None:
        """Count one running task of a lane or key less."""
        self._units[unit].running -= 1
        self._refresh(unit, now)

    def promote(self, now: float) -> None:
        """Make ready what has become due by `now`."""
        while (due := self._task_timers.lowest()) is not None and due[0] <= now:
            identifier = self._task_timers.peek()
            if identifier is None:
                return
            self._task_timers.discard(identifier)
            self._insert(self._tasks[identifier], now)
        while (due := self._unit_timers.lowest()) is not None and due[0] <= now:
            unit = self._unit_timers.peek()
            self._unit_timers.discard(unit)
            self._refresh(unit, now)

    def pause(self, unit: Unit, now: float, *, paused: bool) -> None:
        """Stop or start again the claims of one lane or key."""
        self._unit(unit).paused = paused
        self._refresh(unit, now)

    def block(self, unit: Unit, now: float, *, blocked: bool) -> None:
        """Keep a strict lane out while its head waits for a worker that knows it."""
        self._unit(unit).blocked = blocked
        self._refresh(unit, now)

    def hold(self, unit: Unit, until: float, now: float) -> None:
        """Start nothing of one lane or key before `until`."""
        state = self._unit(unit)
        state.not_before = max(state.not_before, until)
        self._refresh(unit, now)

    def respec(self, spec: PoolSpec, now: float) -> None:
        """Take over new limits: O(1), or O(keys) when the limit of each key changes."""
        changed = spec.unit_limit != self.spec.unit_limit
        self.spec = spec
        for unit in list(self._units) if changed else ():
            self._refresh(unit, now)

    # How it is kept

    def strict(self, unit: Unit) -> bool:
        """Return whether the tasks of a unit run one at a time and in sequence."""
        return self.spec.strict and unit is not None

    def _share(self, task: Task) -> Share:
        if self.spec.order.kind is not OrderKind.FAIR:
            return None
        # In a fair pool with lanes the lanes take turns: a lane's order runs across partitions.
        return task.unit if self.spec.strict else task.new.share

    def _unit(self, unit: Unit) -> _UnitState:
        state = self._units.get(unit)
        if state is None:
            state = self._units[unit] = _UnitState()
        return state

    def _insert(self, task: Task, now: float) -> None:
        state = self._unit(task.unit)
        address = (self._share(task), task.new.owner)
        group = state.groups.get(address)
        if group is None:
            group = state.groups[address] = _Group(address[0], task.unit, address[1])
        group.tasks.set(task.new.id, (task.rank, task.seq))
        self._place(group, now)

    def _open(self, unit: Unit, state: _UnitState, now: float) -> bool:
        """Return whether the limits of a unit let one more of its tasks start."""
        if state.paused or state.blocked or state.not_before > now:
            return False
        if unit is None:
            return True
        limit = self.spec.unit_limit
        return limit is None or state.running < limit

    def _refresh(self, unit: Unit, now: float) -> None:
        state = self._units.get(unit)
        if state is None:
            return
        for group in list(state.groups.values()):
            self._place(group, now)
        if state.forgettable(now):
            self._units.pop(unit, None)

    def _place(self, group: _Group, now: float) -> None:
        """Put a group into or out of its share, and its share into or out of the ring."""
        state = self._units[group.unit]
        address = (group.share, group.owner)
        head = group.tasks.peek()
        if head is None:
            del state.groups[address]
            if state.forgettable(now):
                del self._units[group.unit]
        due = now if head is None else self._tasks[head].due
        ready = head is not None and due <= now and self._open(group.unit, state, now)
        self._enlist(group, address, ready=ready)
        self._set_timer(group.unit, state, due, now)

    def _set_timer(self, unit: Unit, state: _UnitState, due: float, now: float) -> None:
        """Arm the timer of a unit that only time keeps from starting its next task.

        Only a strict lane keeps a task that is not due: it blocks the ones behind it.
        """
        moment = max(state.not_before, due)
        if moment > now and state.groups and self._open(unit, state, moment):
            self._unit_timers.set(unit, (moment,))
        elif unit in self._unit_timers and self._unit_timers.key_of(unit)[0] > now:
            # A timer that is due stays: `promote` has yet to look at the other groups of the unit.
            self._unit_timers.discard(unit)

    def _enlist(self, group: _Group, address: tuple[Share, Owner], *, ready: bool) -> None:
        groups = self._shares.get(address)
        place = group.tasks.lowest()
        if ready and place is not None:
            if groups is None:
                groups = self._shares[address] = LazyHeap()
                self._ring.enter(*address)
            groups.set(group, place)
        elif groups is not None:
            groups.discard(group)
            if not groups:
                del self._shares[address]
                self._ring.leave(*address)

    def _next_group(self, owner: Owner) -> _Group | None:
        """Return the group to serve: the lower turn of what is for all and for `owner` alone."""
        audiences = (None,) if owner is None else (None, owner)
        turns = [(turn, one) for one in audiences if (turn := self._ring.turn_of(one)) is not None]
        if not turns:
            return None
        share = self._ring.peek(min(turns, key=_by_turn)[1])
        heaps = [heap for one in audiences if (heap := self._shares.get((share, one))) is not None]
        return min(heaps, key=_by_head).peek()

    def _charge_rate(self, unit: Unit, state: _UnitState, now: float) -> None:
        limit = self.spec.rate_per_key
        if limit is None or unit is None:
            return
        state.tat = gcra.take(limit, state.tat, 1, now)
        state.not_before = max(state.not_before, gcra.ready_at(limit, state.tat, 1, now))


def _by_turn(candidate: tuple[tuple[float, ...], Owner]) -> tuple[float, ...]:
    return candidate[0]


def _by_head(groups: LazyHeap[_Group]) -> tuple[float, ...]:
    return groups.lowest() or ()
