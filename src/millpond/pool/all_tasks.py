"""The tasks of one Millpond, of all its pools: by id, and as they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from millpond.core import validation as check
from millpond.core.lifecycle import Status
from millpond.core.task import CALLBACKS
from millpond.core.validation import Seconds
from millpond.pool.handle import CancelMode, Handle
from millpond.pool.internals import internals_of
from millpond.pool.schedules.firing import CRON
from millpond.pool.snapshot import TaskInfo
from millpond.pool.submitted_task import SubmittedTask
from millpond.pool.wait_many import as_completed, wait_for_all
from millpond.pool.why import why

if TYPE_CHECKING:
    from millpond.core.audit import Record
    from millpond.pool.pool import Pool
    from millpond.pool.pools import Pools
    from millpond.pool.runtime_owner import RuntimeOwner
    from millpond.pool.sync_pool import SyncPool
    from millpond.pool.task import TaskFunction

T = TypeVar("T")


class AllTasks:
    """Waits for tasks, finds, explains, lists and cancels them, whatever their pool."""

    def __init__(self, owner: RuntimeOwner, pools: Pools) -> None:
        self._owner = owner
        self._pools = pools

    async def wait(
        self,
        handles: Iterable[Handle[T]],
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109
    ) -> list[Handle[T]]:
        """Wait until every task has ended, whatever its outcome; return the handles in order."""
        given = list(handles)
        limit = None if timeout is None else check.seconds("timeout", timeout)
        async with asyncio.timeout(limit):
            await wait_for_all(given)
        return given

    def as_completed(self, handles: Iterable[Handle[T]]) -> AsyncIterator[Handle[T]]:
        """Yield each handle when its task has ended, in the order in which they end."""
        return as_completed(list(handles))

    @overload
    def handle(self, task: int, /) -> Awaitable[Handle[Any]]: ...
    @overload
    def handle(self, task: int, /, *, of: TaskFunction[..., T, Any]) -> Awaitable[Handle[T]]: ...
    async def handle(
        self, task: int, /, *, of: TaskFunction[..., Any, Any] | None = None
    ) -> Handle[Any]:
        """Return a handle for a known id; `of` gives its result the type of that task."""
        return Handle(await self.find(task, of))

    async def find(self, task: int, of: TaskFunction[..., Any, Any] | None) -> SubmittedTask:
        """Return a task by its id; UnknownTask if the store does not have it."""
        runtime = self._owner.runtime
        record = await runtime.view.task(task)
        if record is None:
            raise runtime.waiting.unknown(task)
        decode: Callable[[bytes], Any] | None = None
        if of is not None:
            decode = internals_of(of).signature.decode_result
        elif record.new.owner is None:
            decode = self._pools.functions.decoder_of(record.new.call.function)
        pool = await self._pools.in_store(record.new.pool.removesuffix(CALLBACKS))
        found = SubmittedTask(internals_of(pool), record.new, decode)
        found.read(record)
        return found

    async def status(self, tasks: Iterable[int]) -> list[str]:
        """Return the status of tasks: queued, running, how they ended, expired, or unknown."""
        return list(await self._owner.runtime.view.status(tuple(tasks)))

    async def cancel(self, task: int, /, *, mode: CancelMode = "cooperative") -> bool:
        """Cancel one task of any pool; return whether that changed anything."""
        check.one_of("mode", mode, ("cooperative", "interrupt"))
        return await self._owner.runtime.control.cancel_one(task, interrupt=mode == "interrupt")

    async def why(self, task: int, /) -> str:
        """Return in words why a task is not running (or that it is, or how it ended)."""
        return await why(self._owner.runtime, task)

    async def unsettled(self) -> list[TaskInfo]:
        """Return every task that is queued or running, callbacks too."""
        view = self._owner.runtime.view
        found: dict[int, TaskInfo] = {}
        for pool in self._pools_with_work():
            for name in (pool, pool + CALLBACKS):
                # A task that starts between two reads is in neither list: so those that run are
                # read twice.
                for status in (Status.RUNNING, Status.QUEUED, Status.RUNNING):
                    after: int | None = 0
                    while after is not None:
                        page = await view.tasks(name, status=status, after=after)
                        for task in page.tasks:
                            found[task.new.id] = TaskInfo.of(task)
                        after = page.next
        return list(found.values())

    async def count_lost_by_closing(self) -> int:
        """Return how many tasks are queued or running in memory, where closing loses them."""
        runtime = self._owner.runtime
        if runtime.shared:
            return 0
        views = [await runtime.view.pool(name, measured=False) for name in self._pools_with_work()]
        return sum(view.running + view.queued for view in views if view is not None)

    def _pools_with_work(self) -> list[str]:
        # A schedule always has a firing that waits: that is not unsettled work.
        return [name for name in self._owner.runtime.declarations.specs if name != CRON]

    async def audit(self, pool: str | Pool | SyncPool | None = None) -> AsyncIterator[Record]:
        """Yield the kept audit records, oldest first, of one pool or of all."""
        name = None if pool is None else await self._pools.stored_name(pool)
        after = 0
        while True:
            page = await self._owner.runtime.view.audit(after=after)
            for record in page.records:
                if name is None or record.pool == name:
                    yield record
            if not page.records:
                return
            after = page.next
