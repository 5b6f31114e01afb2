"""The same API for threads: thin classes over the loop of an open Millpond.

    with mp.sync as sync:                        # opens it on a loop and a thread of its own
        handle = reviews.sync.submit(review.bind(1984))
        report = handle.get(timeout=60)          # what `await handle` is on the loop

Where the Millpond is open on a loop already (`async with mp:`), other threads use `mp.sync` as it
is. Where no block fits, `mp.sync.open()` opens it for the rest of the process: any thread may call
it at any time, and it does nothing while the Millpond is open. While it is closed `mp.sync` raises
NotOpen; on the loop's own thread it raises RuntimeError,
since it would wait for itself. Every method has the signature of its async twin; an object that is
awaited there (a handle, a map) has `get` here.

After a fork the child has no loop: `mp.sync` raises NotOpen there until the child calls
`mp.sync.open()`, and the parent goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from millpond.core.validation import Seconds
from millpond.pool.all_tasks import AllTasks, check_names
from millpond.pool.delegation import delegated, on_loop, signature_of
from millpond.pool.events.sync import SyncEvents
from millpond.pool.handle import Handle, SyncHandle
from millpond.pool.internals import internals_of
from millpond.pool.loop_bridge import limit_of
from millpond.pool.pools import Pools
from millpond.pool.registration import RegistersTasks
from millpond.pool.schedules.declared import SyncSchedules
from millpond.pool.services import Services
from millpond.pool.waiting_tasks import WaitingTasks

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from millpond.core.audit import Record
    from millpond.pool.budget import SyncBudget
    from millpond.pool.pool import Pool
    from millpond.pool.process_life import ProcessLife
    from millpond.pool.registered import Registration
    from millpond.pool.runtime_owner import Resources
    from millpond.pool.sync_pool import SyncPool
    from millpond.pool.task import TaskFunction
    from millpond.runtime.observe.hooks import Counts
    from millpond.runtime.worker.worker import Worker

T = TypeVar("T")


class SyncMillpond(RegistersTasks):
    """A Millpond, for threads: `mp.sync`.

    As a context manager it opens the Millpond on a loop in a thread of its own, and closes it.
    """

    def __init__(self, services: Services, life: ProcessLife, twin: object) -> None:
        self._services = services
        self._life = life
        self._twin = twin
        self._tasks = services.tasks
        self._waiting = services.waiting
        self._bridge = services.owner.bridge
        self._schedules = SyncSchedules(services.owner, services.schedules)
        self._events = SyncEvents(self._bridge, services.events)

    # Opening and closing

    def open(self) -> Self:
        """Open it on an event loop in a thread of its own, unless it is open; return it.

        Nothing counts the calls: one `close()` closes it. The end of the process closes it, too.
        """
        self._life.open_in_thread()
        return self

    def close(self) -> None:
        """Close it, whatever opened it; nothing happens if it is closed."""
        self._life.close_in_thread()

    def __enter__(self) -> Self:
        self._life.enter_in_thread()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._life.leave_in_thread(kind, error, trace)

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._services.owner.is_open

    def __repr__(self) -> str:
        return f"<sync {self._twin!r}>"

    def _register(self, fn: Callable[..., Any] | None, given: Registration) -> Any:  # noqa: ANN401
        return self._services.pools.functions.register(None, fn, given)

    @property
    def counts(self) -> Counts:
        """Counters of this process since it was opened: failed hooks, lost leases and so on."""
        return self._services.owner.counts

    def worker(
        self,
        pools: Iterable[str | Pool | SyncPool] | None = None,
        concurrency: int | None = None,
        resources: Resources | None = None,
        *,
        grace: Seconds = 0.0,
    ) -> AbstractContextManager[Worker]:
        """Run tasks on the loop, of all pools or of some, at most `concurrency` at a time.

        `resources` is a function that returns an async context manager: the worker enters it once,
        has its value as `ctx.resources`, and leaves it when it has stopped.
        """
        return self._bridge.hold(
            lambda: self._services.worker(pools, concurrency, resources, grace=grace)
        )

    # Pools

    @signature_of(Pools.pool)
    def pool(self, *given: Any, **named: Any) -> SyncPool:  # noqa: ANN401 - as there
        """Declare a pool; the store gets to know it when the Millpond is open.

        max_concurrent is 1 by default, or the number of lanes in a pool with lanes. With
        `adaptive(1, 50)` latency and failures move it, for the whole fleet.
        """
        return self._services.pools.pool(*given, **named).sync

    @signature_of(Pools.budget)
    def budget(self, *given: Any, **named: Any) -> SyncBudget:  # noqa: ANN401 - as there
        """Declare a budget that pools share: how many of their tasks run, and start how fast.

        `mp.pool(..., budgets=[openai])` shares it. It is one over the whole fleet.
        """
        return self._services.pools.budget(*given, **named).sync

    # Schedules and events

    cron = delegated(SyncSchedules.cron, "_schedules")
    schedules = delegated(SyncSchedules.schedules, "_schedules")

    trigger = delegated(SyncEvents.trigger, "_events")
    get_trigger = delegated(SyncEvents.get_trigger, "_events")
    triggers = delegated(SyncEvents.triggers, "_events")
    emit = delegated(SyncEvents.emit, "_events")
    replay = delegated(SyncEvents.replay, "_events")
    events = delegated(SyncEvents.events, "_events")

    # Declared

    def get_pool(self, name: str) -> SyncPool:
        """Return the pool of a name (or id); UnknownPool if there is none."""
        return self._services.pools.get_pool(name).sync

    def pools(self) -> list[SyncPool]:
        """Return every pool, in the order they were made."""
        return [pool.sync for pool in self._services.pools.pools()]

    @property
    def tasks(self) -> Mapping[str, TaskFunction[..., Any, Any]]:
        """Every registered task by its name and aliases."""
        return MappingProxyType(self._services.pools.functions.by_name)

    # Many tasks

    @signature_of(AllTasks.submit)
    def submit(
        self,
        pool: str | Pool | SyncPool,
        function: str = "",
        arguments: Mapping[str, Any] | None = None,
        /,
        **options: Any,  # noqa: ANN401 - as there
    ) -> SyncHandle[Any]:
        """Submit a call by the names of its pool and function; their code need not be here.

        Arguments are plain data by name, as JSON can say it. Where the function is registered here,
        they are checked against its types, and its own options apply. Elsewhere the worker checks
        them, `key` and `retry` are those given, and the result comes back as plain data.
        """
        check_names(pool, function)
        target = self._bridge.call(self._services.pools.in_store, pool).sync
        return target.submit(self._services.tasks.named_call(function, arguments), **options)

    def wait(
        self,
        handles: Iterable[SyncHandle[T]],
        *,
        timeout: Seconds | None = None,
    ) -> list[SyncHandle[T]]:
        """Wait until every task has ended, whatever its outcome; return the handles in order."""
        given = list(handles)
        waited: list[Handle[T]] = [Handle(internals_of(one)) for one in given]
        self._bridge.within(limit_of(timeout), self._tasks.wait, waited)
        return given

    def as_completed(self, handles: Iterable[SyncHandle[T]]) -> Iterator[SyncHandle[T]]:
        """Yield each handle when its task has ended, in the order in which they end."""
        given = list(handles)
        ours = {id(internals_of(one)): one for one in given}

        def make() -> AsyncIterator[Handle[T]]:
            waited: list[Handle[T]] = [Handle(internals_of(one)) for one in given]
            return self._tasks.as_completed(waited)

        return (ours[id(internals_of(one))] for one in self._bridge.iterate(make))

    @overload
    def handle(self, task: int, /) -> SyncHandle[Any]: ...
    @overload
    def handle(self, task: int, /, *, of: TaskFunction[..., T, Any]) -> SyncHandle[T]: ...
    def handle(
        self, task: int, /, *, of: TaskFunction[..., Any, Any] | None = None
    ) -> SyncHandle[Any]:
        """Return a handle for a known id; `of` gives its result the type of that task."""
        return SyncHandle(self._bridge, self._bridge.call(self._tasks.find, task, of))

    def status(self, tasks: Iterable[int]) -> list[str]:
        """Return the status of tasks: queued, running, how they ended, expired, or unknown."""
        return self._bridge.call(self._tasks.status, list(tasks))

    cancel = on_loop(AllTasks.cancel, "_tasks", writes=True)
    update = on_loop(WaitingTasks.update, "_waiting", writes=True)
    reschedule = on_loop(WaitingTasks.reschedule, "_waiting", writes=True)
    run_now = on_loop(WaitingTasks.run_now, "_waiting", writes=True)
    why = on_loop(AllTasks.why, "_tasks")
    unsettled = on_loop(AllTasks.unsettled, "_tasks")

    def audit(self, pool: str | Pool | SyncPool | None = None) -> Iterator[Record]:
        """Yield the kept audit records, oldest first, of one pool or of all."""
        return self._bridge.iterate(lambda: self._tasks.audit(pool))

    observe = delegated(Services.observe, "_services")
    add_middleware = delegated(Services.add_middleware, "_services")
    end_scope = on_loop(Services.end_scope, "_services", writes=True)
