"""Pool control: the commands of an operator for one pool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millpond.core import control
from millpond.core import validation as check
from millpond.pool.handle import CancelMode, Handle, SyncHandle
from millpond.pool.lane_or_key import unit_of
from millpond.pool.options import moment

if TYPE_CHECKING:
    from datetime import datetime

    from millpond.core.control import Command
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.store.protocol import ControlAnswer


class PoolControl:
    """Pauses, resizes, purges, cancels, redrives and closes one pool."""

    __slots__ = ("_pool",)

    def __init__(self, pool: DeclaredPool) -> None:
        self._pool = pool

    async def pause(self, *, lane: str | int | None = None, key: str | None = None) -> None:
        """Start no more tasks, of the pool or of one lane or key; running ones go on."""
        await self._order(control.Pause(self._name, self._unit(lane, key)))

    async def resume(self, *, lane: str | int | None = None, key: str | None = None) -> None:
        """Start tasks again, of the pool or of one lane or key."""
        await self._order(control.Resume(self._name, self._unit(lane, key)))

    async def resize(
        self, max_concurrent: int | None = None, *, revision: int | None = None
    ) -> int:
        """Change the limit; a lower one is reached as work ends, 0 pauses, None = as declared.

        Return the revision now in force.
        """
        return (await self._order(control.Resize(self._name, max_concurrent, revision))).revision

    async def purge(self, *, lane: str | int | None = None, key: str | None = None) -> int:
        """Cancel every task that waits, in the pool or in one lane or key; return how many."""
        return (await self._order(control.Purge(self._name, self._unit(lane, key)))).count

    async def cancel(self, task: int, /, *, mode: CancelMode = "cooperative") -> bool:
        """Cancel one task of this pool; return whether that changed anything."""
        check.one_of("mode", mode, ("cooperative", "interrupt"))
        await self._pool.ready()
        return await self._pool.runtime.control.cancel_one(
            task, interrupt=mode == "interrupt", of=self._name
        )

    async def cancel_all(
        self,
        *,
        before: float | datetime | None = None,
        lane: str | int | None = None,
        key: str | None = None,
        mode: CancelMode = "cooperative",
    ) -> int:
        """Cancel every task submitted before a moment, waiting or running; return how many."""
        check.one_of("mode", mode, ("cooperative", "interrupt"))
        unit = self._unit(lane, key)
        limit = moment("before", before)
        interrupt = mode == "interrupt"
        answer = await self._order(control.CancelAll(self._name, limit, unit, interrupt=interrupt))
        self._pool.runtime.control.cancelled_all(
            self._name, before=limit, unit=unit, interrupt=interrupt
        )
        return answer.count

    async def redrive(self, tasks: Iterable[int | Handle[Any]], /) -> int:
        """Queue failed or cancelled tasks of this pool again; return how many.

        Each has a new budget of attempts.
        """
        if isinstance(tasks, (int, str, Handle, SyncHandle)):
            raise TypeError(f"redrive() takes a list of ids or handles: [{tasks!r}]")
        chosen = tuple(one.id if isinstance(one, (Handle, SyncHandle)) else one for one in tasks)
        return (await self._order(control.Redrive(chosen, self._name))).count

    async def close(self) -> None:
        """Refuse new work from outside, for good; queued tasks still run."""
        await self._order(control.Close(self._name))

    @property
    def _name(self) -> str:
        return self._pool.spec.name

    def _unit(self, lane: str | int | None, key: str | None) -> str | None:
        return unit_of(self._pool.spec, self._pool.name, lane, key)

    async def _order(self, order: Command) -> ControlAnswer:
        await self._pool.ready()
        runtime = self._pool.runtime
        answer = await runtime.control.order(order)
        runtime.control.give_back_prefetched(self._name)
        runtime.maintenance.nudge()
        # Submitters that wait for room see a closed pool, or find room, now.
        runtime.submitter.room(self._name)
        return answer
