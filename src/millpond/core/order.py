"""Order: which queued task is next, in O(log n) for every question.

A pool's queue has three levels, each a heap, each holding only what could start now:

    ring of shares        a fair pool has one share per partition, any other pool just one
      groups of a share   tasks that share a limit: one lane or one key
        tasks of a group  lowest (rank, seq) first

A group at its limit, paused or held back is not in its share's heap, and a share without groups
is not in the ring, so nothing that is blocked is ever looked at. What only time will make ready
stands in one heap of timers.

Changes are noted first and take their place together (`flush`), groups in the order of their first
mention: what a store does in one step has one net effect, whether it goes task by task or by sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from millpond.core import rate as gcra
from millpond.core.heap import LazyHeap
from millpond.core.moment import ticks
from millpond.core.ring import Owner, Ring, Share
from millpond.core.spec import OrderKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.core.spec import Order, PoolSpec
    from millpond.core.task import Task, TaskId

PROMOTED_AT_ONCE = 1000
"""How many due tasks one claim takes over at most; the same on every store."""

Unit: TypeAlias = str | None
"""A lane in a pool with lanes, else a key; None is everything that has neither."""


def rank(order: Order, priority: int, submitted_at: float, seq: int) -> int:
    """Return the place of a task among those of its group: lowest first, then by seq.

    It never changes, so one index serves every order. Aging too: a task that gains one priority
    per `aging` seconds overtakes exactly those submitted less than priority * aging before it.
    It is a whole number (of microseconds, with aging), so that every store compares it alike.
    """
    match order.kind:
        case OrderKind.FIFO | OrderKind.FAIR:
            return 0
        case OrderKind.LIFO:
            return -seq
        case OrderKind.PRIORITY if order.aging is None:
            return -priority
        case OrderKind.PRIORITY:
            return ticks(submitted_at) - priority * ticks(order.aging)


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

    __slots__ = ("blocked", "groups", "held_until", "paused", "running", "tat")

    def __init__(self) -> None:
        self.groups: dict[tuple[Share, Owner], _Group] = {}
        self.running = 0
        self.paused = False
        self.blocked = False
        self.held_until = 0.0
        self.tat = 0

    @property
    def idle(self) -> bool:
        """Whether only time could be a reason to remember this unit."""
        return not (self.groups or self.running or self.paused or self.blocked)

    @property
    def matters_until(self) -> float:
        """When its rate and its hold no longer make a difference."""
        return max(self.held_until, gcra.full_at(self.tat))


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
        self._touched: dict[_Group, None] = {}
        self._touched_units: dict[Unit, None] = {}
        self._fading: LazyHeap[Unit] = LazyHeap()
        """Idle units by when they may be forgotten."""

    def __len__(self) -> int:
        return len(self._tasks)

    # What is asked

    def peek(self, owner: Owner) -> Task | None:
        """Return the task that is next for a worker of `owner`, or None; `flush` comes first."""
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

    @property
    def ready(self) -> int:
        """How many tasks are not waiting for their time."""
        return len(self._tasks) - len(self._task_timers)

    def running_in(self, unit: Unit) -> int:
        """Return how many tasks of a lane or key run now."""
        state = self._units.get(unit)
        return 0 if state is None else state.running

    def may_start_now(self, unit: Unit, now: float) -> bool:
        """Return whether the limits of a lane or key would let one task more start."""
        state = self._units.get(unit)
        return state is None or self._open(unit, state, now)

    def holds(self, unit: Unit, now: float) -> tuple[float, float]:
        """Return until when a lane or key is held back, and when its own rate lets it start."""
        state, limit = self._units.get(unit), self.spec.rate_per_key
        if state is None:
            return 0.0, now
        if limit is None or unit is None:
            return state.held_until, now
        return state.held_until, gcra.ready_at(limit, state.tat, 1, now)

    def would_open(self, unit: Unit, now: float) -> bool:
        """Return the same as if no parked head blocked the unit."""
        state = self._units.get(unit)
        if state is None or not state.blocked:
            return self.may_start_now(unit, now)
        state.blocked = False
        try:
            return self._open(unit, state, now)
        finally:
            state.blocked = True

    # What happens

    def add(self, task: Task, now: float) -> None:
        """Queue `task` at its place, or at its timer if it is not due."""
        self._tasks[task.new.id] = task
        if task.due > now and not self.strict(task.unit):
            self._task_timers.set(task.new.id, (task.due, task.seq))
        else:
            self._insert(task)

    def discard(self, task: Task) -> None:
        """Take a queued task out, wherever it stands."""
        del self._tasks[task.new.id]
        self._task_timers.discard(task.new.id)
        state = self._units.get(task.unit)
        group = state.groups.get((self._share(task), task.new.owner)) if state else None
        if group is not None:
            group.tasks.discard(task.new.id)
            self._touched[group] = None
            self._touched_units[task.unit] = None

    def start(self, task: Task, now: float) -> None:
        """Move the task that `peek` named from queued to running."""
        if self.spec.order.kind is OrderKind.FAIR:
            self._ring.serve(self._share(task))
        state = self._units[task.unit]
        state.running += 1
        self._charge_rate(task.unit, state, now)
        self.discard(task)
        self._touch_count(task.unit, state)
        self.flush(now)

    def finish(self, unit: Unit) -> None:
        """Count one running task of a lane or key less."""
        state = self._units[unit]
        state.running -= 1
        self._touch_count(unit, state)

    def promote(self, now: float) -> None:
        """Make ready what has become due by `now`, in the order in which it did."""
        for _ in range(PROMOTED_AT_ONCE):
            due, identifier = self._task_timers.lowest(), self._task_timers.peek()
            if due is None or identifier is None or due[0] > now:
                break
            self._task_timers.discard(identifier)
            self._insert(self._tasks[identifier])
        while (due := self._unit_timers.lowest()) is not None and due[0] <= now:
            unit = self._unit_timers.peek()
            self._unit_timers.discard(unit)
            self._touch(unit, self._units[unit])
        self.flush(now)

    def pause(self, unit: Unit, *, paused: bool) -> None:
        """Stop or start again the claims of one lane or key."""
        state = self._unit(unit)
        state.paused = paused
        self._touch(unit, state)

    def block(self, unit: Unit, *, blocked: bool) -> None:
        """Keep a strict lane out while its head waits for a worker that knows it."""
        state = self._unit(unit)
        state.blocked = blocked
        self._touch(unit, state)

    def hold(self, unit: Unit, until: float) -> None:
        """Start nothing of one lane or key before `until`."""
        state = self._unit(unit)
        state.held_until = max(state.held_until, until)
        self._touch(unit, state)

    def respec(self, spec: PoolSpec) -> None:
        """Take over new limits: O(1), or O(keys) when the limit or rate of each key changes."""
        old, self.spec = self.spec, spec
        self._ring.reorder(spec.order)
        if (old.unit_limit, old.rate_per_key) == (spec.unit_limit, spec.rate_per_key):
            return
        for unit, state in self._units.items():
            if old.rate_per_key != spec.rate_per_key:
                state.tat = 0
            self._touch(unit, state)

    def rebuilt(self, spec: PoolSpec) -> Backlog:
        """Return an empty backlog for another order, with the pauses and holds of this one."""
        other = Backlog(spec)
        for unit, old in self._units.items() if spec.lanes == self.spec.lanes else ():
            if old.paused or old.held_until:
                state = other._unit(unit)
                state.paused, state.held_until = old.paused, old.held_until
        return other

    def flush(self, now: float) -> None:
        """Let everything that was touched take its place, in the order of first mention."""
        touched, self._touched = self._touched, {}
        for group in touched:
            self._place(group, now)
        units, self._touched_units = self._touched_units, {}
        for unit in units:
            state = self._units.get(unit)
            if state is not None and state.idle:
                self._fading.set(unit, (state.matters_until,))
        self._forget_faded(now)

    def _forget_faded(self, now: float) -> None:
        """Forget idle units, so that a key seen once is not remembered for ever."""
        while (soonest := self._fading.lowest()) is not None and soonest[0] <= now:
            unit = self._fading.peek()
            self._fading.discard(unit)
            if self._units[unit].idle:
                del self._units[unit]
                self._unit_timers.discard(unit)

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

    def _touch(self, unit: Unit, state: _UnitState) -> None:
        self._touched_units[unit] = None
        for group in state.groups.values():
            self._touched[group] = None

    def _touch_count(self, unit: Unit, state: _UnitState) -> None:
        """Touch a unit whose running count changed: its groups only if a limit looks at it."""
        limited = self.spec.unit_limit is not None or self.spec.rate_per_key is not None
        if limited and unit is not None:
            self._touch(unit, state)
        else:
            self._touched_units[unit] = None

    def _insert(self, task: Task) -> None:
        state = self._unit(task.unit)
        address = (self._share(task), task.new.owner)
        group = state.groups.get(address)
        if group is None:
            group = state.groups[address] = _Group(address[0], task.unit, address[1])
        group.tasks.set(task.new.id, (task.rank, task.seq))
        self._touched[group] = None

    def _open(self, unit: Unit, state: _UnitState, now: float) -> bool:
        """Return whether the limits of a unit let one more of its tasks start."""
        if state.paused or state.blocked or self._not_before(unit, state, now) > now:
            return False
        if unit is None:
            return True
        limit = self.spec.unit_limit
        return limit is None or state.running < limit

    def _place(self, group: _Group, now: float) -> None:
        """Put a group into or out of its share, and its share into or out of the ring."""
        state = self._units[group.unit]
        address = (group.share, group.owner)
        head = group.tasks.peek()
        if head is None:
            del state.groups[address]
        due = now if head is None else self._tasks[head].due
        ready = head is not None and due <= now and self._open(group.unit, state, now)
        self._enlist(group, address, ready=ready)
        self._set_timer(group, state, due, now)

    def _set_timer(self, group: _Group, state: _UnitState, due: float, now: float) -> None:
        """Arm the timer of a unit that only time keeps from starting its next task.

        Only a strict lane keeps a task that is not due: it blocks the ones behind it.
        """
        unit, place = group.unit, group.tasks.lowest()
        if place is None:
            # The timer belongs to the unit: it goes with the last group, not with this one.
            if not state.groups:
                self._unit_timers.discard(unit)
            return
        moment = max(self._not_before(unit, state, now), due)
        if moment > now and self._open(unit, state, moment):
            self._unit_timers.set(unit, (moment, *place))
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
        if limit is not None and unit is not None:
            state.tat = gcra.take(limit, state.tat, 1, now)

    def _not_before(self, unit: Unit, state: _UnitState, now: float) -> float:
        """Return when the hold and the rate of a unit let it start something: now or later."""
        limit = self.spec.rate_per_key
        if limit is None or unit is None:
            return max(state.held_until, now)
        return max(state.held_until, gcra.ready_at(limit, state.tat, 1, now))


def _by_turn(candidate: tuple[tuple[float, ...], Owner]) -> tuple[float, ...]:
    return candidate[0]


def _by_head(groups: LazyHeap[_Group]) -> tuple[float, ...]:
    return groups.lowest() or ()
