"""A pool, for threads."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from millpond.core.admit import Refusal
from millpond.core.validation import Seconds
from millpond.pool.delegation import on_loop, signature_of
from millpond.pool.handle import SyncHandle
from millpond.pool.loop_bridge import limit_of
from millpond.pool.map import SyncMapped
from millpond.pool.options import Callback, Options, SubmitOptions, checked
from millpond.pool.pool_control import PoolControl
from millpond.pool.pool_properties import PoolProperties
from millpond.pool.pool_reader import PoolReader
from millpond.pool.pool_submitter import PoolSubmitter, look_up_duplicates
from millpond.pool.registration import RegistersBatchTasks
from millpond.pool.rejection import SubmitRejection, dropped, rejection
from millpond.pool.runs.pool_runs import PoolRuns
from millpond.pool.runs.run import SyncRun
from millpond.pool.runs.stream import SyncStream
from millpond.pool.work import misplaced_arguments

if TYPE_CHECKING:
    from typing import Unpack

    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.registered import Registration
    from millpond.pool.runs.report import RunReport
    from millpond.pool.task import BoundCall, Work, WorkOnItem

T = TypeVar("T")
R = TypeVar("R")


class SyncPool(PoolProperties, RegistersBatchTasks):
    """A pool, for threads: `pool.sync`, or `mp.sync.get_pool(name)`."""

    def __init__(self, pool: DeclaredPool, runs: PoolRuns, register: Callable[..., Any]) -> None:
        self._internals = pool
        self._bridge = pool.owner.bridge
        self._pool_register = register
        self._submitter = PoolSubmitter(pool)
        self._control = PoolControl(pool)
        self._runs = runs
        self._reader = PoolReader(pool)

    def __repr__(self) -> str:
        return f"<sync <pool {self.id}>>"

    def _register(self, fn: Callable[..., Any] | None, given: Registration) -> Any:  # noqa: ANN401
        return self._pool_register(fn, given)

    # Submitting

    @overload
    def submit(self, work: Work[T], /, **options: Unpack[SubmitOptions]) -> SyncHandle[T]: ...
    @overload
    def submit(
        self, work: Callable[[], T], /, **options: Unpack[SubmitOptions]
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

        A full pool acts as its backpressure says: it waits (at most `wait` seconds), raises, or
        returns a handle with the status `rejected`. With `connection` the task is part of the
        transaction open on it, and the submit never waits.
        """
        if misplaced:
            raise misplaced_arguments("submit", work, misplaced)
        if connection is not None:
            return self._within([work], options, connection)[0]
        task = self._bridge.write(self._submitter.submit, work, options, wait)
        return SyncHandle(self._bridge, task)

    def _within(
        self, works: list[Any], options: Options, connection: object
    ) -> list[SyncHandle[Any]]:
        """Submit in this thread: a connection may not work in another."""
        tasks = self._bridge.here(self._submitter.submit_within, works, options, connection)
        if any(task.duplicate for task in tasks):
            self._bridge.call(look_up_duplicates, tasks)
        return [SyncHandle(self._bridge, task) for task in tasks]

    @overload
    def submit_many(
        self, works: Iterable[Work[T]], /, **options: Unpack[SubmitOptions]
    ) -> list[SyncHandle[T]]: ...
    @overload
    def submit_many(
        self, works: Iterable[Callable[[], T]], /, **options: Unpack[SubmitOptions]
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
        tasks = self._bridge.write(self._submitter.submit_many, given, options, wait)
        return [SyncHandle(self._bridge, task) for task in tasks]

    @overload
    def try_submit(
        self, work: Work[T], /, **options: Unpack[Options]
    ) -> SyncHandle[T] | SubmitRejection: ...
    @overload
    def try_submit(
        self, work: Callable[[], T], /, **options: Unpack[Options]
    ) -> SyncHandle[T] | SubmitRejection: ...
    def try_submit(
        self, work: Any, /, *misplaced: object, **options: Unpack[Options]
    ) -> SyncHandle[Any] | SubmitRejection:
        """Submit without ever waiting; return a falsy rejection where `submit` would raise."""
        if misplaced:
            raise misplaced_arguments("try_submit", work, misplaced)
        answer = self._bridge.write(self._submitter.try_submit, work, options)
        if isinstance(answer, Refusal):
            return rejection(answer, self.spec.backpressure)
        handle: SyncHandle[Any] = SyncHandle(self._bridge, answer)
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
    ) -> SyncMapped[R]: ...
    @overload
    def map(
        self,
        fn: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        /,
        *,
        progress: bool = False,
        **options: Unpack[Options],
    ) -> SyncMapped[R]: ...
    def map(
        self,
        fn: Any,
        items: Iterable[Any] | AsyncIterable[Any],
        /,
        *,
        progress: bool = False,
        **options: Unpack[Options],
    ) -> SyncMapped[Any]:
        """Run `fn` on each item; `get()` for the list of results, or iterate over them, in order.

        It takes items as the pool has room for them, so there may be endlessly many.
        `progress` draws a bar on stderr, of rich or tqdm where one is installed.
        """
        return SyncMapped(
            self._bridge, self._internals, fn, items, checked(options), progress=progress
        )

    # Runs

    @signature_of(PoolRuns.drain)
    def drain(
        self,
        seed: Iterable[BoundCall[Any]] | None = None,
        /,
        *,
        timeout: Seconds | None = None,
        **options: Any,  # noqa: ANN401 - as there
    ) -> RunReport:
        """Run a seed and all that it submits to the end; without one, wait for an idle pool."""
        calls = None if seed is None else list(seed)
        return self._bridge.within(limit_of(timeout), self._runs.drain, calls, **options)

    @signature_of(PoolRuns.run)
    def run(self, *given: Any, **named: Any) -> SyncRun:  # noqa: ANN401 - as there
        """Open a run: `with pool.sync.run("nightly") as run: run.submit(...)`."""
        return SyncRun(self._bridge, self._runs.run(*given, **named))

    def when_all(
        self,
        calls: Iterable[BoundCall[T]],
        /,
        *,
        then: Callback,
        run: str | None = None,
        on_error: Literal["skip", "fail"] = "skip",
    ) -> list[SyncHandle[T]]:
        """Submit calls as one run, and `then` once when all of them have ended; return the handles.

        The run with its tasks and `then` is stored in one transaction. The function of `then` gets
        `outcome: RunOutcome` first. It waits for what the calls submit through `ctx` as well. With
        a name (`run`) a second submit of the run does nothing, and returns no handles.
        """
        given = list(calls)
        write, when_all = self._bridge.write, self._runs.when_all
        tasks = write(lambda: when_all(given, then=then, run=run, on_error=on_error))
        return [SyncHandle(self._bridge, task) for task in tasks]

    @signature_of(PoolRuns.stream)
    def stream(self, *given: Any, **named: Any) -> SyncStream:  # noqa: ANN401 - as there
        """Run a seed; `with ... as outcomes: for outcome in outcomes`."""
        return SyncStream(self._bridge, self._runs.stream(*given, **named))

    report = on_loop(PoolRuns.report, "_runs")

    # Control

    pause = on_loop(PoolControl.pause, "_control", writes=True)
    resume = on_loop(PoolControl.resume, "_control", writes=True)
    resize = on_loop(PoolControl.resize, "_control", writes=True)
    purge = on_loop(PoolControl.purge, "_control", writes=True)
    cancel = on_loop(PoolControl.cancel, "_control", writes=True)
    cancel_all = on_loop(PoolControl.cancel_all, "_control", writes=True)
    close = on_loop(PoolControl.close, "_control", writes=True)

    def redrive(self, tasks: Iterable[int | SyncHandle[Any]], /) -> int:
        """Queue failed or cancelled tasks again, with a new budget of attempts; return how many."""
        chosen = [one if isinstance(one, int) else one.id for one in tasks]
        return self._bridge.write(self._control.redrive, chosen)

    # Reading

    size = on_loop(PoolReader.size, "_reader")
    snapshot = on_loop(PoolReader.snapshot, "_reader")
    tasks = on_loop(PoolReader.tasks, "_reader")
    lanes = on_loop(PoolReader.lanes, "_reader")
