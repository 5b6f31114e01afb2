"""The owner of the runtime: opens the store, makes the runtime over it, and closes both.

Everything here that has to do with an open Millpond asks the owner for the runtime.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.validation import Seconds
from millpond.errors import AlreadyOpen, NotOpen
from millpond.pool.loop_bridge import LoopBridge
from millpond.pool.middleware_stack import MiddlewareStack
from millpond.pool.store_url import place_of
from millpond.runtime.observe.hooks import Counts, Hooks
from millpond.runtime.retention import Keep

if TYPE_CHECKING:
    from millpond.core.spec import BudgetSpec, PoolSpec
    from millpond.runtime.jobs.job import Handler
    from millpond.runtime.jobs.policy import Policy
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.worker.worker import Worker
    from millpond.store.protocol import Store

Durability = Literal["full", "normal"]
"""What a power failure may cost: `full` nothing, `normal` the last moments before it."""

Resources = Callable[[], contextlib.AbstractAsyncContextManager[Any]]


class RuntimeOwner:
    """The settings of one Millpond, what it declares, and the runtime while it is open."""

    def __init__(
        self,
        url: str | None,
        *,
        work: bool | None,
        keep: Keep,
        lease: Seconds,
        resources: Resources | None,
        max_payload: int,
        durability: Durability,
        migrate: bool,
    ) -> None:
        self._place = place_of(url)
        self._url = url
        self.work = work
        """Whether an open Millpond also runs tasks; None: only where the store is in memory."""
        self.keep = keep
        self.lease = check.seconds("lease", lease, above=0.0)
        self.max_payload = check.integer(
            "max_payload", max_payload, least=1, most=bounds.MOST_PAYLOAD
        )
        check.one_of("durability", durability, ("full", "normal"))
        self.durability: Durability = durability
        self.migrate = migrate
        self._resources = resources
        self.handlers: dict[str, Handler] = {}
        """What workers run, by the name of the function: tasks of the user, and our own."""
        self.retries: dict[str, Policy] = {}
        """The retry policies of pools, by their stored names."""
        self.budgets: dict[str, BudgetSpec] = {}
        self.hooks = Hooks()
        self.middlewares = MiddlewareStack()
        self.counts = Counts()
        """The counters of the latest opening; they stay readable after it is closed."""
        self.make_store: Callable[[], Store] | None = None
        """Makes the store, for tests that bring their own; None: the URL says which."""
        self.shared: bool | None = None
        """Whether other processes use that store; None: the store says."""
        self.seed: int | None = None
        """The seed of ids, tokens and jitter, for tests that must repeat."""
        self.bridge = LoopBridge(lambda: self.runtime)
        """Calls to the loop from other threads, for the sync API."""
        self._runtime: Runtime | None = None
        self.opening = False
        """Whether a task opens the store at this moment."""
        self._of_parent: list[object] = []
        self._workers: contextlib.AsyncExitStack | None = None

    @property
    def url(self) -> str | None:
        """The URL of the store; None: in memory."""
        return self._url

    @url.setter
    def url(self, url: str | None) -> None:
        if self.is_open or self.opening:
            raise AlreadyOpen("this Millpond is open; the URL of its store cannot change now")
        self._place = place_of(url)
        self._url = url

    @property
    def durable(self) -> bool:
        """Whether the store outlives this process."""
        return self._url is not None

    @property
    def works(self) -> bool:
        """Whether an open Millpond also runs tasks."""
        return not self.durable if self.work is None else self.work

    @property
    def is_open(self) -> bool:
        """Whether there is a runtime, and this process made it."""
        return self._runtime is not None and self._runtime.process == os.getpid()

    @property
    def runtime(self) -> Runtime:
        """The runtime while the Millpond is open; NotOpen otherwise."""
        if self._runtime is None:
            raise NotOpen(
                "this Millpond is not open; put `async with mp:` around the work, or call `await "
                "mp.open()` before it"
            )
        return self._runtime

    def must_be_closed(self) -> None:
        """Raise AlreadyOpen if the Millpond is open, or about to be."""
        if self._runtime is not None or self.opening:
            raise AlreadyOpen("this Millpond is open already; use it, or make another one")

    async def open(self) -> Runtime:
        """Open the store and make the runtime over it."""
        self.opening = True
        try:
            runtime = self._runtime = await self._open_runtime()
        finally:
            self.opening = False
        self.counts = runtime.counts
        runtime.declarations.budgets = self.budgets
        return runtime

    async def _open_runtime(self) -> Runtime:
        # Who only declares pools and tasks does not wait for the code that runs them.
        from millpond.pool.store_opening import clock_of_loop, open_store  # noqa: PLC0415
        from millpond.runtime.identity import Identity  # noqa: PLC0415
        from millpond.runtime.runtime import Runtime  # noqa: PLC0415

        identity = Identity(self.seed)
        if self.make_store is not None:
            store, clock = self.make_store(), clock_of_loop()
            shared = getattr(store, "shared", True) if self.shared is None else self.shared
        else:
            store, clock = await open_store(
                self._place,
                owner=identity.owner,
                durability=self.durability,
                migrate=self.migrate,
            )
            shared = self.durable
        return Runtime(
            store,
            functions=MappingProxyType(self.handlers),
            retries=MappingProxyType(self.retries),
            hooks=self.hooks,
            shared=shared,
            identity=identity,
            clock=clock,
            lease=self.lease,
        )

    async def start_worker(self) -> None:
        """Start the worker that an open Millpond has of its own; `close` stops it."""
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.worker())
            self._workers = stack.pop_all()

    async def close(self, grace: float = 0.0) -> None:
        """Stop the worker, close the runtime and its store."""
        runtime, workers = self._runtime, self._workers
        self._workers = None
        if runtime is None:
            return
        try:
            if workers is not None:
                await workers.aclose()
        finally:
            try:
                await runtime.close(grace)
            finally:
                if self._runtime is runtime:
                    self._runtime = None

    def forget_parent(self) -> None:
        """Forget, in a forked child, the runtime that the parent opened."""
        if self._runtime is not None and self._runtime.process != os.getpid():
            # Kept, so that nothing closes its files and sockets: those are the parent's.
            self._of_parent += [self._runtime, self._workers]
            self.abandon()

    def abandon(self) -> None:
        """Forget the runtime without closing it, as a crash would; for tests that simulate one."""
        self._runtime = self._workers = None

    async def declare(self, spec: PoolSpec) -> None:
        """Declare a pool to the store, unless the store knows it already."""
        runtime = self.runtime
        if spec.name not in runtime.declarations.specs:
            await runtime.declarations.declare(spec)

    @contextlib.asynccontextmanager
    async def worker(
        self,
        pools: frozenset[str] | None = None,
        concurrency: int | None = None,
        resources: Resources | None = None,
        grace: float = 0.0,
    ) -> AsyncIterator[Worker]:
        """Run tasks of all pools, or of some by their stored names, while this lasts."""
        runtime = self.runtime
        make = resources or self._resources
        async with contextlib.AsyncExitStack() as stack:
            made = await stack.enter_async_context(make()) if make is not None else None
            worker = await runtime.local_workers.start(
                pools=pools, concurrency=concurrency, resources=made
            )
            try:
                yield worker
            finally:
                await runtime.local_workers.stop(worker, grace)
