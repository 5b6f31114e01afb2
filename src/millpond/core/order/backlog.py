"""The backlog of a pool: which queued task is next, in O(log n).

Where lanes and keys do not matter (no fair order, no limit or rate per key, none of them paused or
held back), a pool's queue is one line of tasks for all workers, and one for each owner of closures.
Otherwise it has three levels, each with only the tasks that could start now:

    ring of shares        a fair pool has one share per partition, any other pool just one
      groups of a share   tasks that share a limit: one lane or one key
        tasks of a group  lowest (rank, seq) first

A group at its limit, paused or held back is not in its share's heap, and a share without groups is
not in the ring, so blocked tasks are never read. Tasks that only time makes ready have timers.

Changes are noted first and applied together (`flush`), groups in the order in which they were first
touched, those of one lane or key by their first tasks: one verb has one net effect, whether a store
applies it task by task or in bulk.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from millpond.core import rate as gcra
from millpond.core.order.delayed import DelayedTasks
from millpond.core.order.groups import DictUnits, Group, Unit, UnitState
from millpond.core.order.heap import LazyHeap
from millpond.core.order.line import TaskLine
from millpond.core.order.placement import Placement
from millpond.core.order.ring import Owner, Ring, Share
from millpond.core.spec import OrderKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from millpond.core.order.delayed import Delayed
    from millpond.core.order.heap import Ordered
    from millpond.core.order.line import Line
    from millpond.core.spec import PoolSpec
    from millpond.core.task import Task

PROMOTED_AT_ONCE = 1000
"""How many due tasks one claim makes ready at most; the same on every store."""


_FAIR = OrderKind.FAIR
_LINES_KEPT = 8
"""How many owners keep their line when it runs empty."""

_by_place = attrgetter("rank", "seq")
_by_first_task = attrgetter("place")


class Backlog(Placement):
    """The queued tasks of one pool and the running counts that decide which may start."""

    __slots__ = (
        "_by_share",
        "_delayed",
        "_fading",
        "_fair",
        "_line",
        "_lines",
        "_ready",
        "_running",
        "_touched",
        "_touched_units",
        "grouped",
        "lanes",
        "spec",
    )

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self.lanes = spec.strict
        """Whether lanes (or keys, as lanes) run one task at a time and in sequence."""
        self.grouped = needs_groups(spec)
        """Whether lanes or keys matter; if not, there is nothing to `flush`."""
        super().__init__(spec, grouped=self.grouped)
        self._fair = spec.order.kind is _FAIR
        self._by_share = self._fair and not spec.strict
        self._ready = 0
        self._lines: dict[Owner, TaskLine] = {}
        self._line: Callable[[Owner], Line | None] = self._lines.get
        """Returns the line of an owner, where there are no groups."""
        self._running: dict[str, int] = {}
        """How many tasks of each key run, where there are no groups."""
        self._delayed: Delayed = DelayedTasks()
        self._touched: dict[Group, None] = {}
        self._touched_units: dict[Unit, None] = {}
        self._fading: Ordered[Unit] = LazyHeap()
        """Idle units by when they may be forgotten."""

    def __len__(self) -> int:
        return self._ready + self._delayed.count

    def __iter__(self) -> Iterator[Task]:
        """Yield every queued task, in any order."""
        groups = (group for _, state in self._units.items() for group in state.all_groups())
        lines: Iterator[Line] = chain(self._lines.values(), (group.tasks for group in groups))
        return chain(chain.from_iterable(lines), self._delayed.all())

    # Reading

    def peek(self, owner: Owner, *, own_only: bool = False) -> Task | None:
        """Return the next task for a worker of `owner`, or None; call `flush` first.

        `own_only` leaves out tasks that every worker may run.
        """
        if self.grouped:
            group = self._own_group(owner) if own_only else self._next_group(owner)
            return None if group is None else group.tasks.first()
        if own_only:
            own_line = self._line(owner)
            return None if own_line is None else own_line.first()
        line = self._line(None)
        first = None if line is None else line.first()
        if owner is None or (line := self._line(owner)) is None:
            return first
        own = line.first()
        if own is None or (first is not None and _by_place(first) < _by_place(own)):
            return first
        return own

    def next_moment(self) -> float | None:
        """Return when time own_only will make something ready, or None."""
        due = self._delayed.next_due() if self._delayed.count else None
        unit = self._unit_timers.lowest() if self._unit_timers.entries else None
        if unit is None or (due is not None and due < unit[0]):
            return due
        return unit[0]

    def startable(self, owner: Owner, now: float) -> Iterator[Task]:
        """Yield every task that a worker of `owner` could start at `now`; O(n) for all of them."""
        heads: set[int] = set()
        if self.lanes:
            heads = {
                head.new.id
                for _, state in self._units.items()
                for group in state.all_groups()
                if (head := group.tasks.first()) is not None
            }
        for task in self.all_tasks():
            blocked = self.strict(task.unit) and task.new.id not in heads
            if task.due > now or blocked or task.new.owner not in (None, owner):
                continue
            if self.may_start_now(task.unit, now):
                yield task

    def all_tasks(self) -> Iterator[Task]:
        """Yield every task, in any order."""
        return iter(self)

    @property
    def ready(self) -> int:
        """How many tasks are not waiting for their time."""
        return self._ready

    def scheduled(self, now: float) -> int:
        """Return how many tasks are not due at `now`; O(n) in a strict pool, else O(not due)."""
        return sum(task.due > now for task in (self if self.lanes else self._delayed.all()))

    def running_in(self, unit: str) -> int:
        """Return how many tasks of a lane or key run now."""
        if not self.grouped:
            return self._running.get(unit, 0)
        state = self._units.get(unit)
        return 0 if state is None else state.running

    def live_in(self, unit: str) -> int:
        """Return how many tasks of a lane or key are queued, delayed or running.

        O(1) in a strict lane, else O(delayed tasks) and only for pools with a limit per key.
        """
        state = self._units.get(unit)
        ready = 0 if state is None else sum(len(group.tasks) for group in state.all_groups())
        if not self.lanes:
            ready += sum(task.unit == unit for task in self._delayed.all())
        return ready + self.running_in(unit)

    def may_start_now(self, unit: Unit, now: float) -> bool:
        """Return whether the limits of a lane or key let one more task start."""
        state = self._units.get(unit)
        return state is None or self._open(unit, state, now)

    def holds(self, unit: Unit, now: float) -> tuple[float, float]:
        """Return until when a lane or key is held back, and when its own rate allows a start."""
        state, limit = self._units.get(unit), self.spec.rate_per_key
        if state is None:
            return 0.0, now
        if limit is None or unit is None:
            return state.held_until, now
        return state.held_until, gcra.ready_at(limit, state.tat, 1, now)

    def held_units(self, now: float) -> tuple[tuple[str, float], ...]:
        """Return the lanes or keys held back on their own, and until when; the longest first."""
        units = (
            (unit, state.held_until) for unit, state in self._units.items() if unit is not None
        )
        held = [(unit, until) for unit, until in units if until > now]
        return tuple(sorted(held, key=lambda one: (-one[1], one[0])))

    def units_in_use(self) -> list[tuple[str, str | None, int, int, float]]:
        """Return each lane or key with its share, tasks that are ready, running ones, and hold.

        By name, then by share; '' stands for the tasks without a key.
        """
        found: list[tuple[str, str | None, int, int, float]] = []
        for unit, state in self._units.items():
            shares: dict[str | None, int] = {}
            for group in state.all_groups():
                share = group.address[0]
                shares[share] = shares.get(share, 0) + len(group.tasks)
            if not shares and (state.running or state.paused or state.held_until):
                shares[None] = 0
            found += [
                (unit or "", share, queued, state.running, state.held_until)
                for share, queued in shares.items()
            ]
        return sorted(found, key=lambda one: (one[0], one[1] or ""))

    def would_open(self, unit: Unit, now: float) -> bool:
        """Return `may_start_now` as if no parked head blocked the unit."""
        state = self._units.get(unit)
        if state is None or not state.blocked:
            return self.may_start_now(unit, now)
        state.blocked = False
        try:
            return self._open(unit, state, now)
        finally:
            state.blocked = True

    # Changes

    def add(self, task: Task, now: float) -> None:
        """Queue `task` at its place, or with a timer if it is not due."""
        if task.due > now and not (self.lanes and task.unit is not None):
            self._delayed.add(task)
        elif self.grouped:
            self._insert(task)
        else:
            line = self._line(task.new.owner)
            if line is None:
                line = self._new_line(task.new.owner)
            line.add(task)
            self._ready += 1

    def discard(self, task: Task) -> None:
        """Remove a queued task, wherever it is."""
        if self._delayed.count and self._delayed.discard(task):
            return
        self._ready -= 1
        if not self.grouped:
            self._take_out(task)
            return
        unit = task.unit
        group = self._units.require(unit).group_at((self._share(task), task.new.owner))
        group.tasks.remove(task)
        self._touched[group] = None
        self._touched_units[unit] = None

    def take(self, owner: Owner, most: int, fits: Callable[[Task], bool]) -> list[Task]:
        """Move the next tasks from queued to running, while each fits.

        Returns none where lanes or keys matter, or where tasks of `owner` alone and of all come in
        turns: use `peek` then.
        """
        if self.grouped:
            return []
        line = self._line(None)
        own = None if owner is None else self._line(owner)
        if own is not None and own.head() is not None:
            if line is not None and line.head() is not None:
                return []
            line = own
        if line is None:
            return []
        taken = line.take(most, fits)
        self._ready -= len(taken)
        self._count_running(taken)
        return taken

    def _count_running(self, tasks: list[Task]) -> None:
        running = self._running
        for task in tasks:
            key = task.new.key
            if key is not None:
                running[key] = running.get(key, 0) + 1

    def start(self, task: Task, now: float) -> None:
        """Move the task that `peek` named from queued to running."""
        if not self.grouped:
            self._ready -= 1
            self._take_out(task)
            key = task.new.key
            if key is not None:
                self._running[key] = self._running.get(key, 0) + 1
            return
        new = task.new
        unit = new.key if task.lane is None else task.lane
        share = new.share if self._by_share else self._share(task)
        if self._fair:
            self._ring.serve(share)
        state = self._units.require(unit)
        if unit is not None:
            state.running += 1
            if self._rate is not None:
                state.tat = gcra.take(self._rate, state.tat, 1, now)
        if self._touched or unit is None:
            self.discard(task)
            self._touch_count(unit, state)
            self.flush(now)
            return
        # The same, where there is nothing else to flush.
        self._ready -= 1
        group = state.group_at((share, new.owner))
        group.tasks.remove(task)
        if self._limited and state.count_groups() > 1:
            self._touched[group] = None
            self._touch(unit, state)
            self.flush(now)
        else:
            self._place(group, now)

    def finish(self, unit: Unit) -> None:
        """Count one running task of a lane or key less."""
        if unit is None:
            return
        if not self.grouped:
            left = self._running[unit] - 1
            if left:
                self._running[unit] = left
            else:
                del self._running[unit]
            return
        state = self._units.require(unit)
        state.running -= 1
        if self._cap is not None and state.running < self._cap and not state.held_until:
            # It was not at its limit: its groups keep their places.
            if not state.running:
                self._touched_units[unit] = None
        elif self._limited or not state.running:
            self._touch_count(unit, state)

    def put_back(self, unit: Unit, *, rate: bool) -> None:
        """Count one unstarted claim less; with `rate`, return its cost to the rate of its key."""
        if rate and self._rate is not None and unit is not None:
            state = self._units.require(unit)
            state.tat = gcra.give_back(self._rate, state.tat, 1)
        self.finish(unit)

    def promote(self, now: float) -> None:
        """Make tasks and units ready that are due by `now`, in the order of their moments."""
        if self._delayed.count:
            self._promote_tasks(now)
        if not self.grouped:
            return
        timers = self._unit_timers
        while timers.entries and (due := timers.lowest()) is not None and due[0] <= now:
            unit = self._unit_timers.pop()
            self._touch(unit, self._units.require(unit))
        self.flush(now)

    def _promote_tasks(self, now: float) -> None:
        for _ in range(PROMOTED_AT_ONCE):
            task = self._delayed.pop_due(now)
            if task is None:
                break
            self.add(task, now)

    def pause(self, unit: Unit, *, paused: bool) -> None:
        """Pause or resume one lane or key."""
        state = self._unit_to_stop(unit)
        state.paused = paused
        if not paused:
            # A resume also ends a hold.
            state.held_until = 0.0
        self._touch(unit, state)

    def block(self, unit: Unit, *, blocked: bool) -> None:
        """Block a strict lane while its head is parked."""
        state = self._unit_to_stop(unit)
        state.blocked = blocked
        self._touch(unit, state)

    def hold(self, unit: Unit, until: float) -> None:
        """Start no task of one lane or key before `until`."""
        state = self._unit_to_stop(unit)
        state.held_until = max(state.held_until, until)
        self._touch(unit, state)

    def respec(self, spec: PoolSpec) -> None:
        """Apply new limits: O(1), or O(keys) when the limit or rate per key changes.

        O(tasks) when keys begin to matter.
        """
        old, self.spec = self.spec, spec
        self._cache_limits(spec)
        if self.grouped:
            self._ring.reorder(spec.order)
        elif needs_groups(spec):
            self._group()
        if (old.unit_limit, old.rate_per_key) == (spec.unit_limit, spec.rate_per_key):
            return
        groups: list[Group] = []
        for unit, state in self._units.items():
            if old.rate_per_key != spec.rate_per_key:
                state.tat = 0
            self._touched_units[unit] = None
            groups += state.all_groups()
        self._touch_groups(groups)

    def rebuilt(self, spec: PoolSpec) -> Backlog:
        """Return an empty backlog for another order, with the pauses and holds of this one."""
        other = Backlog(spec)
        for unit, old in self._units.items() if spec.lanes == self.spec.lanes else ():
            if old.paused or old.held_until:
                state = other._unit_to_stop(unit)
                state.paused, state.held_until = old.paused, old.held_until
        return other

    def flush(self, now: float) -> None:
        """Apply the changes to all touched groups and units, in the order they were touched."""
        if self._touched:
            touched, self._touched = self._touched, {}
            for group in touched:
                self._place(group, now)
        if self._touched_units:
            units, self._touched_units = self._touched_units, {}
            for unit in units:
                state = self._units.get(unit)
                if state is not None and state.idle:
                    self._fade(unit, state, now)
        if self._fading.entries:
            self._forget_faded(now)

    def _fade(self, unit: Unit, state: UnitState, now: float) -> None:
        """Forget an idle unit, at once or when its rate and its hold no longer matter."""
        until = state.matters_until if state.tat else state.held_until
        if until > now:
            self._fading.set(unit, (until,))
        else:
            self._fading.discard(unit)
            self._forget(unit)

    def _forget_faded(self, now: float) -> None:
        """Forget idle units, so that a key seen once is not remembered for ever."""
        while (soonest := self._fading.lowest()) is not None and soonest[0] <= now:
            unit = self._fading.pop()
            if self._units.require(unit).idle:
                self._forget(unit)

    def _forget(self, unit: Unit) -> None:
        self._units.remove(unit)
        if self._unit_timers.entries:
            self._unit_timers.discard(unit)
        if not needs_groups(self.spec) and self._units.is_empty():
            # No key limits anything any more: the plain lines serve again.
            self.grouped = False

    # Structure

    def strict(self, unit: Unit) -> bool:
        """Return whether the tasks of a unit run one at a time and in sequence."""
        return self.lanes and unit is not None

    def _take_out(self, task: Task) -> None:
        owner = task.new.owner
        line = self._lines[owner]
        line.remove(task)
        if owner is not None and not line and len(self._lines) > _LINES_KEPT:
            del self._lines[owner]

    def _group(self) -> None:
        """Begin to group tasks by lanes and keys, including those that wait or run already."""
        self.grouped = True
        self._ring, self._units = Ring(self.spec.order), DictUnits()
        for unit, running in self._running.items():
            self._unit(unit).running = running
        waiting = list(chain.from_iterable(self._lines.values()))
        self._running, self._ready = {}, 0
        self._lines.clear()
        for task in waiting:
            self._insert(task)

    def _unit_to_stop(self, unit: Unit) -> UnitState:
        if not self.grouped:
            self._group()
        return self._unit(unit)

    def _share(self, task: Task) -> Share:
        if not self._fair:
            return None
        # In a fair pool with lanes the lanes take turns: a lane's order runs across partitions.
        return task.unit if self.lanes else task.new.share

    def _unit(self, unit: Unit) -> UnitState:
        state = self._units.get(unit)
        if state is None:
            state = UnitState()
            self._units.add(unit, state)
        return state

    def _new_line(self, owner: Owner) -> Line:
        line = self._lines[owner] = TaskLine()
        return line

    def _new_group(self, address: tuple[Share, Owner], unit: Unit) -> Group:
        return Group(address, unit)

    def _touch(self, unit: Unit, state: UnitState) -> None:
        self._touched_units[unit] = None
        self._touch_groups(state.all_groups())

    def _touch_groups(self, groups: Collection[Group]) -> None:
        """Touch groups, those first whose first tasks come first: no store has to number them."""
        for group in groups if len(groups) < 2 else sorted(groups, key=_by_first_task):
            self._touched[group] = None

    def _touch_count(self, unit: Unit, state: UnitState) -> None:
        """Touch a unit whose running count changed, and its groups if they have a limit."""
        if self._limited and unit is not None:
            self._touch(unit, state)
        else:
            self._touched_units[unit] = None

    def _insert(self, task: Task) -> None:
        self._ready += 1
        new = task.new
        unit = new.key if task.lane is None else task.lane
        state = self._unit(unit)
        address = (new.share if self._by_share else self._share(task), new.owner)
        group = state.find_group(address)
        if group is None:
            group = self._new_group(address, unit)
            state.add_group(group)
        group.tasks.add(task)
        self._touched[group] = None


def needs_groups(spec: PoolSpec) -> bool:
    """Return whether lanes or keys decide which task may start, or which is next."""
    limited = spec.unit_limit is not None or spec.rate_per_key is not None
    return limited or spec.order.kind is _FAIR
