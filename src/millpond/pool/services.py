"""The services of one Millpond, composed: what `Millpond` and `SyncMillpond` call.

Each service gets the narrow objects that it needs: the owner of the runtime, the pools, the tasks.
None of them knows the Millpond.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING

from millpond.core import validation as check
from millpond.core.control import CancelAll, Close
from millpond.core.log_fields import about
from millpond.core.validation import Seconds
from millpond.errors import NotSupported
from millpond.pool.all_tasks import AllTasks
from millpond.pool.events.emit import Events
from millpond.pool.middleware import Middleware
from millpond.pool.pools import Pools
from millpond.pool.schedules.declared import Schedules
from millpond.pool.schedules.firing import handlers as cron_handlers
from millpond.pool.scope import NAMED, check_scope_id, prefix_of
from millpond.pool.waiting_tasks import WaitingTasks

if TYPE_CHECKING:
    from millpond.pool.pool import Pool
    from millpond.pool.runtime_owner import Resources, RuntimeOwner
    from millpond.pool.sync_pool import SyncPool
    from millpond.runtime.observe.hooks import Observed
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.worker.worker import Worker

log = logging.getLogger("millpond")


class Services:
    """Pools, tasks, events and schedules over one owner of the runtime."""

    def __init__(self, owner: RuntimeOwner, imports: tuple[str, ...]) -> None:
        self.owner = owner
        self.imports = imports
        """Modules to import before opening: they register tasks."""
        self.pools = Pools(owner)
        self.tasks = AllTasks(owner, self.pools)
        self.waiting = WaitingTasks(owner, self.pools, self.tasks)
        self.events = Events(owner, self.pools, self.tasks)
        self.schedules = Schedules(owner, self.pools, self.events.as_task)
        owner.handlers.update(cron_handlers(self.events.as_task))

    @property
    def runtime(self) -> Runtime:
        """The runtime while the Millpond is open; NotOpen otherwise."""
        return self.owner.runtime

    async def open(self) -> None:
        """Open the store, declare what this process declares, and start to work."""
        owner = self.owner
        owner.must_be_closed()
        from millpond.runtime.executors.processes.child import (  # noqa: PLC0415 - not to declare
            refuse_while_main_loads,
        )

        refuse_while_main_loads("opens a Millpond")
        for module in self.imports:
            importlib.import_module(module)
        self.pools.check_scopes()
        runtime = await owner.open()
        try:
            for name in owner.budgets:
                await runtime.declarations.declare_budget(name)
            pools = [*self.pools.pools(), *self.events.pools()]
            await runtime.declarations.declare_all([pool.spec for pool in pools])
            runtime.start()
            await self.schedules.arm()
            if owner.works:
                await owner.start_worker()
        except BaseException:
            await owner.close()
            raise

    async def close(self, *, warn: bool = True) -> None:
        """Close the store; `warn` logs how many tasks a store in memory loses."""
        lost = 0
        try:
            if warn and self.owner.is_open:
                # A store that does not answer must not prevent closing.
                with contextlib.suppress(Exception):
                    lost = await self.tasks.count_lost_by_closing()
        finally:
            await self.owner.close()
        if lost:
            log.warning(
                "closed with %d task(s) queued or running, which a store in memory loses; "
                "`await pool.drain()` at the end of the block waits for them",
                lost,
                extra=about("millpond.closed_with_work", count=lost),
            )

    @contextlib.asynccontextmanager
    async def worker(
        self,
        pools: Iterable[str | Pool | SyncPool] | None = None,
        concurrency: int | None = None,
        resources: Resources | None = None,
        *,
        grace: Seconds = 0.0,
    ) -> AsyncIterator[Worker]:
        """Run tasks here, of all pools or of some, at most `concurrency` at a time.

        `resources` is a function that returns an async context manager: the worker enters it once,
        has its value as `ctx.resources`, and leaves it when it has stopped.
        """
        patience = check.seconds("grace", grace)
        if concurrency is not None:
            check.integer("concurrency", concurrency, least=1)
        names = None if pools is None else self.pools.stored_names(pools)
        async with self.owner.worker(names, concurrency, resources, patience) as worker:
            yield worker

    def observe(self, observer: Callable[[Observed], object]) -> Callable[[], None]:
        """Call `observer` for what happens in this process; return a function that ends it.

        It is called synchronously, after the fact; an observer that raises is counted.
        """
        observers = self.owner.hooks.observers
        observers.append(observer)

        def stop() -> None:
            with contextlib.suppress(ValueError):
                observers.remove(observer)

        return stop

    def add_middleware(self, middleware: Middleware) -> Callable[[], None]:
        """Run code around every handler of registered functions; return a function that ends it.

        The first that is added is the outermost. For handlers in processes, add it when the module
        of the application is imported: each process imports it.
        """
        check.instance("middleware", middleware, Middleware, "a Middleware")
        return self.owner.middlewares.add(middleware)

    async def end_scope(self, scope: str, scope_id: str) -> None:
        """End a scope: its pools close for good, and tasks that wait or run are cancelled.

        All its pools in the store, whichever process declared them. Needs a durable store.
        """
        if not self.owner.durable:
            message = "scopes need a durable store; memory has none to end"
            raise NotSupported(message, feature="scope")
        check.one_of("scope", scope, NAMED)
        check_scope_id(scope, scope_id)
        runtime = self.runtime
        for name in await runtime.view.names(prefix_of(scope, scope_id)):
            await runtime.control.order(Close(name))
            await runtime.control.order(CancelAll(name))
            runtime.control.cancelled_all(name, before=None, unit=None, interrupt=False)
            runtime.control.give_back_prefetched(name)
            runtime.submitter.room(name)
