"""The tasks of one Millpond, of all its pools: by id, and as they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from millpond.core import validation as check
from millpond.core.lifecycle import Status
from millpond.core.task import CALLBACKS
from millpond.core.validation import Seconds
from millpond.errors import BadPayload
from millpond.pool.handle import CancelMode, Handle
from millpond.pool.internals import internals_of
from millpond.pool.named_call import NamedCall
from millpond.pool.schedules.firing import CRON
from millpond.pool.snapshot import TaskInfo
from millpond.pool.submitted_task import SubmittedTask
from millpond.pool.task import BoundCall
from millpond.pool.wait_many import as_completed, wait_for_all
from millpond.pool.why import why
from millpond.runtime.jobs.outcome import Unreadable

if TYPE_CHECKING:
    from typing import Unpack

    from millpond.core.audit import Record
    from millpond.pool.options import Options
    from millpond.pool.pool import Pool
    from millpond.pool.pools import Pools
    from millpond.pool.runtime_owner import RuntimeOwner
    from millpond.pool.sync_pool import SyncPool
    from millpond.pool.task import TaskFunction

T = TypeVar("T")


def check_names(pool: object, function: object) -> None:
    """Raise for a submit by name that is given a call or a function: name the right call."""
    if not (isinstance(pool, str) or hasattr(pool, "spec")) or not isinstance(function, str):
        raise TypeError(
            'mp.submit("pool", "function", {...}) takes names; a call or a function goes to a '
            "pool: pool.submit(...), with pool = mp.pool(name) or mp.get_pool(name)"
        )


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

    async def submit(
        self,
        pool: str | Pool | SyncPool,
        function: str = "",
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> Handle[Any]:
        """Submit a call by the names of its pool and function; their code need not be here.

        Arguments are plain data by name, as JSON can say it. Where the function is registered here,
        they are checked against its types, and its own options apply. Elsewhere the worker checks
        them, `key` and `retry` are those given, and the result comes back as plain data.
        """
        check_names(pool, function)
        target = await self._pools.in_store(pool)
        work: Any = self.named_call(function, arguments)
        limit: Any = wait  # checked by the pool
        return await target.submit(work, wait=limit, connection=connection, **options)

    def named_call(self, function: str, arguments: Mapping[str, Any] | None) -> Any:  # noqa: ANN401 - some work
        """Return a call by name: typed, where the function is registered here."""
        if arguments is None:
            arguments = {}
        call = NamedCall(function, arguments, self._owner.max_payload)
        known = self._pools.functions.by_name.get(function)
        if known is None:
            return call
        try:
            args, kwargs = internals_of(known).signature.decode(call.encode().payload)
        except Unreadable as error:
            raise BadPayload(
                f"the arguments are not those of {function}: {error}",
                task=function,
                parameter=None,
                reason=str(error),
            ) from error
        return BoundCall(known, tuple(args), kwargs)

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
