"""The tasks that a bound counts: a count, and queries for the oldest of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from millpond.core.spec import PoolSpec
from millpond.store.sql.codec import SEQ_BITS, TaskRow
from millpond.store.verbs.unclaimed import UnclaimedTasks, asks_which

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millpond.core.task import Task
    from millpond.store.sql.codec import Row
    from millpond.store.sql.pool import SqlPool

_FIRSTS = 64
"""How many of the oldest are read at once."""


class SqlFresh(UnclaimedTasks):
    """What a bound counts.

    Answers of the database are kept until the transaction is over, so that a large batch does not
    ask for each of its tasks.
    """

    def __init__(self, pool: SqlPool, count: int) -> None:
        super().__init__(pool.spec)
        self._pool = pool
        self._count = count
        self._of_keys: dict[str | None, int] = {}
        self._of_lanes: dict[str | None, int] = {}
        self._firsts: dict[tuple[str | None, ...], deque[int]] = {}

    __slots__ = ("_firsts", "_of_keys", "_of_lanes", "_pool")

    def of_key(self, key: str | None) -> int:
        """Return how many of one key there are."""
        count = self._of_keys.get(key)
        if count is None:
            ((count,),) = self._ask("count_listed_of_key", "count_listed_keyless", key)
            self._of_keys[key] = count
        return count

    def of_lane(self, lane: str) -> int:
        """Return how many of one lane there are."""
        count = self._of_lanes.get(lane)
        if count is None:
            tables = self._pool.tables
            tables.write_rows()
            arguments = (self._pool.number, lane)
            count = self._of_lanes[lane] = int(
                tables.ask("count_listed_of_lane", arguments).fetchone()[0]
            )
        return count

    def oldest_of_lane(self, lane: str) -> int:
        """Return the id of the first of one lane."""

        def ask() -> list[Row]:
            tables = self._pool.tables
            tables.write_rows()
            arguments = (self._pool.number, lane, _FIRSTS)
            return tables.ask("oldest_listed_of_lane", arguments).fetchall()

        return self._first(("lane", lane), ask)

    def oldest(self) -> int:
        """Return the id of the oldest."""
        return self._first((), self._ask_oldest)

    def oldest_of(self, key: str | None) -> int:
        """Return the id of the first of one key."""
        names = ("oldest_listed_of_key", "oldest_listed_keyless")
        return self._first((key,), lambda: self._ask(*names, key, _FIRSTS))

    def _first(self, which: tuple[str | None, ...], ask: Callable[[], list[Row]]) -> int:
        """Return the first that still counts; later ones come after it."""
        known, tasks = self._firsts.setdefault(which, deque()), self._pool.tables.tasks
        while True:
            while known:
                task = tasks.get(known[0])
                if task is not None and task.listed:
                    return known[0]
                known.popleft()
            known.extend(row[0] for row in ask())
            if not known:
                raise LookupError
            tasks.load(known)

    def _ask_oldest(self) -> list[Row]:
        tables = self._pool.tables
        tables.write_rows()
        arguments = (self._pool.number, _FIRSTS)
        return tables.ask("oldest_listed", arguments).fetchall()

    def _ask(self, of_key: str, keyless: str, key: str | None, *more: int) -> list[Row]:
        tables = self._pool.tables
        tables.write_rows()
        number = self._pool.number
        if key is None:
            return tables.ask(keyless, (number, *more)).fetchall()
        return tables.ask(of_key, (number, key, *more)).fetchall()

    def let_go(self) -> None:
        """Forget the answers: the transaction is over, or the bound has changed."""
        if self._of_keys or self._of_lanes or self._firsts:
            self._of_keys, self._of_lanes, self._firsts = {}, {}, {}

    def add(self, task: Task) -> None:
        """Count a new task."""
        assert isinstance(task, TaskRow)  # noqa: S101
        self._count += 1
        task.listed = self.listed
        if self.listed and task.new.key in self._of_keys:
            self._of_keys[task.new.key] += 1
        if self.listed and task.lane in self._of_lanes:
            self._of_lanes[task.lane] += 1

    def remove(self, task: Task) -> None:
        """Count one less."""
        assert isinstance(task, TaskRow)  # noqa: S101
        self._count -= 1
        if task.listed and task.new.key in self._of_keys:
            self._of_keys[task.new.key] -= 1
        if task.listed and task.lane in self._of_lanes:
            self._of_lanes[task.lane] -= 1
        task.listed = False

    def respec(self, spec: PoolSpec, queued: Iterable[Task]) -> None:
        """Apply another bound."""
        del queued
        listed = asks_which(spec)
        if listed == self.listed:
            return
        self.listed = listed
        self.let_go()
        pool = self._pool
        pool.tables.write_rows()
        for task in pool.tables.tasks.in_memory():
            if task.new.pool == pool.name:
                task.listed = listed and task.fresh and not task.status.terminal
        low, high = pool.number << SEQ_BITS, (pool.number + 1) << SEQ_BITS
        pool.tables.ask("list_fresh", (int(listed), low, high))
