"""The Millpond: one store, its pools and its tasks. Declared at import, opened where work is."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.control import CancelAll, Close
from millpond.core.lifecycle import Status
from millpond.core.task import CALLBACKS
from millpond.core.validation import Seconds
from millpond.errors import (
    AlreadyOpen,
    ConfigError,
    NotOpen,
    NotSupported,
    UnknownPool,
)
from millpond.pool.context import Context, SyncContext
from millpond.pool.delegation import of_part
from millpond.pool.events.emit import Channels
from millpond.pool.functions import Functions
from millpond.pool.handle import CancelMode, Handle
from millpond.pool.outcome import Outcome
from millpond.pool.payload.signature import LARGEST
from millpond.pool.pool import Pool
from millpond.pool.pools import Pools
from millpond.pool.schedules.declared import Schedules
from millpond.pool.schedules.firing import CRON
from millpond.pool.schedules.firing import handlers as cron_handlers
from millpond.pool.scope import NAMED, check_scope_id, prefix_of
from millpond.pool.snapshot import TaskInfo
from millpond.pool.store_url import place_of, shown
from millpond.pool.task import (
    Executor,
    KeyOf,
    Running,
    TaskDecorator,
    TaskFunction,
    default_options,
)
from millpond.pool.why import why
from millpond.runtime.environment import evidence_of, lasting_clock, wall_clock
from millpond.runtime.executors.processes.child import refuse_while_main_loads
from millpond.runtime.identity import Identity
from millpond.runtime.observe.hooks import Counts, Hooks
from millpond.runtime.retention import Keep
from millpond.runtime.runtime import Runtime
from millpond.store.clock import ForwardClock, ServerClock
from millpond.store.memory import MemoryStore

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from millpond.core.audit import Record
    from millpond.pool.sync.api import SyncMillpond
    from millpond.runtime.jobs.policy import Policy
    from millpond.runtime.observe.hooks import Observed
    from millpond.runtime.worker.worker import Worker
    from millpond.store.postgres.url import Address
    from millpond.store.protocol import Store

log = logging.getLogger("millpond")

P = ParamSpec("P")
T = TypeVar("T")

Durability = Literal["full", "normal"]
"""What a power failure may cost: `full` nothing, `normal` the last moments before it."""

Resources = Callable[[], contextlib.AbstractAsyncContextManager[Any]]


class Millpond:
    """Pools and tasks over one store. Making it does no I/O; `async with mp:` opens the store.

    `None` keeps everything in this process, for as long as it is open; `sqlite:///work.db` in a
    file that outlives it and that other processes of this machine use as well;
    `postgresql://user:password@host/database` on a server, for processes of many machines.
    """

    def __init__(
        self,
        url: str | None = None,
        imports: Sequence[str] = (),
        work: bool | None = None,
        *,
        keep: Keep | None = None,
        lease: Seconds = 30.0,
        resources: Resources | None = None,
        max_payload: int = LARGEST,
        durability: Durability = "full",
        migrate: bool = True,
    ) -> None:
        self._place = place_of(url)
        self._url = url
        if isinstance(imports, str):
            raise ConfigError("imports", imports, "must be a list of modules")
        self.imports = tuple(check.text("imports", module) for module in imports)
        self.work = work
        """Whether opening it also runs tasks here; None = as its store suggests."""
        self.keep = keep or Keep()
        self.lease = check.seconds("lease", lease, above=0.0)
        self.max_payload = check.integer(
            "max_payload", max_payload, least=1, most=bounds.MOST_PAYLOAD
        )
        check.one_of("durability", durability, ("full", "normal"))
        self.durability: Durability = durability
        self.migrate = migrate
        self._resources = resources
        self._retries: dict[str, Policy] = {}
        self._hooks = Hooks()
        self._counts = Counts()
        self._runtime: Runtime | None = None
        self._opening = False
        self._stack: contextlib.AsyncExitStack | None = None
        self._sync: SyncMillpond | None = None
        self._pools = Pools(self, self._retries, self._hooks)
        self._functions = Functions(self)
        self._schedules = Schedules(self)
        self._channels = Channels(self, self._retries, self._hooks)
        self._functions.handlers.update(cron_handlers(self._channels.as_task))
        self._functions.handlers.update(self._channels.handlers())
        self.make_store: Callable[[], Store] | None = None
        """How to make the store, for tests that bring their own; None = as the URL says."""
        self.shared: bool | None = None
        """Whether others use that store too; None = they do if it was brought."""
        self.seed: int | None = None
        """The seed of ids, tokens and jitter, for tests that must repeat."""

    # Its life

    async def __aenter__(self) -> Self:
        if self._runtime is not None or self._opening:
            raise AlreadyOpen("this Millpond is open already; use it, or make another one")
        refuse_while_main_loads("opens a Millpond")
        for module in self.imports:
            importlib.import_module(module)
        for pool in self.pools():
            pool.check_scope()
        self._opening = True
        try:
            runtime = self._runtime = await self._opened()
        finally:
            self._opening = False
        self._counts = runtime.counts
        try:
            async with contextlib.AsyncExitStack() as stack:
                runtime.declarations.budgets = self._pools.budgets
                for name in self._pools.budgets:
                    await runtime.declarations.declare_budget(name)
                pools = [*self.pools(), *self._channels.pools()]
                await runtime.declarations.declare_all([pool.spec for pool in pools])
                runtime.start()
                await self._schedules.arm()
                if self._works:
                    await stack.enter_async_context(self.worker())
                self._stack = stack.pop_all()
        except BaseException:
            await self._shut(0.0)
            raise
        return self

    async def _opened(self) -> Runtime:
        """Open the store and make the runtime over it."""
        identity = Identity(self.seed)
        loop = asyncio.get_running_loop()
        clock = wall_clock(loop)
        store: Store
        if self.make_store is not None:
            store = self.make_store()
            shared = getattr(store, "shared", True) if self.shared is None else self.shared
        elif self._place is None:
            store, shared = MemoryStore(clock=clock), False
        elif isinstance(self._place, Path):
            clock = ForwardClock(clock, lasting_clock(loop), evidence=evidence_of(loop))
            store, shared = await self._opened_file(self._place, identity.owner, clock), True
        else:
            clock = ServerClock(lasting_clock(loop))
            store, shared = await self._opened_server(self._place, identity.owner, clock), True
        return Runtime(
            store,
            functions=MappingProxyType(self._functions.handlers),
            retries=MappingProxyType(self._retries),
            hooks=self._hooks,
            shared=shared,
            identity=identity,
            clock=clock,
            lease=self.lease,
        )

    async def _opened_file(self, file: Path, owner: str, clock: Callable[[], float]) -> Store:
        from millpond.store.sqlite import SqliteStore  # noqa: PLC0415 - memory needs nothing of it

        return await SqliteStore.open(
            file, owner=owner, durability=self.durability, migrate=self.migrate, clock=clock
        )

    async def _opened_server(
        self, address: Address, owner: str, clock: Callable[[], float]
    ) -> Store:
        from millpond.store.postgres.store import PostgresStore  # noqa: PLC0415 - nor of this one

        return await PostgresStore.open(
            address, owner=owner, durability=self.durability, migrate=self.migrate, clock=clock
        )

    @property
    def url(self) -> str | None:
        """Where its pools are kept; None = in memory. It may be changed while it is closed."""
        return self._url

    @url.setter
    def url(self, url: str | None) -> None:
        if self.is_open or self._opening:
            raise AlreadyOpen("this Millpond is open; where its pools are kept cannot change now")
        self._place = place_of(url)
        self._url = url

    @property
    def durable(self) -> bool:
        """Whether what is stored outlives this process."""
        return self.url is not None

    @property
    def _works(self) -> bool:
        """Whether opening it makes it a worker: as told, else where nobody else could be one."""
        return not self.durable if self.work is None else self.work

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        left = 0
        try:
            if kind is None:
                # A store that cannot be asked must not keep anybody from closing.
                with contextlib.suppress(Exception):
                    left = await self._left_behind()
        finally:
            await self._shut(0.0)
        if left:
            log.warning(
                "closed with %d task(s) queued or running: in memory they are gone; "
                "`await pool.drain()` before the end of the block lets them end",
                left,
            )

    async def _left_behind(self) -> int:
        """Return how many tasks will be lost by closing: none where a store keeps them."""
        runtime = self._runtime
        if runtime is None or runtime.shared:
            return 0
        # A schedule waits for its next firing for ever: that is nothing to be lost.
        names = [name for name in runtime.declarations.specs if name != CRON]
        views = [await runtime.view.pool(name, measured=False) for name in names]
        return sum(view.running + view.queued for view in views if view is not None)

    async def _shut(self, grace: float) -> None:
        runtime, stack = self._runtime, self._stack
        self._stack = None
        if runtime is None:
            return
        try:
            if stack is not None:
                await stack.aclose()
        finally:
            try:
                await runtime.close(grace)
            finally:
                if self._runtime is runtime:
                    self._runtime = None

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._runtime is not None

    @property
    def runtime(self) -> Runtime:
        """The runtime while it is open; NotOpen otherwise."""
        if self._runtime is None:
            raise NotOpen("this Millpond is not open; put `async with mp:` around the work")
        return self._runtime

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        place = f"on {shown(self.url)}" if self.durable else "in memory"
        return f"<millpond {place}, {state}: {', '.join(self._pools.by_name) or 'no pools'}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - it never returns
            """Name the right call for what a pool does and a Millpond does not."""
            if name in ("submit", "submit_many", "try_submit", "map", "stream"):
                raise AttributeError(
                    f"a Millpond has no {name}(), its pools have: pool.{name}(...), with "
                    "pool = mp.pool(name) or mp.get_pool(name)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    async def ready(self, pool: Pool) -> None:
        """See to it that the store knows a pool made after it was opened."""
        runtime = self.runtime
        if pool.spec.name not in runtime.declarations.specs and not pool.foreign:
            await runtime.declarations.declare(pool.spec)

    async def pool_in_store(self, pool: str | Pool) -> Pool:
        """Return a pool of this process, or as another has declared it; else UnknownPool."""
        try:
            return self.get_pool(pool) if isinstance(pool, str) else pool
        except UnknownPool:
            assert isinstance(pool, str)  # noqa: S101 - what is a pool is not unknown
            found = await self.runtime.view.pool(pool, measured=False)
            if found is None:
                raise
            return self._channels.own_pool(found.declared, None, foreign=True)

    @contextlib.asynccontextmanager
    async def worker(
        self,
        pools: Iterable[str | Pool] | None = None,
        concurrency: int | None = None,
        resources: Resources | None = None,
        *,
        grace: Seconds = 0.0,
    ) -> AsyncIterator[Worker]:
        """Run tasks here, of all pools or of some, at most `concurrency` at a time.

        `resources` is a function that gives an async context manager: what that yields is made
        once, is there as `ctx.resources`, and is closed when the worker has stopped.
        """
        runtime = self.runtime
        patience = check.seconds("grace", grace)
        if concurrency is not None:
            check.integer("concurrency", concurrency, least=1)
        names = None
        if pools is not None:
            given = [pools] if isinstance(pools, str) else pools
            names = frozenset(
                (self.get_pool(p) if isinstance(p, str) else p).spec.name for p in given
            )
        make = resources or self._resources
        async with contextlib.AsyncExitStack() as stack:
            made = await stack.enter_async_context(make()) if make is not None else None
            worker = await runtime.local_workers.start(
                pools=names, concurrency=concurrency, resources=made
            )
            try:
                yield worker
            finally:
                await runtime.local_workers.stop(worker, patience)

    # What is declared

    pool = of_part(Pools.pool, "_pools")
    get_pool = of_part(Pools.get_pool, "_pools")
    pools = of_part(Pools.pools, "_pools")
    budget = of_part(Pools.budget, "_pools")

    trigger = of_part(Channels.trigger, "_channels")
    get_trigger = of_part(Channels.get_trigger, "_channels")
    triggers = of_part(Channels.triggers, "_channels")
    emit = of_part(Channels.emit, "_channels")
    emit_as = of_part(Channels.emit_as, "_channels")
    emit_within = of_part(Channels.emit_within, "_channels")
    replay = of_part(Channels.replay, "_channels")
    events = of_part(Channels.events, "_channels")

    cron = of_part(Schedules.cron, "_schedules")
    schedules = of_part(Schedules.schedules, "_schedules")

    register = of_part(Functions.register, "_functions")

    # Tasks

    @overload
    def task(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Context, Outcome, P], Coroutine[Any, Any, T]], /
    ) -> TaskFunction[P, T, Callable[Concatenate[Context, Outcome, P], Running[T]]]: ...
    @overload
    def task(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Outcome, P], Coroutine[Any, Any, T]], /
    ) -> TaskFunction[P, T, Callable[Concatenate[Outcome, P], Running[T]]]: ...
    @overload
    def task(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> TaskFunction[P, T, Callable[Concatenate[Context, P], Running[T]]]: ...
    @overload
    def task(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /
    ) -> TaskFunction[P, T, Callable[P, Running[T]]]: ...
    @overload
    def task(
        self, fn: Callable[Concatenate[SyncContext, Outcome, P], T], /
    ) -> TaskFunction[P, T, Callable[Concatenate[SyncContext, Outcome, P], T]]: ...
    @overload
    def task(
        self, fn: Callable[Concatenate[Outcome, P], T], /
    ) -> TaskFunction[P, T, Callable[Concatenate[Outcome, P], T]]: ...
    @overload
    def task(
        self, fn: Callable[Concatenate[SyncContext, P], T], /
    ) -> TaskFunction[P, T, Callable[Concatenate[SyncContext, P], T]]: ...
    @overload
    def task(self, fn: Callable[P, T], /) -> TaskFunction[P, T, Callable[P, T]]: ...
    @overload
    def task(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        key: KeyOf | None = None,
        aliases: Iterable[str] = (),
        timeout: Seconds | None = None,
        retry: Policy | None = None,
        priority: int | None = None,
        executor: Executor | None = None,
    ) -> TaskDecorator: ...
    def task(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        key: KeyOf | None = None,
        aliases: Iterable[str] = (),
        timeout: Seconds | None = None,
        retry: Policy | None = None,
        priority: int | None = None,
        executor: Executor | None = None,
    ) -> Any:
        """Register a function; any pool takes its calls."""
        return self.register(
            None,
            fn,
            name=name,
            key=key,
            aliases=aliases,
            executor=executor,
            defaults=default_options(timeout, retry, priority),
        )

    @property
    def tasks(self) -> Mapping[str, TaskFunction[..., Any, Any]]:
        """Every registered task by its name and aliases."""
        return MappingProxyType(self._functions.by_name)

    # Many tasks

    async def wait(
        self,
        handles: Iterable[Handle[T]],
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109
    ) -> list[Handle[T]]:
        """Wait until every task has ended, whatever way; return the handles in their order."""
        given = list(handles)
        limit = None if timeout is None else check.seconds("timeout", timeout)
        async with asyncio.timeout(limit):
            for handle in given:
                await handle.wait()
        return given

    async def as_completed(self, handles: Iterable[Handle[T]]) -> AsyncIterator[Handle[T]]:
        """Yield each handle when its task has ended, in the order in which they end."""
        ended: asyncio.Queue[asyncio.Task[Handle[T]]] = asyncio.Queue()
        watchers = [asyncio.create_task(handle.wait()) for handle in handles]
        for watcher in watchers:
            watcher.add_done_callback(ended.put_nowait)
        try:
            for _ in watchers:
                yield (await ended.get()).result()
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    @overload
    def handle(self, task: int, /) -> Awaitable[Handle[Any]]: ...
    @overload
    def handle(self, task: int, /, *, of: TaskFunction[..., T, Any]) -> Awaitable[Handle[T]]: ...
    async def handle(
        self, task: int, /, *, of: TaskFunction[..., Any, Any] | None = None
    ) -> Handle[Any]:
        """Return a handle for a known id; `of` gives its result the type of that task."""
        runtime = self.runtime
        record = await runtime.view.task(task)
        if record is None:
            raise runtime.waiting.unknown(task)
        function = of
        if function is None and record.new.owner is None:
            function = self._functions.by_name.get(record.new.call.function)
        decode = None if function is None else function.signature.decode_result
        pool = await self.pool_in_store(record.new.pool.removesuffix(CALLBACKS))
        found: Handle[Any] = Handle(pool, record.new, decode)
        found.read(record)
        return found

    async def status(self, tasks: Iterable[int]) -> list[str]:
        """Return where tasks are: queued, running, how they ended, expired, or unknown."""
        return list(await self.runtime.view.status(tuple(tasks)))

    async def cancel(self, task: int, /, *, mode: CancelMode = "cooperative") -> bool:
        """Cancel one task of any pool; return whether that changed anything."""
        check.one_of("mode", mode, ("cooperative", "interrupt"))
        return await self.runtime.control.cancel_one(task, interrupt=mode == "interrupt")

    async def why(self, task: int, /) -> str:
        """Return in words why a task is not running (or that it is, or how it ended)."""
        return await why(self.runtime, task)

    async def unsettled(self) -> list[TaskInfo]:
        """Return every task that is queued or running, callbacks too."""
        found: dict[int, TaskInfo] = {}
        for pool in [name for name in self.runtime.declarations.specs if name != CRON]:
            for name in (pool, pool + CALLBACKS):
                # What starts while the queue is read is in neither list: so who runs is read twice.
                for status in (Status.RUNNING, Status.QUEUED, Status.RUNNING):
                    after: int | None = 0
                    while after is not None:
                        page = await self.runtime.view.tasks(name, status=status, after=after)
                        for task in page.tasks:
                            found[task.new.id] = TaskInfo.of(task)
                        after = page.next
        return list(found.values())

    async def audit(self, pool: str | Pool | None = None) -> AsyncIterator[Record]:
        """Yield the audit records that are kept, oldest first, of one pool or of all."""
        name = await self._stored_name(pool) if isinstance(pool, str) else pool and pool.spec.name
        after = 0
        while True:
            page = await self.runtime.view.audit(after=after)
            for record in page.records:
                if name is None or record.pool == name:
                    yield record
            if not page.records:
                return
            after = page.next

    async def _stored_name(self, pool: str) -> str:
        """Return what the store calls a pool, of ours or of another process."""
        try:
            return self.get_pool(pool).spec.name
        except UnknownPool:
            if pool in await self.runtime.view.names(pool):
                return pool
            raise

    def observe(self, observer: Callable[[Observed], object]) -> Callable[[], None]:
        """Be told of what happens in this process; return a function that ends it.

        Observers are called synchronously, after the fact; one that raises is counted.
        """
        self._hooks.observers.append(observer)

        def stop() -> None:
            with contextlib.suppress(ValueError):
                self._hooks.observers.remove(observer)

        return stop

    @property
    def hooks(self) -> Hooks:
        """Who is told what happens in this process."""
        return self._hooks

    async def end_scope(self, scope: str, scope_id: str) -> None:
        """End a scope: its pools take nothing more, for good, and what waits or runs is cancelled.

        All pools of it that the store knows, whichever process declared them. Needs a durable one.
        """
        if not self.durable:
            message = "scopes need a durable store; memory has none to end"
            raise NotSupported(message, feature="scope")
        check.one_of("scope", scope, NAMED)
        check_scope_id(scope, scope_id)
        begins = prefix_of(scope, scope_id)
        runtime = self.runtime
        for name in await runtime.view.names(begins):
            await runtime.control.order(Close(name))
            await runtime.control.order(CancelAll(name))
            runtime.control.cancelled_all(name, before=None, unit=None, interrupt=False)
            runtime.control.give_back_prefetched(name)
            runtime.submitter.room(name)

    @property
    def counts(self) -> Counts:
        """What this process has seen since it was opened: failing hooks, lost leases and so on.

        After closing, what it saw until then.
        """
        return self._counts

    @property
    def sync(self) -> SyncMillpond:
        """The same API for threads."""
        if self._sync is None:
            from millpond.pool.sync.api import SyncMillpond  # noqa: PLC0415

            self._sync = SyncMillpond(self)
        return self._sync
