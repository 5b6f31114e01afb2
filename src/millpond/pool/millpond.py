"""The Millpond: one store, its pools and its tasks. Declare it at import, open it to work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from millpond.core import validation as check
from millpond.core.validation import Seconds
from millpond.errors import ConfigError
from millpond.pool.all_tasks import AllTasks
from millpond.pool.delegation import delegated
from millpond.pool.events.emit import Events
from millpond.pool.handle import Handle
from millpond.pool.payload.signature import LARGEST
from millpond.pool.pools import Pools
from millpond.pool.process_life import ProcessLife
from millpond.pool.registration import RegistersTasks
from millpond.pool.runtime_owner import Durability, Resources, RuntimeOwner
from millpond.pool.schedules.declared import Schedules
from millpond.pool.services import Services
from millpond.pool.store_url import shown
from millpond.pool.waiting_tasks import WaitingTasks
from millpond.runtime.retention import Keep

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from millpond.pool.registered import Registration
    from millpond.pool.sync_millpond import SyncMillpond
    from millpond.pool.task import TaskFunction
    from millpond.runtime.observe.hooks import Counts

T = TypeVar("T")


class Millpond(RegistersTasks):
    """Pools and tasks over one store. Making it does no I/O; `async with mp:` opens the store.

    Where no block fits, `await mp.open()` opens it and `await mp.close()` closes it.

    `None` keeps everything in this process, while it is open; `sqlite:///work.db` in a file that
    outlives it and that other processes of this machine share;
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
        if isinstance(imports, str):
            raise ConfigError("imports", imports, "must be a list of modules")
        owner = RuntimeOwner(
            url,
            work=work,
            keep=keep or Keep(),
            lease=lease,
            resources=resources,
            max_payload=max_payload,
            durability=durability,
            migrate=migrate,
        )
        modules = tuple(check.text("imports", module) for module in imports)
        self._internals = services = Services(owner, modules)
        self._pools = services.pools
        self._tasks = services.tasks
        self._waiting = services.waiting
        self._events = services.events
        self._schedules = services.schedules
        self._life = ProcessLife(services)
        self._sync: SyncMillpond | None = None

    # Opening and closing

    async def open(self) -> Self:
        """Open it, unless it is open on this event loop; return it.

        Nothing counts the calls: one `close()` closes it.
        """
        await self._life.open()
        return self

    async def close(self) -> None:
        """Close it, whatever opened it; nothing happens if it is closed."""
        await self._life.close()

    async def __aenter__(self) -> Self:
        """Open it for the length of the block; raise AlreadyOpen if it is open."""
        await self._life.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._life.close(warn=kind is None)

    @property
    def url(self) -> str | None:
        """The URL of its store; None: in memory. It may be changed while the Millpond is closed."""
        return self._internals.owner.url

    @url.setter
    def url(self, url: str | None) -> None:
        self._internals.owner.url = url

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._internals.owner.is_open

    @property
    def counts(self) -> Counts:
        """Counters of this process since it was opened: failed hooks, lost leases and so on.

        After closing, those of the last opening.
        """
        return self._internals.owner.counts

    @property
    def sync(self) -> SyncMillpond:
        """The same API for threads."""
        if self._sync is None:
            from millpond.pool.sync_millpond import SyncMillpond  # noqa: PLC0415 - rarely needed

            self._sync = SyncMillpond(self._internals, self._life, self)
        return self._sync

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        place = "in memory" if self.url is None else f"on {shown(self.url)}"
        return f"<millpond {place}, {state}: {', '.join(self._pools.by_name) or 'no pools'}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - it never returns
            """Name the right call for methods that pools have and a Millpond has not."""
            if name in ("submit_many", "try_submit", "map", "stream"):
                raise AttributeError(
                    f"a Millpond has no {name}(), its pools have: pool.{name}(...), with "
                    "pool = mp.pool(name) or mp.get_pool(name)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    worker = delegated(Services.worker, "_internals")
    observe = delegated(Services.observe, "_internals")
    add_middleware = delegated(Services.add_middleware, "_internals")
    end_scope = delegated(Services.end_scope, "_internals")

    # Declaring

    def _register(self, fn: Callable[..., Any] | None, given: Registration) -> Any:  # noqa: ANN401
        return self._pools.functions.register(None, fn, given)

    @property
    def tasks(self) -> Mapping[str, TaskFunction[..., Any, Any]]:
        """Every registered task by its name and aliases."""
        return MappingProxyType(self._pools.functions.by_name)

    pool = delegated(Pools.pool, "_pools")
    get_pool = delegated(Pools.get_pool, "_pools")
    pools = delegated(Pools.pools, "_pools")
    budget = delegated(Pools.budget, "_pools")

    trigger = delegated(Events.trigger, "_events")
    get_trigger = delegated(Events.get_trigger, "_events")
    triggers = delegated(Events.triggers, "_events")
    emit = delegated(Events.emit, "_events")
    replay = delegated(Events.replay, "_events")
    events = delegated(Events.events, "_events")

    cron = delegated(Schedules.cron, "_schedules")
    schedules = delegated(Schedules.schedules, "_schedules")

    # Tasks of all pools

    submit = delegated(AllTasks.submit, "_tasks")
    wait = delegated(AllTasks.wait, "_tasks")
    as_completed = delegated(AllTasks.as_completed, "_tasks")

    @overload
    def handle(self, task: int, /) -> Awaitable[Handle[Any]]: ...
    @overload
    def handle(self, task: int, /, *, of: TaskFunction[..., T, Any]) -> Awaitable[Handle[T]]: ...
    async def handle(
        self, task: int, /, *, of: TaskFunction[..., Any, Any] | None = None
    ) -> Handle[Any]:
        """Return a handle for a known id; `of` gives its result the type of that task."""
        return Handle(await self._tasks.find(task, of))

    status = delegated(AllTasks.status, "_tasks")
    cancel = delegated(AllTasks.cancel, "_tasks")
    update = delegated(WaitingTasks.update, "_waiting")
    reschedule = delegated(WaitingTasks.reschedule, "_waiting")
    run_now = delegated(WaitingTasks.run_now, "_waiting")
    why = delegated(AllTasks.why, "_tasks")
    unsettled = delegated(AllTasks.unsettled, "_tasks")
    audit = delegated(AllTasks.audit, "_tasks")
