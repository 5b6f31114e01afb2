"""The Millpond: one store, its pools and its tasks. Declared at import, opened where work is."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
import time
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

import msgspec

from millpond.core import check
from millpond.core.adaptive import Adaptive
from millpond.core.check import Seconds
from millpond.core.control import CancelAll, Close
from millpond.core.errors import (
    AlreadyOpen,
    ConfigError,
    DuplicateName,
    NotOpen,
    NotSupported,
    UnknownPool,
    UnknownTask,
)
from millpond.core.event import TriggerSpec
from millpond.core.lifecycle import Status
from millpond.core.rate import Rate
from millpond.core.spec import Backpressure, BudgetSpec, PoolSpec, fifo, priority
from millpond.core.spec import Order as QueueOrder
from millpond.core.task import CALLBACKS
from millpond.core.why import explain
from millpond.pool.address import place_of, shown
from millpond.pool.budget import Budget
from millpond.pool.channels import Channels
from millpond.pool.context import Context, SyncContext
from millpond.pool.cron import CRON, arm
from millpond.pool.cron import handlers as cron_handlers
from millpond.pool.handle import CancelMode, Handle
from millpond.pool.options import Options, checked, policy
from millpond.pool.outcome import Outcome
from millpond.pool.payload import LARGEST
from millpond.pool.pool import Pool
from millpond.pool.schedule import Schedule, ScheduleInfo, made_schedule, schedules
from millpond.pool.scope import NAMED, check_scope, check_scope_id, prefix_of, stored_name
from millpond.pool.snapshot import TaskInfo
from millpond.pool.task import (
    Executor,
    KeyOf,
    Running,
    TaskDecorator,
    TaskFunction,
    default_options,
)
from millpond.pool.trigger import Make, Trigger, caller_of
from millpond.runtime.child import refuse_while_main_loads
from millpond.runtime.error import read
from millpond.runtime.hooks import Counts, Hooks
from millpond.runtime.identity import Identity
from millpond.runtime.retention import Keep
from millpond.runtime.runtime import Runtime, steady_clock, wall_clock
from millpond.store.clock import ForwardClock, ServerClock
from millpond.store.memory import MemoryStore

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, Unpack

    from millpond.core.audit import Record
    from millpond.core.task import NewTask
    from millpond.pool.event import Emission, EventInfo
    from millpond.pool.sync import SyncMillpond
    from millpond.pool.task import BoundCall
    from millpond.pool.timetable import Missed
    from millpond.runtime.hooks import DeadLetter, Empty, Observed
    from millpond.runtime.job import Handler
    from millpond.runtime.outcome import Policy
    from millpond.runtime.worker import Worker
    from millpond.store.postgres.url import Address
    from millpond.store.protocol import Store

log = logging.getLogger("millpond")

P = ParamSpec("P")
T = TypeVar("T")

MOST_PAYLOAD = 32 << 20
"""As much as may be set: what is sent to a process has room for it and its envelope."""

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
        self.max_payload = check.whole("max_payload", max_payload, least=1, most=MOST_PAYLOAD)
        check.one_of("durability", durability, ("full", "normal"))
        self.durability: Durability = durability
        self.migrate = migrate
        self._resources = resources
        self._pools: dict[str, Pool] = {}
        self._budgets: dict[str, BudgetSpec] = {}
        self._tasks: dict[str, TaskFunction[..., Any, Any]] = {}
        self._handlers: dict[str, Handler] = cron_handlers(self._event_of_firing)
        self._schedules: dict[str, Schedule] = {}
        self._arming: set[asyncio.Task[Any]] = set()
        """Schedules that were declared while it is open, on their way to the store."""
        self._retries: dict[str, Policy] = {}
        self._hooks = Hooks()
        self._counts = Counts()
        self._runtime: Runtime | None = None
        self._opening = False
        self._stack: contextlib.AsyncExitStack | None = None
        self._sync: SyncMillpond | None = None
        self._channels = Channels(self)
        self._handlers.update(self._channels.handlers())
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
                runtime.budgets = self._budgets
                for name in self._budgets:
                    await runtime.declare_budget(name)
                for pool in [*self.pools(), *self._channels.pools()]:
                    await runtime.declare(pool.spec)
                runtime.begin()
                await self._arm()
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
            clock = ForwardClock(clock, steady_clock(loop))
            store, shared = await self._opened_file(self._place, identity.owner, clock), True
        else:
            clock = ServerClock(steady_clock(loop))
            store, shared = await self._opened_server(self._place, identity.owner, clock), True
        return Runtime(
            store,
            functions=MappingProxyType(self._handlers),
            retries=MappingProxyType(self._retries),
            hooks=self._hooks,
            keep=self.keep,
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
        names = [name for name in runtime.declared if name != CRON]
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
        return f"<millpond {place}, {state}: {', '.join(self._pools) or 'no pools'}>"

    async def ready(self, pool: Pool) -> None:
        """See to it that the store knows a pool made after it was opened."""
        runtime = self.runtime
        if pool.spec.name not in runtime.declared and not pool.foreign:
            await runtime.declare(pool.spec)

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
            check.whole("concurrency", concurrency, least=1)
        names = None
        if pools is not None:
            given = [pools] if isinstance(pools, str) else pools
            names = frozenset(
                (self.get_pool(p) if isinstance(p, str) else p).spec.name for p in given
            )
        make = resources or self._resources
        async with contextlib.AsyncExitStack() as stack:
            made = await stack.enter_async_context(make()) if make is not None else None
            worker = await runtime.add_worker(pools=names, concurrency=concurrency, resources=made)
            try:
                yield worker
            finally:
                await runtime.remove_worker(worker, patience)

    # Pools

    def pool(
        self,
        name: str,
        *,
        max_concurrent: int | Adaptive | None = None,
        queue: QueueOrder | None = None,
        backpressure: Backpressure | None = None,
        max_per_key: int | None = None,
        rate: Rate | Sequence[Rate] | None = None,
        rate_per_key: Rate | None = None,
        lanes: int | None = None,
        ordered: bool = False,
        prefetch: int = 0,
        budgets: Sequence[Budget] = (),
        max_callbacks: int = 16,
        retry: Policy | None = None,
        on_dead_letter: Callable[[DeadLetter], object] | None = None,
        on_empty: Callable[[Empty], object] | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
    ) -> Pool:
        """Declare a pool; it is made known to the store when the Millpond is open.

        max_concurrent is 1 unless said otherwise (with lanes: as many as there are lanes). With
        `adaptive(1, 50)` latency and failures move it, for the whole fleet.
        """
        check_scope(scope, scope_id, durable=self.durable)
        stored = stored_name(name, scope, scope_id)
        if stored in self._pools:
            message = f"a pool named {stored!r} exists already; mp.get_pool({stored!r}) returns it"
            raise DuplicateName(message, kind="pool", name=stored)
        strict = ordered or lanes is not None
        adapts = max_concurrent if isinstance(max_concurrent, Adaptive) else None
        if isinstance(max_concurrent, Adaptive):
            max_concurrent = max_concurrent.initial
        spec = PoolSpec(
            name=stored,
            max_concurrent=(lanes or 1) if max_concurrent is None else max_concurrent,
            order=queue if queue is not None else (fifo() if strict else priority()),
            backpressure=backpressure,
            max_per_key=max_per_key,
            rates=_rates(rate),
            rate_per_key=rate_per_key,
            lanes=lanes,
            ordered=ordered,
            prefetch=prefetch,
            budgets=_budget_names(budgets, self._budgets),
            adaptive=adapts,
            max_callbacks=max_callbacks,
        )
        made = Pool(
            self,
            spec,
            name=name,
            scope=scope,
            scope_id=scope_id,
            retry=policy("retry", retry),
            created_at=time.time(),
        )
        return self._add_pool(made, on_dead_letter, on_empty)

    def budget(
        self, name: str, max_concurrent: int, *, rate: Rate | Sequence[Rate] | None = None
    ) -> Budget:
        """Declare a budget for pools to share: how many run, and start how fast, of all of them.

        `mp.pool(..., budgets=[openai])` shares it. It is one over the whole fleet.
        """
        if name in self._budgets:
            message = f"a budget named {name!r} exists already; keep what mp.budget() returned"
            raise DuplicateName(message, kind="budget", name=name)
        spec = BudgetSpec(name=name, max_concurrent=max_concurrent, rates=_rates(rate))
        self._budgets[name] = spec
        return Budget(self, spec)

    def _add_pool(
        self,
        pool: Pool,
        on_dead_letter: Callable[[DeadLetter], object] | None,
        on_empty: Callable[[Empty], object] | None,
    ) -> Pool:
        stored = pool.spec.name
        if on_dead_letter is not None:
            check.function("on_dead_letter", on_dead_letter)
        if on_empty is not None:
            check.function("on_empty", on_empty)
        self._pools[stored] = pool
        if pool.retry is not None:
            self._retries[stored] = pool.retry
        if on_dead_letter is not None:
            self._hooks.on_dead_letter[stored] = on_dead_letter
        if on_empty is not None:
            self._hooks.on_empty[stored] = on_empty
        return pool

    # Events

    def trigger(
        self,
        trigger_id: str,
        /,
        *,
        on: str | Sequence[str],
        into: str | Pool | None = None,
        task: TaskFunction[..., Any, Any] | None = None,
        make: Make | None = None,
        priority_from: str | None = None,
        key_from: str | None = None,
        weight_from: str | None = None,
        max_concurrent: int = 16,
        delivery_retry: Policy | None = None,
        on_dead_letter: Callable[[DeadLetter], object] | None = None,
        **options: Unpack[Options],
    ) -> Trigger:
        """Declare a trigger: each event of a name (or of several) is one submit into a pool.

        `task` is called with the event, if it takes an `Event`, else with its payload; `make` is a
        function of the event that returns the call, or None for nothing. `priority_from` and its
        like are paths into the event, such as `payload.urgency`; where one leads nowhere, the
        option of that name counts.

        The submits are made by tasks of the trigger's own, `max_concurrent` at a time, and tried
        again as `delivery_retry` says; what cannot be submitted is a dead letter of the trigger.
        """
        maker = _maker(task, make)
        names = (on,) if isinstance(on, str) else tuple(on)
        if not names:
            raise ConfigError("on", on, "must name an event")
        target = into if into is not None or task is None else task.own_pool
        if target is None:
            raise ConfigError("into", into, "must say which pool the trigger submits to")
        if isinstance(target, Pool) and target.millpond is not self:
            raise ConfigError("into", target.name, "is a pool of another Millpond")
        given = checked(options)
        for option in given.keys() & {"idempotency_key", "dedupe", "submitted_by"}:
            raise ConfigError(option, given[option], "follows from the trigger and the event")
        made = self._channels.add(
            trigger_id,
            TriggerSpec(
                on=names,
                into=target.spec.name if isinstance(target, Pool) else target,
                task=None if task is None else task.name,
                priority_from=priority_from,
                key_from=key_from,
                weight_from=weight_from,
            ),
            target,
            make=maker,
            options=given,
            max_concurrent=max_concurrent,
            retry=policy("delivery_retry", delivery_retry),
        )
        name = made.deliveries.spec.name
        assert made.deliveries.retry is not None  # noqa: S101 - the usual one if no other
        self._retries[name] = made.deliveries.retry
        if on_dead_letter is not None:
            self._hooks.on_dead_letter[name] = check.function("on_dead_letter", on_dead_letter)
        return made

    def get_trigger(self, trigger_id: str, /) -> Trigger:
        """Return the trigger of an id that was declared here; UnknownTrigger if there is none."""
        return self._channels.get(trigger_id)

    def triggers(self) -> list[Trigger]:
        """Return the triggers that were declared here, in the order they were made."""
        return list(self._channels.triggers.values())

    async def emit(
        self,
        name: str,
        payload: object = None,
        *,
        event_id: str | None = None,
        connection: object = None,
    ) -> Emission:
        """Tell every trigger for events of this name what happened; return once it is stored.

        The same `event_id` (of this name) is the same event: told twice, it is one. With
        `connection` it is part of the transaction open on it.
        """
        return await self._channels.send(self._channels.told(name, payload, event_id), connection)

    async def emit_as(
        self, submitted_by: str, name: str, payload: object, event_id: str | None
    ) -> Emission:
        """Emit in the name of somebody else."""
        sent = self._channels.told(name, payload, event_id)
        return await self._channels.send(sent, submitted_by=submitted_by)

    def emit_within(
        self, name: str, payload: object, event_id: str | None, connection: object
    ) -> Emission:
        """Emit inside a transaction of the caller's, in its thread and at once."""
        sent = self._channels.told(name, payload, event_id)
        return self._channels.send_within(sent, connection)

    async def replay(self, name: str, event_id: str) -> Emission:
        """Send an event that is kept to the triggers again; what they made of it, they find."""
        return await self._channels.replay(name, event_id)

    async def events(
        self, name: str | None = None, *, after: int = 0, limit: int = 100
    ) -> list[EventInfo]:
        """Return a page of the events that are kept, oldest first; go on after a `seq`."""
        return await self._channels.kept(name, after, limit)

    def get_pool(self, name: str) -> Pool:
        """Return the pool of a name (or id); UnknownPool if there is none, or more than one."""
        found = self._pools.get(name)
        if found is not None:
            return found
        meant = [pool for pool in self._pools.values() if name in (pool.id, pool.name)]
        if len(meant) == 1:
            return meant[0]
        if meant:
            which = ", ".join(pool.id for pool in meant)
            raise UnknownPool(f"{name!r} may be any of {which}: say which, by its id", pool=name)
        known = ", ".join(self._pools) or "none"
        raise UnknownPool(f"no pool named {name!r} (there are: {known})", pool=name)

    def pools(self) -> list[Pool]:
        """Return every pool, in the order they were made."""
        return list(self._pools.values())

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

    def register(
        self,
        pool: Pool | None,
        fn: Callable[..., Any] | None,
        *,
        name: str | None,
        key: KeyOf | None,
        aliases: Iterable[str],
        executor: str | None,
        defaults: Mapping[str, Any],
        batch: tuple[int, float] | None = None,
    ) -> Any:  # noqa: ANN401 - a task, or the decorator that makes one
        """Register a function under its name and aliases."""
        if fn is None:
            return lambda given: self.register(
                pool,
                given,
                name=name,
                key=key,
                aliases=aliases,
                executor=executor,
                defaults=defaults,
                batch=batch,
            )
        if not callable(fn):
            raise TypeError(f"task() decorates a function, not {fn!r}")
        given = getattr(fn, "__name__", "")
        if name is None and given in ("", "<lambda>"):
            raise ConfigError(
                "name", name, f"must be given for {fn!r}, which has none to be found by"
            )
        own = check.name("name", given if name is None else name)
        task: TaskFunction[..., Any, Any] = TaskFunction(
            self,
            pool,
            fn,
            name=own,
            key=key,
            aliases=aliases,
            executor=executor,
            batch=batch,
            defaults=defaults,
        )
        for one in (own, *task.aliases):
            if one in self._tasks:
                message = f"a task named {one!r} is registered already; give this one name="
                raise DuplicateName(message, kind="task", name=one)
        handler = task.handler()
        for one in (own, *task.aliases):
            self._tasks[one] = task
            self._handlers[one] = handler
        if self._runtime is not None:
            self._runtime.presenting.learned()
        return task

    @property
    def tasks(self) -> Mapping[str, TaskFunction[..., Any, Any]]:
        """Every registered task by its name and aliases."""
        return MappingProxyType(self._tasks)

    # Schedules

    def cron(
        self,
        schedule_id: str,
        expression: str | None = None,
        /,
        *,
        every: Seconds | None = None,
        tz: str = "UTC",
        into: str | Pool | None = None,
        task: TaskFunction[[], Any, Any] | BoundCall[Any] | None = None,
        emits: str | None = None,
        payload: object = None,
        missed: Missed = "once",
        grace: Seconds = 300.0,
        most_missed: int = 100,
    ) -> Schedule:
        """Declare a schedule: a crontab line in a time zone, or every so many seconds.

        Each firing submits `task` into a pool, or emits an event (`cron.<id>` if it does nothing
        else); it happens once for the whole fleet. A firing more than `grace` seconds late was
        missed: `once` lets one stand for all that were, `all` makes up for each (the latest
        `most_missed` of them), `skip` for none.
        """
        made = made_schedule(
            self,
            schedule_id,
            expression,
            every=every,
            tz=tz,
            into=into,
            task=task,
            emits=emits,
            payload=payload,
            missed=missed,
            grace=grace,
            most_missed=most_missed,
        )
        if made.id in self._schedules:
            message = f"a schedule named {made.id!r} exists already; give this one another id"
            raise DuplicateName(message, kind="schedule", name=made.id)
        self._schedules[made.id] = made
        runtime = self._runtime
        if runtime is not None and runtime.thread == threading.get_ident():
            arming = runtime.spawn(made.arm())
            self._arming.add(arming)
            arming.add_done_callback(self._arming.discard)
        return made

    async def schedules(self) -> list[ScheduleInfo]:
        """Return the schedules of the store, whoever declared them; which fires next comes first.

        Of those that were declared a moment ago too: this waits until they are armed.
        """
        await self.armed()
        return await schedules(self.runtime)

    async def armed(self) -> None:
        """Wait until the store knows the schedules that were declared here."""
        if self._arming:
            await asyncio.wait(self._arming)

    async def forget_schedule(self, schedule: str) -> None:
        """Let go of a schedule that is to be removed."""
        await self.armed()
        self._schedules.pop(schedule, None)

    async def _arm(self) -> None:
        """See to it that every schedule waits for its next firing."""
        if self._schedules:
            declared = [await one.declaration() for one in self._schedules.values()]
            await arm(self.runtime, declared)

    async def _event_of_firing(self, name: str, payload: object, event_id: str) -> NewTask:
        """Return the event that a firing is stored with."""
        return await self._channels.as_task(self._channels.told(name, payload, event_id))

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
            raise runtime.gone(task)
        function = of or self._tasks.get(record.new.call.function)
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
        return await self.runtime.cancel_one(task, interrupt=mode == "interrupt")

    async def why(self, task: int, /) -> str:
        """Return in words why a task is not running (or that it is, or how it ended)."""
        runtime = self.runtime
        facts = await runtime.view.why(task, now=runtime.clock())
        if facts is None:
            (status,) = await runtime.view.status((task,))
            if status == "unknown":
                raise UnknownTask(f"no task {task} is known", task_id=task)
            return status
        told = read(facts.error)
        if told is not None:
            facts = msgspec.structs.replace(facts, error=str(told).encode())
        return explain(facts, runtime.clock())

    async def unsettled(self) -> list[TaskInfo]:
        """Return every task that is queued or running, callbacks too."""
        found: dict[int, TaskInfo] = {}
        for pool in [name for name in self.runtime.declared if name != CRON]:
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
            await runtime.order(Close(name))
            await runtime.order(CancelAll(name))
            runtime.cancelled_all(name, before=None, unit=None, interrupt=False)
            runtime.give_back_ahead(name)
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
            from millpond.pool.sync import SyncMillpond  # noqa: PLC0415

            self._sync = SyncMillpond(self)
        return self._sync


def _maker(task: TaskFunction[..., Any, Any] | None, make: Make | None) -> Make:
    """Return what makes the call for an event."""
    if task is not None and make is None:
        check.instance("task", task, TaskFunction, "a registered task; or give make=")
        return caller_of(task)
    if make is None or task is not None:
        raise ConfigError("task", task, "or make must be given, and not both")
    return check.function("make", make)


def _budget_names(budgets: Sequence[Budget], known: Mapping[str, BudgetSpec]) -> tuple[str, ...]:
    """Return the names of budgets of this very Millpond."""
    for budget in budgets:
        if not isinstance(budget, Budget):
            raise ConfigError("budgets", budget, "must be budgets: what mp.budget() returned")
        if known.get(budget.name) is not budget.spec:
            raise ConfigError("budgets", budget.name, "is a budget of another Millpond")
    return tuple(budget.name for budget in budgets)


def _rates(rate: Rate | Sequence[Rate] | None) -> tuple[Rate, ...]:
    if rate is None:
        return ()
    if isinstance(rate, Rate):
        return (rate,)
    check.instance("rate", rate, Sequence, "a Rate, such as Rate(100, per=60), or a list of them")
    return tuple(rate)
