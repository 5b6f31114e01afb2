"""Retention: ended tasks, keys and runs are forgotten when they are old enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.task import Call, key_of
from millpond.store.verbs.tables.attempts import AttemptTables

if TYPE_CHECKING:
    from collections import deque

    from millpond.core.task import Task
    from millpond.store.verbs.tables.pools import PoolTable

REMOVED_KEPT = 100_000
"""How many ids of removed tasks are kept, so that their status is "expired" and not "unknown"."""


class Tables(AttemptTables):
    """Everything that a store keeps; here: ended tasks, and when they are forgotten."""

    def prune(self, pool: PoolTable, before: float, limit: int, *, completed: bool) -> int:
        """Remove tasks that ended before a moment, oldest first; return how many."""
        ended = pool.succeeded if completed else pool.unsuccessful
        old = [] if ended is None or limit <= 0 else self._old(pool, ended, before, limit)
        if ended is not None:
            ended.extendleft(reversed(old[limit:]))
        for task in old[:limit]:
            self.forget(task)
            known = pool.keys.get(key_of(task.new)) if task.new.idempotency_key else None
            if known is not None and known.task == task.new.id:
                pool.old_keys[key_of(task.new)] = task.finished_at or 0.0
        return len(old[:limit])

    def _old(self, pool: PoolTable, ended: deque[Task], before: float, limit: int) -> list[Task]:
        """Remove and return tasks that ended before a moment, by moment and place.

        At least `limit` of them, and all that ended at the same moment as the last: who of these
        goes first is then the same on every store.
        """
        old: list[Task] = []
        while ended:
            task, finished_at = ended[0], ended[0].finished_at or 0.0
            if self.tasks.get(task.new.id) is task:
                enough = len(old) >= limit and finished_at > (old[-1].finished_at or 0.0)
                if finished_at >= before or enough:
                    break
                old.append(task)
            else:
                pool.redriven -= 1
            ended.popleft()
        return sorted(old, key=lambda task: (task.finished_at or 0.0, task.seq))

    def prune_keys(self, pool: PoolTable, before: float) -> None:
        """Remove keys of removed tasks, and finished runs, that are old enough."""
        for key in [key for key, ended_at in pool.old_keys.items() if ended_at < before]:
            del pool.old_keys[key]
            known = pool.keys.get(key)
            if known is not None and self.tasks.get(known.task) is None:
                pool.keys.remove(key)
        self.runs.prune(pool.name, before)

    def prune_audit(self, before: float) -> None:
        """Do nothing: in memory the number of records is the bound."""

    def was_removed(self, identifier: int) -> bool:
        """Return whether retention removed a task, as far as that is remembered."""
        return identifier in self._removed

    def forget(self, task: Task) -> None:
        """Remove an ended task; its audit notes keep only what records need."""
        new = task.new
        self.tasks.remove(new.id)
        self._removed[new.id] = None
        if len(self._removed) > 2 * REMOVED_KEPT:
            self._removed = dict.fromkeys(list(self._removed)[-REMOVED_KEPT:])
        task.result = task.error = task.steps = None
        if new.call.payload or new.options or new.labels:
            task.new = msgspec.structs.replace(
                new, call=Call(new.call.function), options=b"", labels={}
            )
