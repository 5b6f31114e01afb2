"""Lines of tasks over rows, read page by page."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import islice, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from millpond.store.sql.codec import TaskRow, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from millpond.core.order.line import Head
    from millpond.core.order.ring import Owner
    from millpond.core.task import Task
    from millpond.store.sql.backlog.backlog import SqlBacklog
    from millpond.store.sql.backlog.groups import SqlGroup

TRIM_AT = 256
FIRST_PLACE = (-(1 << 63), -1)
"""A place before all others."""
_NOT_NAMED = (-(1 << 63), 0)
"""The same, for a line whose group does not name the place of its first task."""

_by_place = attrgetter("rank", "seq")
_NO_TASKS: list[TaskRow] = []
_NOTHING: set[int] = set()
"""The shared empty set of new lines."""


class Place(NamedTuple):
    """The place of the first task of a line, and when it is due."""

    rank: int
    seq: int
    due: float


class SqlLine:
    """The queued tasks of one group, lowest (rank, seq) first, read page by page.

    The tasks that were read stand in a row, as they came. Those put in or taken out since, other
    than the first, are `mine`: a page that is read later does not count for them.
    """

    __slots__ = (
        *("_backlog", "_behind", "_count", "_front", "_group", "_head", "_heap", "_mine", "_row"),
        *("_size", "grp"),
    )

    def __init__(
        self,
        backlog: SqlBacklog,
        group: SqlGroup | None,
        count: int | None,
        front: Place | None,
    ) -> None:
        self._row = _NO_TASKS
        self._head = 0
        self._heap: list[tuple[int, int, int, TaskRow]] | None = None
        self._backlog = backlog
        self._group = group
        """None = it is the only line of its pool and has the id of its pool."""
        self.grp = backlog.pool if group is None else group.id
        self._count = count
        """How many tasks it has; None = not counted here."""
        self._front = front
        """The place of the first unread task, if known."""
        named = group is None or front is not None
        begins = FIRST_PLACE if named else _NOT_NAMED
        self._behind: tuple[int, int] | None = begins if count != 0 else None
        """Where the next page begins; None = all tasks are read."""
        self._mine = _NOTHING
        self._size = 2

    def __len__(self) -> int:
        return self._count or 0

    def __iter__(self) -> Iterator[Task]:
        row = self._row[self._head :]
        while self._behind is not None:
            self._read()
            row += self._row
        self._row, self._head = row, 0
        mine = self._mine
        read = [task for task in row if task.seq not in mine]
        added = {task.seq: task for *_, task in self._heap or () if task.grp == self.grp}
        return iter([*read, *added.values()])

    def trim(self) -> None:
        """Drop taken tasks from memory."""
        if len(self._mine) > TRIM_AT:
            self._leave_to_the_file()
        elif self._head > TRIM_AT:
            del self._row[: self._head]
            self._head = 0

    def _leave_to_the_file(self) -> None:
        """Forget own changes: all are written."""
        mine, behind, pool = self._mine, self._behind, self._backlog.pool
        read = {task.seq: task for task in self._row[self._head :] if task.seq not in mine}
        added = {
            seq: task
            for rank, seq, _, task in self._heap or ()
            if task.grp == self.grp and (behind is None or (rank, place_of(pool, seq)) <= behind)
        }
        self._row, self._head = sorted({**read, **added}.values(), key=_by_place), 0
        self._heap = self._front = None
        self._mine = _NOTHING

    def begin_with(self, first: TaskRow, second: Place | None) -> None:
        """Set the first task and the place of the second, if nothing was read yet."""
        if self._behind == FIRST_PLACE:
            self._row = [first]
            self._behind = self._front = None
            if second is not None:
                self._behind = (first.rank, place_of(self._backlog.pool, first.seq))
                self._front = None if second.seq in self._mine else second

    def expect(self, count: int) -> None:
        """Read as many tasks as will be taken, and one more."""
        self._size = max(self._size, count + 1)

    def add(self, task: Task) -> None:
        """Put a task at its place."""
        assert isinstance(task, TaskRow)  # noqa: S101 - of these tables they all are
        task.grp = self.grp
        if self._count is not None:
            self._count += 1
        self._own(task.seq)
        if self._group is not None:
            self._backlog.dirty[self._group] = None
        if self._heap is None:
            self._heap = []
        heappush(self._heap, (task.rank, task.seq, id(task), task))

    def first(self) -> Task | None:
        """Return the task that is next, or None."""
        added = self._first_added()
        found = self._first_read()
        front = self._front
        if found is None and (added is None or front is None or _behind(added, front)):
            while found is None and self._behind is not None:
                self._read()
                found = self._first_read()
        if found is None or (added is not None and not _behind(added, found)):
            found = added
        if found is not None:
            # The caller is about to start the first one.
            self._backlog.tables.tasks.mark_dirty(found)
        return found

    def _first_read(self) -> TaskRow | None:
        row, mine = self._row, self._mine
        while self._head < len(row):
            task = row[self._head]
            if task.seq not in mine:
                return task
            self._head += 1
        return None

    def _first_added(self) -> TaskRow | None:
        heap = self._heap
        while heap:
            task = heap[0][3]
            if task.grp == self.grp:
                return task
            heappop(heap)
        return None

    def head(self) -> Head | None:
        """Return the place of the task that is next, or None."""
        known = self._first_read() or self._front
        if known is None:
            return self.first()
        added = self._first_added()
        return known if added is None or _behind(added, known) else added

    def remove(self, task: Task) -> None:
        """Remove a task."""
        assert isinstance(task, TaskRow)  # noqa: S101 - of these tables they all are
        task.grp = None
        if self._count is not None:
            self._count -= 1
        if self._group is not None:
            self._backlog.dirty[self._group] = None
        row, head = self._row, self._head
        if head < len(row) and row[head] is task:
            self._head = head + 1
        else:
            self._own(task.seq)
        if self._front is not None and task.seq == self._front.seq:
            self._front = None

    def take(self, most: int, fits: Callable[[Task], bool]) -> list[Task]:
        """Remove and return the first tasks that were read, while each fits."""
        taken: list[Task] = []
        if self._group is not None:
            return taken
        added = self._first_added()
        while len(taken) < most and self._has_read():
            if added is not None and not _behind(added, self._row[-1]):
                break
            taken += self._taken_of_page(most - len(taken), fits)
            if self._head < len(self._row):
                break
        return taken

    def _has_read(self) -> bool:
        """Return whether a task is in memory, after reading the next page if needed."""
        if self._first_read() is None and self._behind is not None:
            self._read()
        return self._first_read() is not None

    def _taken_of_page(self, most: int, fits: Callable[[Task], bool]) -> list[TaskRow]:
        mine, head = self._mine, self._head
        taken = list(takewhile(fits, islice(self._row, head, head + most)))
        self._head = head + len(taken)
        if mine:
            taken = [task for task in taken if task.seq not in mine]
        for task in taken:
            task.grp = None
        if self._count is not None:
            self._count -= len(taken)
        self._front = None
        return taken

    def _own(self, seq: int) -> None:
        if self._mine is _NOTHING:
            self._mine = set()
        self._mine.add(seq)

    def _read(self) -> None:
        """Read the next page."""
        backlog, size = self._backlog, self._size
        behind = self._behind or FIRST_PLACE
        name = "next_of_group" if behind == FIRST_PLACE else "next_of_group_after"
        after = () if behind == FIRST_PLACE else behind
        page = backlog.tables.look_at_live(name, (self.grp, *after, size))
        self._row = page
        self._head = 0
        self._front = None
        self._size = min(size * 2, 512)
        last = page[-1] if page else None
        full = last is not None and len(page) == size
        self._behind = (last.rank, place_of(backlog.pool, last.seq)) if full and last else None


def _behind(task: Head, other: Head) -> bool:
    return (task.rank, task.seq) > (other.rank, other.seq)


class SqlLines:
    """The lines of a pool without groups that were read, by owner."""

    def __init__(self, backlog: SqlBacklog) -> None:
        self._backlog = backlog
        self._lines: dict[Owner, SqlLine] = {}
        self._absent: set[Owner] = set()
        """Owners that are known to have no line."""

    def get(self, owner: Owner) -> SqlLine | None:
        """Return the line of an owner, or None if it has no tasks; perhaps a query."""
        found = self._lines.get(owner)
        if found is not None:
            return found  # a line of unknown length counts as empty, so `or` would lose it
        if owner in self._absent:
            return None
        if owner is not None and not self._backlog.has_line(owner):
            self._absent.add(owner)
            return None
        return self.make(owner)

    def make(self, owner: Owner) -> SqlLine:
        """Return a new line of an owner: to read it, or to put its first task in."""
        self._absent.discard(owner)
        line = self._lines[owner] = self._backlog.line_of(owner)
        return line

    def require(self, owner: Owner) -> SqlLine:
        """Return the line of an owner that has tasks."""
        found = self._lines.get(owner)
        return self.make(owner) if found is None else found

    def in_memory(self) -> Iterable[SqlLine]:
        """Return the lines that were read."""
        return self._lines.values()

    def trimmed(self, groups: Mapping[int, SqlGroup]) -> int:
        """Drop taken tasks and lines without a group; return how many absent owners are known."""
        for owner, line in list(self._lines.items()):
            line.trim()
            if owner is not None and line.grp not in groups:
                # What would be put in it later would stand in a group that no unit of work writes.
                del self._lines[owner]
        return len(self._absent)
