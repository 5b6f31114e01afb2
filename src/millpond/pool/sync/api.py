"""The same API for threads: thin classes over the loop of an open Millpond.

    with mp.sync as sync:                        # opens it on a loop and a thread of its own
        handle = reviews.sync.submit(review.bind(1984))
        report = handle.get(timeout=60)          # what `await handle` is on the loop

Where the Millpond is open on a loop already (`async with mp:`), other threads use `mp.sync` as it
is. While nothing is open it raises NotOpen; on the loop's own thread it raises RuntimeError, since
it would wait for itself. Every method has the signature of its async twin; what is awaited there
(a handle, a map) has `get` here.

After a fork the child has no loop: `mp.sync` raises NotOpen there, and the parent goes on.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from millpond.core.validation import Seconds
from millpond.errors import AlreadyOpen
from millpond.pool.budget import SyncBudget
from millpond.pool.delegation import like, of_part
from millpond.pool.handle import CancelMode, Handle
from millpond.pool.options import Options, checked
from millpond.pool.pool import Pool
from millpond.pool.pools import Pools
from millpond.pool.rejection import SubmitRejection
from millpond.pool.submit import misplaced_arguments
from millpond.pool.sync.bridge import Bridge, OwnedLoop
from millpond.pool.sync.events import SyncChannels
from millpond.pool.sync.handles import SyncHandle, SyncMapped, SyncRun, SyncStream, limit_of
from millpond.pool.sync.schedules import SyncSchedules

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType
    from typing import Self, Unpack

    from millpond.core.audit import Record
    from millpond.core.spec import PoolSpec
    from millpond.pool.budget import Budget
    from millpond.pool.millpond import Millpond, Resources
    from millpond.pool.run import RunReport
    from millpond.pool.snapshot import LaneStatus, Snapshot, TaskInfo
    from millpond.pool.task import (
        BoundCall,
        Optioned,
        TaskFunction,
    )
    from millpond.runtime.jobs.policy import Policy
    from millpond.runtime.observe.hooks import Counts, Observed
    from millpond.runtime.worker.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class SyncTaskFunction(Generic[P, R_co]):
    """A registered function, to be submitted from a thread: `review.sync.submit(1984)`."""

    __slots__ = ("_function",)

    def __init__(self, function: TaskFunction[P, R_co, Any] | Optioned[P, R_co]) -> None:
        self._function = function

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R_co]:
        """Submit a call to the function's own pool."""
        return self._function.pool.sync.submit(self._function.bind(*args, **kwargs))


class SyncPool:
    """A pool, for threads: `pool.sync`, or `mp.sync.get_pool(name)`."""

    def __init__(self, bridge: Bridge, pool: Pool) -> None:
        self._bridge = bridge
        self._pool = pool
        # Registering asks no store: it is the same for everybody.
        self.task = pool.task
        self.batch_task = pool.batch_task

    @property
    def twin(self) -> Pool:
        """The same pool for the loop."""
        return self._pool

    @property
    def name(self) -> str:
        """Its name, unique on its Millpond."""
        return self._pool.name

    @property
    def id(self) -> str:
        """Its id: scope, scope id and name; the same in every process."""
        return self._pool.id

    @property
    def spec(self) -> PoolSpec:
        """As it was declared."""
        return self._pool.spec

    @property
    def scope(self) -> str:
        """Its scope."""
        return self._pool.scope

    @property
    def scope_id(self) -> str | None:
        """The id of its scope."""
        return self._pool.scope_id

    @property
    def retry(self) -> Policy | None:
        """How its tasks are tried again where they do not say."""
        return self._pool.retry

    @property
    def created_at(self) -> float:
        """When it was made in this process."""
        return self._pool.created_at

    def __repr__(self) -> str:
        return f"<sync {self._pool!r}>"

    # Submitting

    @overload
    def submit(
        self,
        work: BoundCall[T],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> SyncHandle[T]: ...
    @overload
    def submit(
        self,
        work: TaskFunction[[], T, Any],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> SyncHandle[T]: ...
    @overload
    def submit(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> SyncHandle[T]: ...
    @overload
    def submit(
        self,
        work: Callable[[], T],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> SyncHandle[T]: ...
    def submit(
        self,
        work: Any,
        /,
        *misplaced: object,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> SyncHandle[Any]:
        """Submit a call, or any function of no arguments; return its handle.

        A full pool answers as its backpressure says: it waits (at most `wait` seconds), raises,
        or gives a handle that says `rejected`. With `connection` it is part of the transaction open
        on it, and never waits.
        """
        if misplaced:
            raise misplaced_arguments("submit", work, misplaced)
        if connection is not None:
            return self._within([work], options, connection)[0]
        submit: Any = self._pool.submit
        handle = self._bridge.call(lambda: submit(work, wait=wait, **options))
        return SyncHandle(self._bridge, handle)

    def _within(
        self, works: list[Any], options: Options, connection: object
    ) -> list[SyncHandle[Any]]:
        """Submit in this very thread: a connection may be of no use in another."""
        handles = self._bridge.here(self._pool.submit_within, works, options, connection)
        if any(handle.duplicate for handle in handles):
            self._bridge.call(self._pool.looked_up, handles)
        return [SyncHandle(self._bridge, handle) for handle in handles]

    @overload
    def submit_many(
        self,
        works: Iterable[BoundCall[T]],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> list[SyncHandle[T]]: ...
    @overload
    def submit_many(
        self,
        works: Iterable[Callable[[], Coroutine[Any, Any, T]]],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> list[SyncHandle[T]]: ...
    @overload
    def submit_many(
        self,
        works: Iterable[Callable[[], T]],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> list[SyncHandle[T]]: ...
    def submit_many(
        self,
        works: Iterable[Any],
        /,
        *misplaced: object,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> list[SyncHandle[Any]]:
        """Submit many as one batch: stored together, or not at all where the pool can refuse."""
        if misplaced:
            raise misplaced_arguments("submit_many", works, misplaced)
        given = list(works)
        if connection is not None:
            return self._within(given, options, connection)
        handles = self._bridge.call(lambda: self._pool.submit_many(given, wait=wait, **options))
        return [SyncHandle(self._bridge, handle) for handle in handles]

    @overload
    def try_submit(
        self, work: BoundCall[T], /, **options: Unpack[Options]
    ) -> SyncHandle[T] | SubmitRejection: ...
    @overload
    def try_submit(
        self, work: TaskFunction[[], T, Any], /, **options: Unpack[Options]
    ) -> SyncHandle[T] | SubmitRejection: ...
    @overload
    def try_submit(
        self, work: Callable[[], Coroutine[Any, Any, T]], /, **options: Unpack[Options]
    ) -> SyncHandle[T] | SubmitRejection: ...
    @overload
    def try_submit(
        self, work: Callable[[], T], /, **options: Unpack[Options]
    ) -> SyncHandle[T] | SubmitRejection: ...
    def try_submit(
        self, work: Any, /, *misplaced: object, **options: Unpack[Options]
    ) -> SyncHandle[Any] | SubmitRejection:
        """Submit without ever waiting; a refusal is returned, falsy, and not raised."""
        if misplaced:
            raise misplaced_arguments("try_submit", work, misplaced)
        submit: Any = self._pool.try_submit
        found = self._bridge.call(lambda: submit(work, **options))
        if isinstance(found, Handle):
            return SyncHandle(self._bridge, found)
        assert isinstance(found, SubmitRejection)  # noqa: S101 - it is one or the other
        if found.handle is None:
            return found
        return dataclasses.replace(found, handle=SyncHandle(self._bridge, found.handle))

    @overload
    def map(
        self,
        fn: TaskFunction[[T], R, Any] | Optioned[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        /,
        **options: Unpack[Options],
    ) -> SyncMapped[R]: ...
    @overload
    def map(
        self,
        fn: Callable[[T], Coroutine[Any, Any, R]],
        items: Iterable[T] | AsyncIterable[T],
        /,
        **options: Unpack[Options],
    ) -> SyncMapped[R]: ...
    @overload
    def map(
        self,
        fn: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        /,
        **options: Unpack[Options],
    ) -> SyncMapped[R]: ...
    def map(
        self,
        fn: Any,
        items: Iterable[Any] | AsyncIterable[Any],
        /,
        **options: Unpack[Options],
    ) -> SyncMapped[Any]:
        """Run `fn` on each item; `get()` for the list of results, or iterate over them, in order.

        Items are taken as there is room for them, so they may be endless.
        """
        return SyncMapped(self._bridge, self._pool, fn, items, checked(options))

    # Runs

    def drain(
        self,
        seed: Iterable[BoundCall[Any]] | None = None,
        /,
        *,
        run: str | None = None,
        on_error: Literal["skip", "fail"] = "skip",
        max_tasks: int | None = None,
        progress: bool = False,
        timeout: Seconds | None = None,
    ) -> RunReport:
        """Run a seed and everything it submits to the end; without one, wait for an idle pool."""
        return self._bridge.within(
            limit_of(timeout),
            self._pool.drain,
            None if seed is None else list(seed),
            run=run,
            on_error=on_error,
            max_tasks=max_tasks,
            progress=progress,
        )

    def run(
        self,
        name: str | None = None,
        /,
        *,
        on_error: Literal["skip", "fail"] = "skip",
        max_tasks: int | None = None,
    ) -> SyncRun:
        """Open a run: `with pool.sync.run("nightly") as run: run.submit(...)`."""
        return SyncRun(self._bridge, self._pool.run(name, on_error=on_error, max_tasks=max_tasks))

    def stream(
        self,
        seed: Iterable[BoundCall[Any]],
        /,
        *,
        run: str | None = None,
        on_error: Literal["skip", "fail"] = "skip",
        max_tasks: int | None = None,
    ) -> SyncStream:
        """Run a seed; `with ... as outcomes: for outcome in outcomes`."""
        return SyncStream(
            self._bridge,
            self._pool.stream(seed, run=run, on_error=on_error, max_tasks=max_tasks),
        )

    # Control

    def pause(self, *, lane: str | int | None = None, key: str | None = None) -> None:
        """Start nothing more, of the pool or of one lane or key; what runs goes on."""
        self._bridge.call(self._pool.pause, lane=lane, key=key)

    def resume(self, *, lane: str | int | None = None, key: str | None = None) -> None:
        """Start work again."""
        self._bridge.call(self._pool.resume, lane=lane, key=key)

    def resize(self, max_concurrent: int | None = None, *, revision: int | None = None) -> int:
        """Change the limit; a lower one is reached as work ends, 0 pauses, None = as declared.

        Return the revision now in force.
        """
        return self._bridge.call(self._pool.resize, max_concurrent, revision=revision)

    def purge(self, *, lane: str | int | None = None, key: str | None = None) -> int:
        """Cancel everything that waits; return how many."""
        return self._bridge.call(self._pool.purge, lane=lane, key=key)

    def cancel(self, task: int, /, *, mode: CancelMode = "cooperative") -> bool:
        """Cancel one task; return whether that changed anything."""
        return self._bridge.call(self._pool.cancel, task, mode=mode)

    def cancel_all(
        self,
        *,
        before: float | datetime | None = None,
        lane: str | int | None = None,
        key: str | None = None,
        mode: CancelMode = "cooperative",
    ) -> int:
        """Cancel every task submitted before a moment, waiting or running; return how many."""
        return self._bridge.call(
            self._pool.cancel_all, before=before, lane=lane, key=key, mode=mode
        )

    def redrive(self, tasks: Iterable[int | SyncHandle[Any]], /) -> int:
        """Queue failed or cancelled tasks again, with a new budget of attempts; return how many."""
        chosen = [one if isinstance(one, int) else one.id for one in tasks]
        return self._bridge.call(self._pool.redrive, chosen)

    def close(self) -> None:
        """Take no more work from outside, for good; what is queued still runs."""
        self._bridge.call(self._pool.close)

    # Looking

    def size(self) -> int:
        """Return how many tasks run or wait."""
        return self._bridge.call(self._pool.size)

    def snapshot(self) -> Snapshot:
        """Return the pool at this moment: counts, limits, settings, ages."""
        return self._bridge.call(self._pool.snapshot)

    def tasks(
        self,
        *,
        status: str | None = None,
        key: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[TaskInfo]:
        """Return a page of its tasks, oldest first; go on after the last one's `seq`."""
        return self._bridge.call(self._pool.tasks, status=status, key=key, after=after, limit=limit)

    def lanes(self) -> list[LaneStatus]:
        """Return each lane: its state, what waits, how many it has processed."""
        return self._bridge.call(self._pool.lanes)


class SyncMillpond:
    """A Millpond, for threads: `mp.sync`.

    As a context manager it opens the Millpond on a loop in a thread of its own, and closes it.
    """

    def __init__(self, mp: Millpond) -> None:
        self._mp = mp
        self._bridge = Bridge(mp)
        self._lock = threading.Lock()
        self._owned: OwnedLoop[Millpond] | None = None
        self._schedules = SyncSchedules(self._bridge, mp)
        self._channels = SyncChannels(self._bridge, mp)
        # Registering asks no store: it is the same for everybody.
        self.task = mp.task

    # Its life

    def __enter__(self) -> Self:
        with self._lock:
            if self._owned is not None:
                raise AlreadyOpen("this Millpond is open already; use it, or make another one")
            owned = self._owned = OwnedLoop(lambda: self._mp)
        try:
            owned.__enter__()
        except BaseException:
            self._owned = None
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        owned = self._owned
        if owned is None:
            return
        try:
            owned.__exit__(kind, error, trace)
        finally:
            self._owned = None

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._mp.is_open

    def __repr__(self) -> str:
        return f"<sync {self._mp!r}>"

    @property
    def counts(self) -> Counts:
        """What this process has seen since it was opened: failing hooks, lost leases and so on."""
        return self._mp.counts

    @property
    def twin(self) -> Millpond:
        """The same Millpond for the loop."""
        return self._mp

    def pool_of(self, pool: Pool) -> SyncPool:
        """Return a pool as threads use it; `pool.sync` is the same."""
        return SyncPool(self._bridge, pool)

    def worker(
        self,
        pools: Iterable[str | Pool | SyncPool] | None = None,
        concurrency: int | None = None,
        resources: Resources | None = None,
        *,
        grace: Seconds = 0.0,
    ) -> AbstractContextManager[Worker]:
        """Run tasks on the loop, of all pools or of some, at most `concurrency` at a time.

        `resources` is a function that gives an async context manager: what that yields is made
        once, is there as `ctx.resources`, and is closed when the worker has stopped.
        """
        names: Iterable[str | Pool] | None = None
        if pools is not None:
            given = [pools] if isinstance(pools, str) else pools
            names = [one.twin if isinstance(one, SyncPool) else one for one in given]
        return self._bridge.hold(
            lambda: self._mp.worker(names, concurrency, resources, grace=grace)
        )

    # Pools

    @like(Pools.pool)
    def pool(self, *given: Any, **named: Any) -> SyncPool:  # noqa: ANN401 - as its twin
        """Declare a pool; it is made known to the store when the Millpond is open.

        max_concurrent is 1 unless said otherwise (with lanes: as many as there are lanes). With
        `adaptive(1, 50)` latency and failures move it, for the whole fleet.
        """
        return self._mp.pool(*given, **named).sync

    @like(Pools.budget)
    def budget(self, *given: Any, **named: Any) -> SyncBudget:  # noqa: ANN401 - as its twin
        """Declare a budget for pools to share: how many run, and start how fast, of all of them.

        `mp.pool(..., budgets=[openai])` shares it. It is one over the whole fleet.
        """
        return self.budget_of(self._mp.budget(*given, **named))

    def budget_of(self, budget: Budget) -> SyncBudget:
        """Return a budget as threads use it."""
        return SyncBudget(self._bridge, budget)

    # Schedules and events

    cron = of_part(SyncSchedules.cron, "_schedules")
    schedule_of = of_part(SyncSchedules.schedule_of, "_schedules")
    schedules = of_part(SyncSchedules.schedules, "_schedules")

    trigger = of_part(SyncChannels.trigger, "_channels")
    get_trigger = of_part(SyncChannels.get_trigger, "_channels")
    triggers = of_part(SyncChannels.triggers, "_channels")
    emit = of_part(SyncChannels.emit, "_channels")
    replay = of_part(SyncChannels.replay, "_channels")
    events = of_part(SyncChannels.events, "_channels")

    # Looking

    def get_pool(self, name: str) -> SyncPool:
        """Return the pool of a name (or id); UnknownPool if there is none."""
        return self._mp.get_pool(name).sync

    def pools(self) -> list[SyncPool]:
        """Return every pool, in the order they were made."""
        return [pool.sync for pool in self._mp.pools()]

    @property
    def tasks(self) -> Mapping[str, TaskFunction[..., Any, Any]]:
        """Every registered task by its name and aliases."""
        return self._mp.tasks

    # Many tasks

    def wait(
        self,
        handles: Iterable[SyncHandle[T]],
        *,
        timeout: Seconds | None = None,
    ) -> list[SyncHandle[T]]:
        """Wait until every task has ended, whatever way; return the handles in their order."""
        given = list(handles)
        self._bridge.within(limit_of(timeout), self._mp.wait, [one.twin for one in given])
        return given

    def as_completed(self, handles: Iterable[SyncHandle[T]]) -> Iterator[SyncHandle[T]]:
        """Yield each handle when its task has ended, in the order in which they end."""
        given = list(handles)
        ours = {id(one.twin): one for one in given}

        def make() -> AsyncIterator[Handle[T]]:
            return self._mp.as_completed([one.twin for one in given])

        return (ours[id(one)] for one in self._bridge.iterate(make))

    @overload
    def handle(self, task: int, /) -> SyncHandle[Any]: ...
    @overload
    def handle(self, task: int, /, *, of: TaskFunction[..., T, Any]) -> SyncHandle[T]: ...
    def handle(
        self, task: int, /, *, of: TaskFunction[..., Any, Any] | None = None
    ) -> SyncHandle[Any]:
        """Return a handle for a known id; `of` gives its result the type of that task."""
        handle: Any = self._mp.handle
        return SyncHandle(self._bridge, self._bridge.call(handle, task, of=of))

    def status(self, tasks: Iterable[int]) -> list[str]:
        """Return where tasks are: queued, running, how they ended, expired, or unknown."""
        return self._bridge.call(self._mp.status, list(tasks))

    def cancel(self, task: int, /, *, mode: CancelMode = "cooperative") -> bool:
        """Cancel one task of any pool; return whether that changed anything."""
        return self._bridge.call(self._mp.cancel, task, mode=mode)

    def why(self, task: int, /) -> str:
        """Return in words why a task is not running (or that it is, or how it ended)."""
        return self._bridge.call(self._mp.why, task)

    def unsettled(self) -> list[TaskInfo]:
        """Return every task that is queued or running, callbacks too."""
        return self._bridge.call(self._mp.unsettled)

    def audit(self, pool: str | Pool | SyncPool | None = None) -> Iterator[Record]:
        """Yield the audit records that are kept, oldest first, of one pool or of all."""
        meant = pool.twin if isinstance(pool, SyncPool) else pool
        return self._bridge.iterate(lambda: self._mp.audit(meant))

    def observe(self, observer: Callable[[Observed], object]) -> Callable[[], None]:
        """Be told of what happens in this process; return a function that ends it.

        Observers are called on the loop, after the fact; one that raises is counted.
        """
        return self._mp.observe(observer)

    def end_scope(self, scope: str, scope_id: str) -> None:
        """End a scope and everything in it; needs a durable store."""
        self._bridge.call(self._mp.end_scope, scope, scope_id)
