"""Tasks over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from millpond.core.lifecycle import Status
from millpond.core.task import UNREADABLE
from millpond.store.sql.cached_rows import RequiredRows
from millpond.store.sql.codec import ENDED_ID, TaskRow, ended_task, live_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millpond.core.task import Task
    from millpond.errors import NewerPool
    from millpond.store.sql.codec import Row
    from millpond.store.sql.tables.changes import TaskChanges
    from millpond.store.sql.unit_of_work import SqlTables


class SqlTasks(RequiredRows[int, TaskRow]):
    """The tasks that were read, by id, and which of them a verb may have changed."""

    def __init__(self, tables: SqlTables) -> None:
        self._tables = tables
        self._read: dict[int, TaskRow] = {}
        self._absent: set[int] = set()
        self.dirty: dict[int, TaskRow] = {}
        """Tasks that a verb may have changed: each is compared with its row, and written."""
        self.peek = self._read.get
        """Returns a task for reading only, if it is in memory."""

        self.of_newer: dict[int, NewerPool] = {}
        """Tasks of pools of a newer version; reading one raises NewerPool."""

        self._dirty_alike: list[Sequence[TaskRow]] = []
        """Batches of which each was only started, or only completed."""
        self._ended_alike: list[Sequence[TaskRow]] = []

    def __len__(self) -> int:
        return len(self._read)

    def get(self, identifier: int) -> TaskRow | None:
        """Return a task for change, or None; a query if it is not in memory."""
        found = self._read.get(identifier)
        if found is None:
            if identifier not in self._absent:
                self.load((identifier,))
            found = self._read.get(identifier)
            if found is None:
                if identifier in self.of_newer:
                    raise self.of_newer[identifier]
                return None
        self.dirty[identifier] = found
        return found

    def in_memory(self) -> Iterable[TaskRow]:
        """Return the tasks that were read."""
        return self._read.values()

    def add(self, identifier: int, task: Task) -> None:
        """Add a new task; its row is written with the others."""
        assert isinstance(task, TaskRow)  # noqa: S101 - of these tables they all are
        self._absent.discard(identifier)
        self._read[identifier] = self.dirty[identifier] = task

    def mark_dirty(self, task: Task) -> None:
        """Note that a verb may change a task that it did not get from here."""
        assert isinstance(task, TaskRow)  # noqa: S101 - of these tables they all are
        self.dirty[task.new.id] = task

    def mark_dirty_alike(self, tasks: Sequence[Task]) -> None:
        """Note that tasks were only started, or only completed, in bulk."""
        self._dirty_alike.append(cast("Sequence[TaskRow]", tasks))

    def remove(self, identifier: int) -> None:
        """Drop a task whose rows were removed."""
        self._read.pop(identifier, None)
        self.dirty.pop(identifier, None)
        self._absent.add(identifier)

    def load(self, identifiers: Iterable[int]) -> None:
        """Read several tasks at once; remember which are absent."""
        here, absent = self._read, self._absent
        wanted = [i for i in identifiers if i not in here and i not in absent]
        if not wanted:
            return
        arguments = (self._tables.listed_ids(wanted),)
        missing = dict.fromkeys(wanted)
        for task in self._tables.look_at_live("live_tasks", arguments):
            missing.pop(task.new.id, None)
        if missing:
            self._tables.read_ended("ended_tasks", arguments)
        absent.update(i for i in missing if i not in here)

    def load_new(self, identifiers: Sequence[int]) -> None:
        """Check at once which of these ids are known: hardly ever any."""
        arguments = (self._tables.listed(identifiers),)
        known = {row[0] for row in self._tables.ask("known_ids", arguments)}
        here = self._read
        self._absent.update(i for i in identifiers if i not in known and i not in here)

    def taken_in(self, row: Row, pool: str) -> TaskRow:
        """Return the task of a live row, the same object each time."""
        found = self._read.get(row[1])
        if found is None:
            found = live_task(row, pool, self._tables.bodies)
            if found.new.call.function == UNREADABLE:
                self._tables.find_share(found)
            self._read[row[1]] = found
        return found

    def taken_in_ended(self, row: Row, pool: str) -> TaskRow:
        """Return the task of an ended row, the same object each time."""
        identifier = row[ENDED_ID]
        found = self._read.get(identifier)
        if found is None:
            found = self._read[identifier] = ended_task(row, pool)
        return found

    def let_go(self) -> None:
        """Drop ended tasks from memory."""
        for identifier, task in self.dirty.items():
            if not task.stored_live:
                del self._read[identifier]
        for tasks in self._ended_alike:
            for task in tasks:
                self._read.pop(task.new.id, None)
        self.dirty, self._ended_alike = {}, []
        self._absent.clear()
        self.of_newer.clear()

    def sort_out_alike(self, change: TaskChanges) -> None:
        """Note bulk changes; a task that changed twice is written like a single change."""
        batches, self._dirty_alike = self._dirty_alike, []
        several = len(batches) > 1 and _share_some(batches)
        for tasks in batches:
            named = {task.new.id: task for task in tasks}
            if several or not self.dirty.keys().isdisjoint(named):
                self.dirty.update(named)
            elif tasks[0].status is Status.RUNNING:
                change.start_all(tasks)
            else:
                change.complete_all(tasks)
                self._ended_alike.append(tasks)


def _share_some(batches: list[Sequence[TaskRow]]) -> bool:
    """Return whether a task is in more than one batch."""
    named = {task.new.id for tasks in batches for task in tasks}
    return len(named) < sum(map(len, batches))
