"""The pool: one name, one budget, one queue, for all its submitters."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from millpond.core.admit import Refusal
from millpond.core.validation import Seconds
from millpond.pool.delegation import delegated
from millpond.pool.handle import Handle
from millpond.pool.map import Mapped
from millpond.pool.options import Callback, Options, SubmitOptions, checked
from millpond.pool.pool_control import PoolControl
from millpond.pool.pool_properties import PoolProperties
from millpond.pool.pool_reader import PoolReader
from millpond.pool.pool_submitter import PoolSubmitter
from millpond.pool.registration import RegistersBatchTasks
from millpond.pool.rejection import SubmitRejection, dropped, rejection
from millpond.pool.runs.pool_runs import PoolRuns
from millpond.pool.sync_pool import SyncPool
from millpond.pool.task import BoundCall, Work, WorkOnItem
from millpond.pool.work import misplaced_arguments

if TYPE_CHECKING:
    from typing import Unpack

    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.functions import Functions
    from millpond.pool.registered import Registration

T = TypeVar("T")
R = TypeVar("R")


class Pool(PoolProperties, RegistersBatchTasks):
    """A named pool of one Millpond. Make it with `mp.pool(...)`."""

    def __init__(self, pool: DeclaredPool, functions: Functions) -> None:
        self._internals = pool
        self._functions = functions
        self._submitter = PoolSubmitter(pool)
        self._control = PoolControl(pool)
        self._runs = PoolRuns(pool, functions.decoder_of)
        self._reader = PoolReader(pool)
        self._sync: SyncPool | None = None

    @property
    def sync(self) -> SyncPool:
        """The same pool for threads."""
        if self._sync is None:
            self._sync = SyncPool(self._internals, self._runs, self._register)
        return self._sync

    def __repr__(self) -> str:
        return f"<pool {self.id}>"

    def _register(self, fn: Callable[..., Any] | None, given: Registration) -> Any:  # noqa: ANN401
        return self._functions.register(self, fn, given)

    # Submitting

    @overload
    async def submit(self, work: Work[T], /, **options: Unpack[SubmitOptions]) -> Handle[T]: ...
    @overload
    async def submit(
        self, work: Callable[[], T], /, **options: Unpack[SubmitOptions]
    ) -> Handle[T]: ...
    async def submit(
        self,
        work: Any,
        /,
        *misplaced: object,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> Handle[Any]:
        """Submit a call, or any function of no arguments; return its handle.

        A full pool acts as its backpressure says: it waits (at most `wait` seconds), raises, or
        returns a handle with the status `rejected`. With `connection` the task is part of the
        transaction open on it, and the submit never waits.
        """
        if misplaced:
            raise misplaced_arguments("submit", work, misplaced)
        return Handle(await self._submitter.submit(work, options, wait, connection))

    @overload
    async def submit_many(
        self, works: Iterable[Work[T]], /, **options: Unpack[SubmitOptions]
    ) -> list[Handle[T]]: ...
    @overload
    async def submit_many(
        self, works: Iterable[Callable[[], T]], /, **options: Unpack[SubmitOptions]
    ) -> list[Handle[T]]: ...
    async def submit_many(
        self,
        works: Iterable[Any],
        /,
        *misplaced: object,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> list[Handle[Any]]:
        """Submit many as one batch; return their handles in order.

        The pool takes all of them, or none where it refuses. Options are those of each task.
        """
        if misplaced:
            raise misplaced_arguments("submit_many", works, misplaced)
        return await self._submitter.handles(list(works), options, wait, connection)

    @overload
    async def try_submit(
        self, work: Work[T], /, **options: Unpack[Options]
    ) -> Handle[T] | SubmitRejection: ...
    @overload
    async def try_submit(
        self, work: Callable[[], T], /, **options: Unpack[Options]
    ) -> Handle[T] | SubmitRejection: ...
    async def try_submit(
        self, work: Any, /, *misplaced: object, **options: Unpack[Options]
    ) -> Handle[Any] | SubmitRejection:
        """Submit without ever waiting; return a falsy rejection where `submit` would raise.

        It returns one instead of a handle with the status `rejected`, too.
        """
        if misplaced:
            raise misplaced_arguments("try_submit", work, misplaced)
        answer = await self._submitter.try_submit(work, options)
        if isinstance(answer, Refusal):
            return rejection(answer, self.spec.backpressure)
        handle: Handle[Any] = Handle(answer)
        rejected = dropped(self.name, handle)
        return handle if rejected is None else rejected

    @overload
    def map(
        self,
        fn: WorkOnItem[T, R],
        items: Iterable[T] | AsyncIterable[T],
        /,
        *,
        progress: bool = False,
        **options: Unpack[Options],
    ) -> Mapped[R]: ...
    @overload
    def map(
        self,
        fn: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        /,
        *,
        progress: bool = False,
        **options: Unpack[Options],
    ) -> Mapped[R]: ...
    def map(
        self,
        fn: Any,
        items: Iterable[Any] | AsyncIterable[Any],
        /,
        *,
        progress: bool = False,
        **options: Unpack[Options],
    ) -> Mapped[Any]:
        """Run `fn` on each item; await it for the list of results, or iterate over them, in order.

        It takes items as the pool has room for them, so there may be endlessly many.
        `progress` draws a bar on stderr, of rich or tqdm where one is installed.
        """
        return Mapped(self._internals, fn, items, checked(options), progress=progress)

    # Runs

    async def when_all(
        self,
        calls: Iterable[BoundCall[T]],
        /,
        *,
        then: Callback,
        run: str | None = None,
        on_error: Literal["skip", "fail"] = "skip",
    ) -> list[Handle[T]]:
        """Submit calls as one run, and `then` once when all of them have ended; return the handles.

        The run with its tasks and `then` is stored in one transaction. The function of `then` gets
        `outcome: RunOutcome` first. It waits for what the calls submit through `ctx` as well. With
        a name (`run`) a second submit of the run does nothing, and returns no handles.
        """
        tasks = await self._runs.when_all(calls, then=then, run=run, on_error=on_error)
        return [Handle(task) for task in tasks]

    drain = delegated(PoolRuns.drain, "_runs")
    run = delegated(PoolRuns.run, "_runs")
    stream = delegated(PoolRuns.stream, "_runs")
    report = delegated(PoolRuns.report, "_runs")

    # Control

    pause = delegated(PoolControl.pause, "_control")
    resume = delegated(PoolControl.resume, "_control")
    resize = delegated(PoolControl.resize, "_control")
    purge = delegated(PoolControl.purge, "_control")
    cancel = delegated(PoolControl.cancel, "_control")
    cancel_all = delegated(PoolControl.cancel_all, "_control")
    redrive = delegated(PoolControl.redrive, "_control")
    close = delegated(PoolControl.close, "_control")

    # Reading

    size = delegated(PoolReader.size, "_reader")
    snapshot = delegated(PoolReader.snapshot, "_reader")
    tasks = delegated(PoolReader.tasks, "_reader")
    lanes = delegated(PoolReader.lanes, "_reader")
