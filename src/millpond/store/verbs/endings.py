"""Endings: which tasks ended in a verb, and which lanes and pools it drained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status
from millpond.store.protocol import Drained, LostAttempt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.task import Task
    from millpond.store.verbs.tables import PoolTable

_COMPLETED, _FAILED = Status.COMPLETED, Status.FAILED
PROCESSED = (_COMPLETED, _FAILED)
"""The ends of tasks that ran; other tasks were removed from the queue."""


class Endings:
    """What one verb ended. A lane or pool is drained if the verb removed its last live task."""

    __slots__ = ("_came", "_ended", "_lost", "_ran_dry")

    def __init__(self) -> None:
        self._ended: list[int] = []
        self._lost: list[LostAttempt] = []
        self._came: set[tuple[str, str | None]] | None = None
        """Lanes and pools that were empty when this verb added a task."""
        self._ran_dry: dict[tuple[str, str | None], PoolTable] | None = None
        """Lanes and pools that were empty after this verb ended a task."""

    def __bool__(self) -> bool:
        """Whether this verb ended a task; without that nothing is drained."""
        return bool(self._ended)

    def begin(self) -> None:
        """Begin a verb: nothing has ended yet."""
        if self._ended:
            self._ended = []
        if self._lost:
            self._lost = []
        self._came = self._ran_dry = None

    def lose(self, task: Task) -> None:
        """Note an attempt that was lost with its worker and is followed by another."""
        new = task.new
        self._lost.append(
            LostAttempt(
                task=new.id, pool=new.pool, function=new.call.function, attempt=task.attempt
            )
        )

    def lost(self) -> tuple[LostAttempt, ...]:
        """Return the attempts that this verb lost and that are followed by another."""
        return tuple(self._lost)

    def coming(self, pool: PoolTable, lane: str | None) -> None:
        """Note, before a task is added, whether its lane (or its pool without lanes) is empty."""
        if lane is None:
            dry = not pool.live and not pool.backlog.lanes
        else:
            dry = not pool.backlog.live_in(lane)
        if (
            dry
            and not pool.internal
            and not (self._ran_dry is not None and (pool.name, lane) in self._ran_dry)
        ):
            self._came = self._came or set()
            self._came.add((pool.name, lane))

    def over(self, pool: PoolTable, task: Task) -> None:
        """Note a task that has ended; it no longer counts as live."""
        self._ended.append(task.new.id)
        lane = task.lane
        if lane is not None:
            if task.status in PROCESSED:
                pool.lanes.count_processed(lane)
            if not pool.backlog.live_in(lane):
                self._dried(pool, lane)
        elif not pool.live and not pool.backlog.lanes and not pool.internal:
            self._dried(pool, None)

    def all_over(self, pool: PoolTable, tasks: Sequence[Task]) -> None:
        """Note that several tasks without a lane have ended."""
        self._ended += [task.new.id for task in tasks]
        if not pool.live and not pool.internal:
            self._dried(pool, None)

    def _dried(self, pool: PoolTable, lane: str | None) -> None:
        if self._came is None or (pool.name, lane) not in self._came:
            self._ran_dry = self._ran_dry or {}
            self._ran_dry[pool.name, lane] = pool

    def ended(self) -> tuple[int, ...]:
        """Return the tasks that ended."""
        return tuple(self._ended) if self._ended else ()

    def emptied(self) -> tuple[Drained, ...]:
        """Return the drained lanes and pools, by pool and lane."""
        if self._ran_dry is None:
            return ()
        dried = [
            Drained(pool=name, lane=lane, processed=processed(pool, lane))
            for (name, lane), pool in self._ran_dry.items()
            if not (pool.live if lane is None else pool.backlog.live_in(lane))
        ]
        return tuple(sorted(dried, key=_by_place)) if len(dried) > 1 else tuple(dried)


def processed(pool: PoolTable, lane: str | None) -> int:
    """Return how many tasks of a lane, or of a whole pool, were ever completed or failed."""
    if lane is not None:
        return pool.lanes.processed(lane)
    totals = pool.totals
    return totals.get(_COMPLETED, 0) + totals.get(_FAILED, 0)


def _by_place(emptied: Drained) -> tuple[str, str]:
    return emptied.pool, emptied.lane or ""
