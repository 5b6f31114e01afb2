"""What the tasks of one unit of work came to, by the statement that writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status
from millpond.store.sql.codec import (
    CHANGING,
    SEQS,
    TaskRow,
    ended_row,
    live_row,
    live_state,
    only_claimed,
    only_ended,
    only_ran,
    only_started,
    untouched_row,
    untouched_state,
    waits_untouched,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.task import NewTask
    from millpond.store.sql.codec import Row
    from millpond.store.sql.unit_of_work import SqlTables

_QUEUED, _RUNNING, _COMPLETED = Status.QUEUED, Status.RUNNING, Status.COMPLETED


class TaskChanges:
    """The changes of tasks in one unit of work, by the statement that writes them."""

    def __init__(self) -> None:
        self._bodies: list[tuple[int, NewTask]] = []
        self._queued: list[Row] = []
        self._new: list[Row] = []
        self._started: dict[Row, list[int]] = {}
        self._claimed: dict[Row, list[TaskRow]] = {}
        self._updated: list[TaskRow] = []
        self._changed: list[Row] = []
        self._left: list[int] = []
        self._moved: list[Row] = []
        self._redriven: list[Row] = []
        self._completed: dict[Row, list[TaskRow]] = {}
        self._ran: dict[Row, list[TaskRow]] = {}
        self._ended: list[Row] = []

    def start(self, task: TaskRow) -> None:
        """Add a task that was only started."""
        moment = task.started_at
        started = (task.token, task.worker, moment, moment, task.reason)
        places = self._started.get(started)
        if places is None:
            places = self._started[started] = []
        places.append(task.stored_at)
        task.stored_started = True

    def start_all(self, tasks: Sequence[TaskRow]) -> None:
        """Add tasks that were only started, together."""
        first = tasks[0]
        moment = first.started_at
        started = (first.token, first.worker, moment, moment, None)
        self._started.setdefault(started, []).extend([task.stored_at for task in tasks])
        for task in tasks:
            task.stored_started = True

    def complete_all(self, tasks: Sequence[TaskRow]) -> None:
        """Add tasks that were only completed, together."""
        self._completed.setdefault((tasks[0].finished_at, None), []).extend(tasks)
        for task in tasks:
            task.stored_live = False

    def complete(self, task: TaskRow) -> None:
        """Add a task that was only completed."""
        end = (task.finished_at, task.reason)
        tasks = self._completed.get(end)
        if tasks is None:
            tasks = self._completed[end] = []
        tasks.append(task)
        task.stored_live = False

    def run(self, task: TaskRow) -> None:
        """Add a task that was only started and completed."""
        moment = task.started_at
        self._ran.setdefault(
            (task.finished_at, task.reason, task.token, moment, moment), []
        ).append(task)
        task.stored_live = False

    def claim(self, task: TaskRow) -> None:
        """Add a task that was only prefetched."""
        claimed = (task.claim_revision, task.token, task.worker)
        self._claimed.setdefault(claimed, []).append(task)
        task.stored = live_state(task)

    def move(self, task: TaskRow) -> None:
        """Add a redriven task: it moves to the tail.

        It may have ended in this very unit of work, and then still stands among the living.
        """
        self._moved.append((task.stored_at,))
        if task.stored_live:
            self._left.append(task.stored_at)
        else:
            self._redriven.append((task.stored_at,))
        task.stored = None

    def update(self, task: TaskRow) -> None:
        """Add a task whose body, rank or expiry changed, whatever else it came to."""
        task.updated = False
        if task.stored is not None and task.stored_live:
            self._updated.append(task)

    def live(self, task: TaskRow, pool: int) -> None:
        """Add a queued or running task."""
        if task.stored is None:
            self._add(task, pool)
            return
        state = live_state(task)
        if task.stored_started or state != task.stored:
            self._changed.append((*state, task.stored_at))
            task.stored, task.stored_started = state, False

    def _add(self, task: TaskRow, pool: int) -> None:
        """Add a task without a row."""
        if waits_untouched(task):
            row = untouched_row(task, pool)
            self._queued.append(row)
            task.stored = untouched_state(task)
        else:
            row = live_row(task, pool)
            self._new.append(row)
            task.stored = row[CHANGING:]
        self._bodies.append((row[0], task.new))
        task.stored_at, task.stored_live, task.stored_started = row[0], True, False

    def end(self, task: TaskRow, pool: int) -> None:
        """Add an ended task."""
        row = ended_row(task, pool)
        if task.stored is None:
            self._bodies.append((row[0], task.new))
        else:
            self._left.append(task.stored_at)
        self._ended.append(row)
        task.stored, task.stored_at, task.stored_live = row, row[0], False

    def send(self, tables: SqlTables) -> None:
        """Write everything."""
        send = tables.send
        if self._redriven:
            send("drop_ended", self._redriven)
        if self._moved:
            send("drop_task", self._moved)
        if self._bodies:
            send("add_task", [tables.task_row(place, new) for place, new in self._bodies])
        if self._queued:
            send("add_queued", self._queued)
        if self._new:
            send("add_live", self._new)
        if self._updated:
            send("update_task", [tables.body_row(task) for task in self._updated])
            send(
                "update_live",
                [(one.rank, one.expires_at, one.grp, one.stored_at) for one in self._updated],
            )
        for started, places in self._started.items():
            _at_places(tables, "start", started, places)
        for claimed, tasks in self._claimed.items():
            self._send_claimed(tables, claimed, tasks)
        if self._changed:
            send("change_live", self._changed)
        for end, tasks in self._completed.items():
            self._send_completed(tables, "complete", end, tasks)
        for end, tasks in self._ran.items():
            self._send_completed(tables, "run", end, tasks)
        if self._left:
            _at_places(tables, "drop", (), self._left)
        if self._ended:
            send("add_ended", self._ended)

    def _send_claimed(self, tables: SqlTables, claimed: Row, tasks: list[TaskRow]) -> None:
        """Write claims; those of one lease have consecutive numbers."""
        tasks.sort(key=lambda task: task.claim or 0)
        first, last = tasks[0].claim or 0, tasks[-1].claim or 0
        if last - first == len(tasks) - 1:
            places = tables.listed([task.stored_at for task in tasks])
            tables.change("claim_live", (first, *claimed, places), len(tasks))
        else:
            self._changed += [(*live_state(task), task.stored_at) for task in tasks]

    def _send_completed(self, tables: SqlTables, how: str, end: Row, tasks: list[TaskRow]) -> None:
        """Move rows from live to ended with the common result, then write other results."""
        places = [task.stored_at for task in tasks]
        common = tasks[0].result
        _at_places(tables, how, (*end[:2], common, *end[2:]), places)
        self._left += places
        others = [(task.result, task.stored_at) for task in tasks if task.result != common]
        if others:
            tables.send("update_result", others)


def _at_places(tables: SqlTables, what: str, before: Row, places: list[int]) -> None:
    """Change the live rows at some places, with one statement.

    Each that is stepped through lets other threads in. Those of a claim mostly stand side by side.
    """
    first, last = min(places), max(places)
    if last - first == len(places) - 1:
        tables.change(f"{what}_span", (*before, first, last), len(places))
    else:
        tables.change(f"{what}_live", (*before, tables.listed(places)), len(places))


def write_tasks(tables: SqlTables) -> None:
    """Write the changes of tasks, one statement for each kind of change."""
    change = TaskChanges()
    tables.tasks.sort_out_alike(change)
    numbers: dict[str, int] = {}
    for task in tables.tasks.dirty.values():
        status = task.status
        if task.updated:
            change.update(task)
        if task.stored is not None and task.stored_at & SEQS != task.seq:
            change.move(task)
        if task.stored is None:
            pass
        elif task.stored_live:
            # These are the busiest of all changes.
            if status is _RUNNING and only_started(task):
                change.start(task)
                continue
            if status is _COMPLETED:
                if only_ended(task):
                    change.complete(task)
                    continue
                if only_ran(task):
                    change.run(task)
                    continue
            elif task.claimed and only_claimed(task):
                change.claim(task)
                continue
        else:
            # It stands among the ended, and was not redriven.
            continue
        name = task.new.pool
        number = numbers.get(name)
        if number is None:
            number = numbers[name] = tables.pools.require(name).number
        if status is _QUEUED or status is _RUNNING:
            change.live(task, number)
        else:
            change.end(task, number)
    change.send(tables)
