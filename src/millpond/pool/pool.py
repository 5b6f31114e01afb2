"""The pool: one name, one budget, one queue, whoever submits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from millpond.core import control
from millpond.core import validation as check
from millpond.core.control import Command
from millpond.core.lifecycle import Status
from millpond.core.validation import Seconds
from millpond.errors import ConfigError
from millpond.pool.caller_transaction import submit_joined, submit_within
from millpond.pool.context import Context, SyncContext
from millpond.pool.handle import CancelMode, Handle
from millpond.pool.lane_or_key import unit_of
from millpond.pool.map import Mapped
from millpond.pool.options import Options, checked, moment
from millpond.pool.outcome import Outcome
from millpond.pool.rejection import SubmitRejection, rejection
from millpond.pool.run import Run, RunReport, Stream, drain_idle, drain_run
from millpond.pool.scope import check_scope, default_scope
from millpond.pool.snapshot import LaneStatus, Snapshot, TaskInfo, snapshot, tasks
from millpond.pool.submit import (
    UNLIMITED,
    as_work,
    misplaced_arguments,
    new_closure,
    new_task,
    refused,
)
from millpond.pool.task import (
    BatchDecorator,
    BoundCall,
    Executor,
    KeyOf,
    Optioned,
    Running,
    TaskDecorator,
    TaskFunction,
    default_options,
)
from millpond.pool.temporary_worker import serving
from millpond.runtime.jobs.policy import DEFAULT_RETRY
from millpond.runtime.observe.probe import submission
from millpond.store.protocol import Batch, BatchAnswer

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Unpack

    from millpond.core.run import NewRun
    from millpond.core.spec import PoolSpec
    from millpond.core.task import NewTask
    from millpond.pool.millpond import Millpond
    from millpond.pool.sync.api import SyncPool
    from millpond.runtime.jobs.job import Closure
    from millpond.runtime.jobs.policy import Policy
    from millpond.runtime.runtime import Runtime
    from millpond.store.protocol import ControlAnswer

_NOTHING: dict[str, Any] = {}

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class Pool:
    """A named pool of one Millpond. Make it with `mp.pool(...)`."""

    def __init__(
        self,
        mp: Millpond,
        spec: PoolSpec,
        *,
        name: str,
        scope: str | None,
        scope_id: str | None,
        retry: Policy | None,
        created_at: float,
    ) -> None:
        self._mp = mp
        self.spec = spec
        self.name = name
        """Its name; pools of other scopes may have the same. The store knows it as `spec.name`."""
        self._scope = scope
        self.scope_id = scope_id
        self.retry = retry
        self.attempts: int = getattr(retry or DEFAULT_RETRY, "attempts", UNLIMITED)
        """How many charged runs a task has here that says nothing else."""
        self.created_at = created_at
        self.foreign = False
        """Whether another process declared it: it is used here, and neither declared nor served."""
        self._sync: SyncPool | None = None

    @property
    def scope(self) -> str:
        """How far it reaches: `session` in memory, `app` in a store that lasts, or as declared."""
        return self._scope or default_scope(durable=self._mp.durable)

    def check_scope(self) -> None:
        """Object to a store that cannot have pools of this scope."""
        check_scope(self._scope, self.scope_id, durable=self._mp.durable)

    @property
    def id(self) -> str:
        """Its id: scope, scope id and name; the same in every process."""
        return f"{self.scope}:{self.scope_id or ''}:{self.name}"

    @property
    def runtime(self) -> Runtime:
        """The runtime of the open Millpond; NotOpen while it is closed."""
        return self._mp.runtime

    @property
    def sync(self) -> SyncPool:
        """The same pool for threads."""
        if self._sync is None:
            self._sync = self._mp.sync.pool_of(self)
        return self._sync

    def __repr__(self) -> str:
        return f"<pool {self.id}>"

    # Registering

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
        """Register a function as a task of this pool; any pool of the Millpond takes its calls."""
        return self._mp.register(
            self,
            fn,
            name=name,
            key=key,
            aliases=aliases,
            executor=executor,
            defaults=default_options(timeout, retry, priority),
        )

    def batch_task(
        self,
        *,
        size: int = 64,
        linger: Seconds = 0.05,
        name: str | None = None,
        key: KeyOf | None = None,
        aliases: Iterable[str] = (),
        timeout: Seconds | None = None,
        retry: Policy | None = None,
        priority: int | None = None,
    ) -> BatchDecorator:
        """Register a function that takes a list: several tasks in one call, settled each alone.

        It gives one result per item, or `Failed(error)` for one that failed.
        """
        check.integer("size", size, least=1)
        if self.spec.strict:
            raise ConfigError("batch_task", self.name, "cannot be had with lanes or ordered")
        return self._mp.register(  # type: ignore[no-any-return]
            self,
            None,
            name=name,
            key=key,
            aliases=aliases,
            executor=None,
            defaults=default_options(timeout, retry, priority),
            batch=(size, check.seconds("linger", linger)),
        )

    # Submitting

    @overload
    async def submit(
        self,
        work: BoundCall[T],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> Handle[T]: ...
    @overload
    async def submit(
        self,
        work: TaskFunction[[], T, Any],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> Handle[T]: ...
    @overload
    async def submit(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> Handle[T]: ...
    @overload
    async def submit(
        self,
        work: Callable[[], T],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
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

        A full pool answers as its backpressure says: it waits (at most `wait` seconds), raises,
        or gives a handle that says `rejected`. With `connection` it is part of the transaction open
        on it, and never waits.
        """
        if misplaced:
            raise misplaced_arguments("submit", work, misplaced)
        if connection is not None:
            return (await self._joined([work], options, connection))[0]
        runtime = self._mp.runtime
        if runtime.hooks.probes is not None:
            # A batch of one does the same, and is what telemetry sees of a submit.
            return (await self._submit([work], checked(options), wait))[0]
        if self.spec.name not in runtime.declarations.specs:
            await self._mp.ready(self)
        new, closure, decode = self._made(work, checked(options) if options else _NOTHING)
        handle: Handle[Any] = Handle(self, new, decode, runtime.waiting.era)
        limit = None if wait is None else check.seconds("wait", wait)
        if closure is not None:
            if runtime.shared:
                await runtime.closure_worker.serve(self.spec.name)
            runtime.closures[new.id] = closure
        try:
            answer = await runtime.submitter.submit(Batch(tasks=(new,)), wait=limit)
        except BaseException:
            if closure is not None:
                # Failed or cancelled: only the store knows whether it was taken before that.
                runtime.spawn(runtime.closure_worker.forget_unstored((new.id,)))
            raise
        if answer.refusal is not None:
            runtime.closures.pop(new.id, None)
            raise refused(answer.refusal, 1)
        admission = answer.admissions[0]
        handle.admitted(admission, runtime.clock())
        if admission.duplicate or admission.status is Status.REJECTED:
            runtime.closures.pop(new.id, None)
            if admission.duplicate:
                await self._look_up(handle)
        return handle

    def _made(
        self,
        given: object,
        options: Mapping[str, Any],
        run: int | None = None,
    ) -> tuple[NewTask, Closure | None, Callable[[bytes], Any] | None]:
        """Make a task of what was given, with its code if that stays here."""
        work = as_work(given)
        if isinstance(work, BoundCall):
            new = new_task(self, work, options, run=run)
            return new, None, work.function.signature.decode_result
        new, closure = new_closure(self, work, options, run=run)
        return new, closure, None

    @overload
    async def submit_many(
        self,
        works: Iterable[BoundCall[T]],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> list[Handle[T]]: ...
    @overload
    async def submit_many(
        self,
        works: Iterable[Callable[[], Coroutine[Any, Any, T]]],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
    ) -> list[Handle[T]]: ...
    @overload
    async def submit_many(
        self,
        works: Iterable[Callable[[], T]],
        /,
        *,
        wait: Seconds | None = None,
        connection: object = None,
        **options: Unpack[Options],
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
        """Submit many as one batch: stored together, or not at all where the pool can refuse."""
        if misplaced:
            raise misplaced_arguments("submit_many", works, misplaced)
        if connection is not None:
            return await self._joined(list(works), options, connection)
        return await self._submit(list(works), checked(options), wait)

    @overload
    async def try_submit(
        self, work: BoundCall[T], /, **options: Unpack[Options]
    ) -> Handle[T] | SubmitRejection: ...
    @overload
    async def try_submit(
        self, work: TaskFunction[[], T, Any], /, **options: Unpack[Options]
    ) -> Handle[T] | SubmitRejection: ...
    @overload
    async def try_submit(
        self, work: Callable[[], Coroutine[Any, Any, T]], /, **options: Unpack[Options]
    ) -> Handle[T] | SubmitRejection: ...
    @overload
    async def try_submit(
        self, work: Callable[[], T], /, **options: Unpack[Options]
    ) -> Handle[T] | SubmitRejection: ...
    async def try_submit(
        self, work: Any, /, *misplaced: object, **options: Unpack[Options]
    ) -> Handle[Any] | SubmitRejection:
        """Submit without ever waiting; a refusal is returned, falsy, and not raised."""
        if misplaced:
            raise misplaced_arguments("try_submit", work, misplaced)
        with submission(self._mp.runtime, self.spec.name, 1) as watched:
            batch, handles, closures = await self.prepared([work], checked(options))
            watched.made(batch.tasks)
            answer = watched.answered(await self.sent(batch, closures, 0.0))
        if answer.refusal is not None:
            return rejection(answer.refusal, self.spec.backpressure)
        await self._admitted(handles, answer)
        first = handles[0]
        reason = first.rejection_reason
        if reason is None:
            return first
        return SubmitRejection(
            reason=reason, pool=self.name, policy=first.rejection_policy, handle=first
        )

    async def _submit(
        self,
        works: list[Any],
        options: Mapping[str, Any],
        wait: Seconds | None,
        run: int | None = None,
        opening: NewRun | None = None,
    ) -> list[Handle[Any]]:
        if not works and opening is None:
            return []
        with submission(self._mp.runtime, self.spec.name, len(works)) as watched:
            batch, handles, closures = await self.prepared(works, options, run, opening)
            watched.made(batch.tasks)
            limit = None if wait is None else check.seconds("wait", wait)
            answer = watched.answered(await self.sent(batch, closures, limit))
        if answer.refusal is not None:
            raise self._refused(answer, batch)
        await self._admitted(handles, answer)
        return handles

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the open Millpond."""
        return self.runtime.loop

    async def submit_works(self, works: list[Any], options: Mapping[str, Any]) -> list[Handle[Any]]:
        """Submit calls and functions as one batch, with options checked before."""
        return await self._submit(works, options, None)

    async def submit_into(
        self, run: int, works: list[Any], options: Options, wait: Seconds | None
    ) -> list[Handle[Any]]:
        """Submit tasks that belong to a run."""
        return await self._submit(works, checked(options), wait, run)

    async def ready(self) -> None:
        """See to it that the store knows this pool; NotOpen while the Millpond is closed."""
        await self._mp.ready(self)

    @property
    def millpond(self) -> Millpond:
        """The Millpond it belongs to."""
        return self._mp

    async def prepared(
        self,
        works: list[Any],
        options: Mapping[str, Any],
        run: int | None = None,
        opening: NewRun | None = None,
    ) -> tuple[Batch, list[Handle[Any]], dict[int, Closure]]:
        """Make the tasks of a batch, all of them before any is sent."""
        await self._mp.ready(self)
        era = self.runtime.waiting.era
        tasks: list[NewTask] = []
        handles: list[Handle[Any]] = []
        closures: dict[int, Closure] = {}
        for one in works:
            new, closure, decode = self._made(one, options, run)
            if closure is not None:
                closures[new.id] = closure
            tasks.append(new)
            handles.append(Handle(self, new, decode, era))
        return Batch(tasks=tuple(tasks), run=opening), handles, closures

    async def sent(
        self, batch: Batch, closures: dict[int, Closure], wait: float | None
    ) -> BatchAnswer:
        """Send a batch, with the code of its closures at hand; what is not taken is let go."""
        runtime = self._mp.runtime
        if not closures:
            return await runtime.submitter.submit(batch, wait=wait)
        if runtime.shared:
            await runtime.closure_worker.serve(self.spec.name)
        runtime.closures.update(closures)
        try:
            answer = await runtime.submitter.submit(batch, wait=wait)
        except BaseException:
            # Failed or cancelled: only the store knows whether they were taken before that.
            runtime.spawn(runtime.closure_worker.forget_unstored(tuple(closures)))
            raise
        for new, admission in zip_longest(batch.tasks, answer.admissions):
            if admission is None or admission.task != new.id or admission.status == "rejected":
                runtime.closures.pop(new.id, None)
        return answer

    async def _admitted(self, handles: list[Handle[Any]], answer: BatchAnswer) -> None:
        now = self.runtime.clock()
        duplicates = []
        for handle, admission in zip(handles, answer.admissions, strict=True):
            handle.admitted(admission, now)
            if admission.duplicate:
                duplicates.append(handle)
        for handle in duplicates:
            await self._look_up(handle)

    async def _look_up(self, handle: Handle[Any]) -> None:
        """Let a handle tell of the task it stands for: somebody described that one before."""
        record = await self.runtime.view.task(handle.id)
        if record is not None:
            handle.read(record)
        else:
            handle.forgotten()

    def _refused(self, answer: BatchAnswer, batch: Batch) -> Exception:
        assert answer.refusal is not None  # noqa: S101
        return refused(answer.refusal, len(batch.tasks))

    def submit_within(
        self, works: list[Any], options: Options, connection: object
    ) -> list[Handle[Any]]:
        """Submit inside a transaction of the caller's, in its thread and at once."""
        given = checked(options)
        with submission(self._mp.runtime, self.spec.name, len(works)) as watched:
            made = [self._made(work, given) for work in works]
            watched.made([new for new, _, _ in made])
            return submit_within(self, made, connection, watched)

    async def _joined(
        self, works: list[Any], options: Options, connection: object
    ) -> list[Handle[Any]]:
        given = checked(options)
        with submission(self._mp.runtime, self.spec.name, len(works)) as watched:
            made = [self._made(work, given) for work in works]
            watched.made([new for new, _, _ in made])
            handles = await submit_joined(self, made, connection, watched)
        return await self.looked_up(handles)

    async def looked_up(self, handles: list[Handle[Any]]) -> list[Handle[Any]]:
        """Let those handles that stand for tasks known before tell of them."""
        for handle in handles:
            if handle.duplicate:
                await self._look_up(handle)
        return handles

    @overload
    def map(
        self,
        fn: TaskFunction[[T], R, Any] | Optioned[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        /,
        **options: Unpack[Options],
    ) -> Mapped[R]: ...
    @overload
    def map(
        self,
        fn: Callable[[T], Coroutine[Any, Any, R]],
        items: Iterable[T] | AsyncIterable[T],
        /,
        **options: Unpack[Options],
    ) -> Mapped[R]: ...
    @overload
    def map(
        self,
        fn: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        /,
        **options: Unpack[Options],
    ) -> Mapped[R]: ...
    def map(
        self,
        fn: Any,
        items: Iterable[Any] | AsyncIterable[Any],
        /,
        **options: Unpack[Options],
    ) -> Mapped[Any]:
        """Run `fn` on each item; await it for the list of results, or iterate over them, in order.

        Items are taken as there is room for them, so they may be endless.
        """
        return Mapped(self, fn, items, checked(options))

    # Runs

    async def drain(
        self,
        seed: Iterable[BoundCall[Any]] | None = None,
        /,
        *,
        run: str | None = None,
        on_error: Literal["skip", "fail"] = "skip",
        max_tasks: int | None = None,
        progress: bool = False,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the drain's own limit
    ) -> RunReport:
        """Run a seed and everything it submits to the end; without one, wait for an idle pool."""
        await self._mp.ready(self)
        limit = None if timeout is None else check.seconds("timeout", timeout)
        async with serving(self):
            if seed is None:
                return await drain_idle(self, limit)
            return await drain_run(
                self,
                _calls(seed),
                name=run,
                on_error=on_error,
                max_tasks=max_tasks,
                progress=progress,
                timeout=limit,
            )

    def run(
        self,
        name: str | None = None,
        /,
        *,
        on_error: Literal["skip", "fail"] = "skip",
        max_tasks: int | None = None,
    ) -> Run:
        """Open a run: `async with pool.run("nightly") as run: await run.submit(...)`."""
        return Run(self, name, on_error=on_error, max_tasks=max_tasks)

    def stream(
        self,
        seed: Iterable[BoundCall[Any]],
        /,
        *,
        run: str | None = None,
        on_error: Literal["skip", "fail"] = "skip",
        max_tasks: int | None = None,
    ) -> Stream:
        """Run a seed; `async with ... as outcomes: async for outcome in outcomes`."""
        return Stream(self, _calls(seed), name=run, on_error=on_error, max_tasks=max_tasks)

    # Control

    async def pause(self, *, lane: str | int | None = None, key: str | None = None) -> None:
        """Start nothing more, of the pool or of one lane or key; what runs goes on."""
        await self._order(control.Pause(self.spec.name, self._unit(lane, key)))

    async def resume(self, *, lane: str | int | None = None, key: str | None = None) -> None:
        """Start work again."""
        await self._order(control.Resume(self.spec.name, self._unit(lane, key)))

    async def resize(
        self, max_concurrent: int | None = None, *, revision: int | None = None
    ) -> int:
        """Change the limit; a lower one is reached as work ends, 0 pauses, None = as declared.

        Return the revision now in force.
        """
        return (
            await self._order(control.Resize(self.spec.name, max_concurrent, revision))
        ).revision

    async def purge(self, *, lane: str | int | None = None, key: str | None = None) -> int:
        """Cancel everything that waits; return how many."""
        return (await self._order(control.Purge(self.spec.name, self._unit(lane, key)))).count

    async def cancel(self, task: int, /, *, mode: CancelMode = "cooperative") -> bool:
        """Cancel one task of this pool; return whether that changed anything."""
        check.one_of("mode", mode, ("cooperative", "interrupt"))
        await self._mp.ready(self)
        interrupt, of = mode == "interrupt", self.spec.name
        return await self.runtime.control.cancel_one(task, interrupt=interrupt, of=of)

    async def cancel_all(
        self,
        *,
        before: float | datetime | None = None,
        lane: str | int | None = None,
        key: str | None = None,
        mode: CancelMode = "cooperative",
    ) -> int:
        """Cancel every task submitted before a moment, waiting or running; return how many."""
        check.one_of("mode", mode, ("cooperative", "interrupt"))
        unit = self._unit(lane, key)
        limit = moment("before", before)
        interrupt = mode == "interrupt"
        order = control.CancelAll(self.spec.name, limit, unit, interrupt=interrupt)
        answer = await self._order(order)
        self.runtime.control.cancelled_all(
            self.spec.name, before=limit, unit=unit, interrupt=interrupt
        )
        return answer.count

    async def redrive(self, tasks: Iterable[int | Handle[Any]], /) -> int:
        """Queue failed or cancelled tasks of this pool again; return how many.

        Each has a new budget of attempts.
        """
        if isinstance(tasks, (int, str, Handle)):
            raise TypeError(f"redrive() takes a list of ids or handles: [{tasks!r}]")
        chosen = tuple(one.id if isinstance(one, Handle) else one for one in tasks)
        return (await self._order(control.Redrive(chosen, self.spec.name))).count

    async def close(self) -> None:
        """Take no more work from outside, for good; what is queued still runs."""
        await self._order(control.Close(self.spec.name))

    async def _order(self, order: Command) -> ControlAnswer:
        await self._mp.ready(self)
        runtime = self.runtime
        answer = await runtime.control.order(order)
        runtime.control.give_back_prefetched(self.spec.name)
        runtime.maintenance.nudge()
        # Whoever waits for room is told of a pool that was closed, or has some now.
        runtime.submitter.room(self.spec.name)
        return answer

    def _unit(self, lane: str | int | None, key: str | None) -> str | None:
        """Return the lane or key an order is about."""
        return unit_of(self.spec, self.name, lane, key)

    # Looking

    async def size(self) -> int:
        """Return how many tasks run or wait."""
        await self._mp.ready(self)
        view = await self.runtime.view.pool(self.spec.name, measured=False)
        return 0 if view is None else view.running + view.queued

    async def snapshot(self) -> Snapshot:
        """Return the pool at this moment: counts, limits, settings, ages."""
        await self._mp.ready(self)
        return await snapshot(self)

    async def tasks(
        self,
        *,
        status: str | None = None,
        key: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[TaskInfo]:
        """Return a page of its tasks, oldest first; go on after the last one's `seq`."""
        await self._mp.ready(self)
        return await tasks(self, status=status, key=key, after=after, limit=limit)

    async def lanes(self) -> list[LaneStatus]:
        """Return each lane: its state, what waits, how many it has processed."""
        await self._mp.ready(self)
        found = await self.runtime.view.lanes(self.spec.name)
        return [LaneStatus.of(view) for view in found]


def _calls(seed: Iterable[BoundCall[Any]]) -> list[BoundCall[Any]]:
    """Return the calls a run begins with; one alone must be put into a list."""
    if isinstance(seed, (BoundCall, TaskFunction)):
        raise TypeError(f"a run is seeded with a list of calls: [{seed!r}]")
    return list(seed)
