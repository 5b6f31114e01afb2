"""Endings: which tasks ended in a verb, and which lanes and pools ran dry by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status
from millpond.core.task import CALLBACKS
from millpond.store.protocol import Emptied

if TYPE_CHECKING:
    from millpond.core.task import Task
    from millpond.store.memory.tables import PoolTable

PROCESSED = (Status.COMPLETED, Status.FAILED)
"""The ends of a task that was worked on; the others were taken out of the queue."""


class Endings:
    """What one verb ended. A lane or pool runs dry if it was not at the start and is at the end."""

    __slots__ = ("_was_dry", "ended")

    def __init__(self) -> None:
        self.ended: list[int] = []
        self._was_dry: dict[tuple[str, str | None], tuple[PoolTable, bool]] = {}

    def filled(self, pool: PoolTable, unit: str | None) -> None:
        """Note that a unit without live tasks is about to get one."""
        if not pool.spec.strict and pool.live:
            return
        self._note(pool, unit, was_dry=True)

    def over(self, pool: PoolTable, task: Task) -> None:
        """Note that a task has ended; it is no longer among the live ones."""
        self.ended.append(task.new.id)
        if pool.spec.strict and task.lane is not None and task.status in PROCESSED:
            pool.lane_processed[task.lane] = pool.lane_processed.get(task.lane, 0) + 1
        if task.unit not in pool.live and (pool.spec.strict or not pool.live):
            self._note(pool, task.unit, was_dry=False)

    def _note(self, pool: PoolTable, unit: str | None, *, was_dry: bool) -> None:
        lane = unit if pool.spec.strict else None
        self._was_dry.setdefault((pool.spec.name, lane), (pool, was_dry))

    def emptied(self) -> tuple[Emptied, ...]:
        """Return what ran dry, by pool and lane."""
        if not self._was_dry:
            return ()
        dried = [
            Emptied(pool=name, lane=lane, processed=processed(pool, lane))
            for (name, lane), (pool, was_dry) in self._was_dry.items()
            if not was_dry and _is_dry(pool, lane) and not name.endswith(CALLBACKS)
        ]
        return tuple(sorted(dried, key=_by_place))


def processed(pool: PoolTable, lane: str | None) -> int:
    """Return how many tasks of a lane, or of a whole pool, were ever completed or failed."""
    if lane is not None:
        return pool.lane_processed.get(lane, 0)
    return sum(pool.totals.get(status, 0) for status in PROCESSED)


def _is_dry(pool: PoolTable, lane: str | None) -> bool:
    # What has no key in an ordered pool is in no lane, so its end empties none.
    return lane is not None and lane not in pool.live if pool.spec.strict else not pool.live


def _by_place(emptied: Emptied) -> tuple[str, str]:
    return emptied.pool, emptied.lane or ""
