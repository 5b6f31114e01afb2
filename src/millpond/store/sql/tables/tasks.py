"""Tasks over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status
from millpond.core.task import UNREADABLE
from millpond.store.sql.codec import ENDED_ID, TaskRow, ended_task, live_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millpond.errors import NewerPool
    from millpond.store.sql.codec import Row
    from millpond.store.sql.tables.changes import TaskChanges
    from millpond.store.sql.unit_of_work import SqlTables


class SqlTasks(dict[int, TaskRow]):
    """The tasks that were read, by id."""

    def __init__(self, tables: SqlTables) -> None:
        super().__init__()
        self._tables = tables
        self._absent: set[int] = set()
        self.handed: dict[int, TaskRow] = {}
        """Tasks that a verb may have changed."""

        self.of_newer: dict[int, NewerPool] = {}
        """Tasks of pools of a newer version; reading one raises NewerPool."""

        self.changed_alike: list[Sequence[TaskRow]] = []
        """Tasks that were only started or completed in bulk."""
        self._ended_alike: list[Sequence[TaskRow]] = []

    def get(self, identifier: int, default: TaskRow | None = None) -> TaskRow | None:  # type: ignore[override]
        """Return a task, or None."""
        found = super().get(identifier)
        if found is None:
            if identifier not in self._absent:
                self.read((identifier,))
            found = super().get(identifier)
            if found is None:
                if identifier in self.of_newer:
                    raise self.of_newer[identifier]
                return default
        self.handed[identifier] = found
        return found

    def __getitem__(self, identifier: int) -> TaskRow:
        found = self.get(identifier)
        if found is None:
            raise KeyError(identifier)
        return found

    def __contains__(self, identifier: object) -> bool:
        return self.get(identifier) is not None  # type: ignore[arg-type]

    def __setitem__(self, identifier: int, task: TaskRow) -> None:
        self._absent.discard(identifier)
        self.handed[identifier] = task
        super().__setitem__(identifier, task)

    def read(self, identifiers: Iterable[int]) -> None:
        """Read several tasks at once; remember which are absent."""
        here, absent = super().keys(), self._absent
        wanted = [i for i in identifiers if i not in here and i not in absent]
        if not wanted:
            return
        asked = (self._tables.listed(wanted),)
        missing = dict.fromkeys(wanted)
        for task in self._tables.look_at_live("live_tasks", asked):
            missing.pop(task.new.id, None)
        if missing:
            self._tables.read_ended("ended_tasks", asked)
        self._absent.update(i for i in missing if not super(SqlTasks, self).__contains__(i))

    def expect_new(self, identifiers: Sequence[int]) -> None:
        """Check at once which of these ids are known: hardly ever any."""
        asked = (self._tables.listed(identifiers),)
        known = {row[0] for row in self._tables.ask("known_ids", asked)}
        here = super().keys()
        self._absent.update(i for i in identifiers if i not in known and i not in here)

    def taken_in(self, row: Row, pool: str) -> TaskRow:
        """Return the task of a live row, the same object each time."""
        found = super().get(row[1])
        if found is None:
            found = live_task(row, pool, self._tables.bodies)
            if found.new.call.function == UNREADABLE:
                self._tables.find_share(found)
            super().__setitem__(row[1], found)
        return found

    def taken_in_ended(self, row: Row, pool: str) -> TaskRow:
        """Return the task of an ended row, the same object each time."""
        identifier = row[ENDED_ID]
        found = super().get(identifier)
        if found is None:
            found = ended_task(row, pool)
            super().__setitem__(identifier, found)
        return found

    def let_go(self) -> None:
        """Drop ended tasks from memory."""
        for identifier, task in self.handed.items():
            if not task.stored_live:
                super().__delitem__(identifier)
        for tasks in self._ended_alike:
            for task in tasks:
                super().pop(task.new.id, None)
        self.handed, self._ended_alike = {}, []
        self._absent.clear()
        self.of_newer.clear()

    def sort_out_alike(self, change: TaskChanges) -> None:
        """Note bulk changes; a task that changed twice is written like a single change."""
        batches, self.changed_alike = self.changed_alike, []
        several = len(batches) > 1 and _share_some(batches)
        for tasks in batches:
            named = {task.new.id: task for task in tasks}
            if several or not self.handed.keys().isdisjoint(named):
                self.handed.update(named)
            elif tasks[0].status is Status.RUNNING:
                change.start_all(tasks)
            else:
                change.complete_all(tasks)
                self._ended_alike.append(tasks)

    def forget(self, identifier: int) -> None:
        """Drop a task whose rows were removed."""
        super().pop(identifier, None)
        self.handed.pop(identifier, None)
        self._absent.add(identifier)


def _share_some(batches: list[Sequence[TaskRow]]) -> bool:
    """Return whether a task is in more than one batch."""
    named = {task.new.id for tasks in batches for task in tasks}
    return len(named) < sum(map(len, batches))
