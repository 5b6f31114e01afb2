"""Runs: a seed of tasks and everything they submit, watched to its end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.admit import Reason
from millpond.core.control import Seal
from millpond.core.lifecycle import Status
from millpond.core.run import NewRun, OnError, RunView
from millpond.core.task import CALLBACKS
from millpond.errors import (
    ConfigError,
    RunFailed,
    RunOverBudget,
    RunStopped,
    StoreClosed,
    Stuck,
    WouldDeadlock,
)
from millpond.pool.outcome import Outcome, decoded
from millpond.pool.run_results import RunEnds
from millpond.pool.temporary_worker import serving
from millpond.runtime.error_info import read
from millpond.runtime.observe.probe import submission
from millpond.runtime.waiting.deadlock import job_that_waits, waiting_for

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, Unpack

    from millpond.core.task import Task
    from millpond.core.validation import Seconds
    from millpond.pool.handle import Handle
    from millpond.pool.options import Options
    from millpond.pool.pool import Pool
    from millpond.pool.task import BoundCall, TaskFunction
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.waiting.task_result import TaskResult

T = TypeVar("T")

STUCK_AFTER = 5.0
"""Seconds for which nothing of a run can move before it is called stuck."""


A_MOMENT = 0.02
"""Seconds between two looks at a pool that others use, while it is waited for."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run, or a drain, came to."""

    pool: str
    """The pool it was drained in."""
    name: str | None
    """The name of the run."""
    total: int
    """Tasks it had: seed, follow-ups and all."""
    completed: int
    """Those that completed."""
    failed: int
    """Those that failed."""
    cancelled: int
    """Those that were cancelled."""
    rejected: int
    """Those that a full queue dropped."""
    finished_before: bool = False
    """The run of that name had ended already: nothing was seeded."""
    resumed: bool = False
    """The run of that name was under way: nothing was seeded, what was left went on."""

    @property
    def ok(self) -> bool:
        """Whether every task completed."""
        return self.completed == self.total


def report_of(view: RunView) -> RunReport:
    """Return the report of a run; one that was taken up again after its end says so."""
    finished_before = view.finished and view.resumed
    return RunReport(
        pool=view.pool,
        name=view.name,
        total=view.total,
        completed=view.ended.get(Status.COMPLETED, 0),
        failed=view.ended.get(Status.FAILED, 0),
        cancelled=view.ended.get(Status.CANCELLED, 0),
        rejected=view.ended.get(Status.REJECTED, 0),
        finished_before=finished_before,
        resumed=view.resumed and not finished_before,
    )


def new_run(
    pool: Pool,
    name: str | None,
    on_error: str,
    max_tasks: int | None,
    *,
    holder: str | None = None,
) -> NewRun:
    """Return a run to open."""
    if name is not None:
        check.storable("run", name, bounds.MAX_RUN_NAME)
    if max_tasks is not None:
        check.integer("max_tasks", max_tasks, least=1)
    return NewRun(
        id=pool.runtime.new_id(),
        pool=pool.spec.name,
        name=name,
        on_error=OnError(check.one_of("on_error", on_error, ("skip", "fail"))),
        max_tasks=max_tasks,
        holder=holder,
    )


async def open_run(pool: Pool, new: NewRun, seed: Sequence[BoundCall[Any]]) -> RunView:
    """Open a run with its seed, or take one up under its name."""
    from millpond.pool.submit import refused  # noqa: PLC0415 - submit knows pools

    with submission(pool.runtime, pool.spec.name, len(seed)) as watched:
        batch, _, closures = await pool.prepared(list(seed), {}, new.id, new)
        watched.made(batch.tasks)
        answer = watched.answered(await pool.sent(batch, closures, None))
    if answer.refusal is not None:
        if answer.refusal.reason is Reason.OVER_BUDGET:
            raise RunOverBudget(
                f"the seed of {len(seed)} tasks is above max_tasks={new.max_tasks}; nothing ran",
                pool=pool.spec.name,
                run=new.name,
                report=None,
                max_tasks=new.max_tasks,
            )
        raise refused(answer.refusal, len(seed))
    assert answer.run is not None  # noqa: S101 - a batch that opens a run is answered with it
    return answer.run


async def drain_run(
    pool: Pool,
    seed: Sequence[BoundCall[Any]],
    *,
    name: str | None,
    on_error: str,
    max_tasks: int | None,
    progress: bool,
    timeout: float | None,  # noqa: ASYNC109 - the drain's own limit
) -> RunReport:
    """Run a seed and all it grows into; return when nothing of it is queued or running."""
    view = await open_run(pool, new_run(pool, name, on_error, max_tasks), seed)
    if view.finished and view.resumed:
        return report_of(view)
    bar = _Bar(pool.runtime, view.id) if progress else None
    async with asyncio.timeout(timeout):
        ended = await finish(pool, view.id, bar)
    return await concluded(pool, ended, max_tasks, resumed=view.resumed)


async def concluded(
    pool: Pool, view: RunView, max_tasks: int | None, *, resumed: bool
) -> RunReport:
    """Return the report of a run that was waited for, or raise what stopped it."""
    report = msgspec.structs.replace(report_of(view), resumed=resumed)
    if view.stopped is None:
        return report
    where: dict[str, Any] = {"pool": pool.name, "run": view.name, "report": report}
    told = f"{report.completed} of {report.total} tasks completed, the rest was cancelled"
    match view.stopped:
        case Reason.RUN_FAILED:
            why, cause = await _first_failure(pool.runtime, view)
            raise RunFailed(
                f"task {view.failed_task} of the run failed: {why}; {told}",
                task_id=view.failed_task,
                **where,
            ) from cause
        case Reason.OVER_BUDGET:
            raise RunOverBudget(
                f"the run grew beyond max_tasks={max_tasks}; {told}", max_tasks=max_tasks, **where
            )
        case _:
            raise RunStopped(f"the run was stopped ({view.stopped}); {told}", **where)


async def _first_failure(runtime: Runtime, view: RunView) -> tuple[str, BaseException | None]:
    """Return why the task that stopped a run failed, and the exception if it was raised here."""
    task = await runtime.view.task(view.failed_task or 0)
    if task is None:
        return "it is not kept any more", None
    told = read(task.error)
    return str(told or task.reason or "unknown"), runtime.waiting.read(task).cause


async def finish(pool: Pool, run: int, bar: _Bar | None = None) -> RunView:
    """Wait for the end of a run; raise Stuck if nothing of it can move any more."""
    runtime = pool.runtime
    over = asyncio.Event()
    runtime.waiting.on_run(run, over.set)
    still: tuple[float, RunView] | None = None
    try:
        while True:
            view = await runtime.view.run(run)
            if view is None:
                raise runtime.waiting.unknown(run)
            if bar is not None:
                bar.draw(view)
            if view.finished:
                return view
            runtime.must_be_open()
            if not await _nothing_moves(runtime, view):
                still = None
            elif still is None or still[1] != view:
                still = runtime.steady(), view
            elif runtime.steady() - still[0] >= STUCK_AFTER:
                raise await _stuck(runtime, view)
            async with waiting_for(runtime, await _one_that_waits(runtime, view)):
                await _either(over, STUCK_AFTER if not bar else 0.1)
            if over.is_set():
                over.clear()
                runtime.waiting.on_run(run, over.set)
    except StoreClosed:
        # It was asked in the moment in which everything was closed: tell that, whatever the store.
        runtime.must_be_open()
        raise
    finally:
        runtime.waiting.forget_run(run, over.set)
        if bar is not None:
            bar.done()


async def _one_that_waits(runtime: Runtime, view: RunView) -> int | None:
    """Return a task of a run that is not running, if a handler is the one who waits for the run."""
    if job_that_waits(runtime) is None:
        return None
    left = await runtime.view.run_tasks(view.id, limit=50)
    return next((task.new.id for task in left if task.status is Status.QUEUED), None)


async def _either(over: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await over.wait()


async def _nothing_moves(runtime: Runtime, view: RunView) -> bool:
    """Return whether everything left of a run is paused, parked or served by nobody.

    Most often one of the first few can move; only where none can is all of it looked at.
    """
    seen, limit = 0, 50
    while seen < view.live:
        left = await runtime.view.run_tasks(view.id, limit=limit)
        for task in left[seen:]:
            if task.status is Status.RUNNING or not await _held_back(runtime, task):
                return False
        if len(left) < limit:
            return bool(left)
        seen, limit = len(left), 10 * limit
    return bool(seen)


async def _held_back(runtime: Runtime, task: Task) -> bool:
    view = await runtime.view.pool(task.new.pool, measured=False)
    if view is None or task.parked or view.paused or view.spec.max_concurrent == 0:
        return True
    if task.unit is not None and task.unit in view.paused_units:
        return True
    return not runtime.shared and not runtime.served(task.new.pool)


async def _stuck(runtime: Runtime, view: RunView) -> Stuck:
    left = await runtime.view.run_tasks(view.id, limit=5)
    named = tuple([f"{task.new.id} ({await _why(runtime, task)})" for task in left])
    return Stuck(
        f"the run cannot go on: {view.live} task(s) left and none can start: {', '.join(named)}; "
        "resume what is paused, or start a worker that knows them, and drain again under its name",
        pool=view.pool,
        run=view.name,
        tasks=named,
    )


async def _why(runtime: Runtime, task: Task) -> str:
    if task.parked and task.misfits:
        return f"its arguments do not fit function {task.new.call.function!r}: {read(task.error)}"
    if task.parked:
        return f"no worker knows function {task.new.call.function!r}"
    view = await runtime.view.pool(task.new.pool, measured=False)
    if view is not None and view.paused:
        return f"pool {task.new.pool!r} is paused"
    if view is not None and task.unit is not None and task.unit in view.paused_units:
        return f"{task.unit!r} of pool {task.new.pool!r} is paused"
    if view is not None and view.spec.max_concurrent == 0:
        return f"pool {task.new.pool!r} has max_concurrent=0"
    return f"no worker serves pool {task.new.pool!r}"


async def drain_idle(pool: Pool, timeout: float | None) -> RunReport:  # noqa: ASYNC109
    """Wait until nothing of a pool is queued or running, its callbacks included."""
    runtime = pool.runtime
    job = job_that_waits(runtime)
    if job is not None and job.leased.pool.removesuffix(CALLBACKS) == pool.spec.name:
        message = (
            f"task {job.id} waits for pool {pool.name!r} to be idle, which it is not before that "
            "task has ended; drain it from outside"
        )
        raise WouldDeadlock(message, pool=pool.spec.name, task_id=job.id, awaited=job.id)
    before = await runtime.view.pool(pool.spec.name, measured=False)
    totals = dict(before.totals) if before is not None else {}
    changed = asyncio.Event()
    key = object()

    def heard(_task: int, _end: TaskResult | None) -> None:
        changed.set()

    runtime.waiting.listen(key, heard)
    try:
        async with asyncio.timeout(timeout):
            while await _busy(runtime, pool.spec.name):
                await _either(changed, STUCK_AFTER)
                changed.clear()
                if runtime.shared:
                    # Others end things all the time: how it stands is asked for now and then.
                    await asyncio.sleep(A_MOMENT)
                runtime.must_be_open()
    except StoreClosed:
        runtime.must_be_open()
        raise
    finally:
        runtime.waiting.listen(key, None)
    after = await runtime.view.pool(pool.spec.name, measured=False)
    now = dict(after.totals) if after is not None else {}
    ended = {status: now.get(status, 0) - totals.get(status, 0) for status in now}
    return RunReport(
        pool=pool.spec.name,
        name=None,
        total=sum(ended.values()),
        completed=ended.get(Status.COMPLETED, 0),
        failed=ended.get(Status.FAILED, 0),
        cancelled=ended.get(Status.CANCELLED, 0),
        rejected=ended.get(Status.REJECTED, 0),
    )


async def _busy(runtime: Runtime, name: str) -> bool:
    for one in (name, name + CALLBACKS):
        view = await runtime.view.pool(one, measured=False)
        if view is not None and view.queued + view.running:
            return True
    return False


class Run:
    """An open run: everything submitted through it, and by what it submits, is one piece of work.

    Leaving the block waits for its end; leaving it with an error cancels what waits.
    """

    def __init__(
        self, pool: Pool, name: str | None, *, on_error: str, max_tasks: int | None
    ) -> None:
        self._pool = pool
        self._name = name
        self._on_error = on_error
        self._max_tasks = max_tasks
        self._view: RunView | None = None
        self.report: RunReport | None = None
        """What it came to, once the block is left."""

    def __repr__(self) -> str:
        return f"<run {self._name!r} of pool {self._pool.name!r}>"

    @property
    def finished_before(self) -> bool:
        """Whether a run of this name had ended already; it takes no more tasks."""
        return self._view is not None and self._view.finished and self._view.resumed

    async def __aenter__(self) -> Self:
        await self._pool.ready()
        runtime = self._pool.runtime
        new = new_run(self._pool, self._name, self._on_error, self._max_tasks, holder=runtime.owner)
        runtime.closure_worker.open_runs += 1
        try:
            if runtime.shared:
                await runtime.closure_worker.register()
            self._view = await open_run(self._pool, new, [])
        except BaseException:
            runtime.closure_worker.open_runs -= 1
            raise
        return self

    async def submit(
        self,
        work: BoundCall[T] | TaskFunction[[], T, Any],
        /,
        *,
        wait: Seconds | None = None,
        **options: Unpack[Options],
    ) -> Handle[T]:
        """Submit one task of the run."""
        return (await self.submit_many([work], wait=wait, **options))[0]

    async def submit_many(
        self,
        works: Iterable[BoundCall[T] | TaskFunction[[], T, Any]],
        /,
        *,
        wait: Seconds | None = None,
        **options: Unpack[Options],
    ) -> list[Handle[T]]:
        """Submit tasks of the run as one batch."""
        if self._view is None:
            raise ConfigError("run", self._name, "is not open: use `async with pool.run(...)`")
        try:
            return await self._pool.submit_into(self._view.id, list(works), options, wait)
        except RunStopped as refusal:
            refusal.run = self._name
            if isinstance(refusal, RunOverBudget) and self._max_tasks is not None:
                refusal.max_tasks = self._max_tasks
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        view = self._view
        if view is None:
            return
        runtime = self._pool.runtime
        if self.finished_before:
            runtime.closure_worker.open_runs -= 1
            self.report = report_of(view)
            return
        try:
            if kind is not None:
                await runtime.control.cancel_run(view.id)
            runtime.answers.apply(await runtime.store.control(Seal(view.id, runtime.owner)))
        finally:
            runtime.closure_worker.open_runs -= 1
        if kind is not None:
            return
        ended = await finish(self._pool, view.id)
        self.report = await concluded(self._pool, ended, self._max_tasks, resumed=view.resumed)


class Stream:
    """The outcomes of a run as they come; leaving early cancels what is left of it."""

    def __init__(
        self,
        pool: Pool,
        seed: Sequence[BoundCall[Any]],
        *,
        name: str | None,
        on_error: str,
        max_tasks: int | None,
    ) -> None:
        self._pool = pool
        self._seed = seed
        self._name = name
        self._on_error = on_error
        self._max_tasks = max_tasks
        self._opened: RunView | None = None
        self._served = contextlib.AsyncExitStack()
        self._ends: asyncio.Queue[int | None] = asyncio.Queue()
        self._read: RunEnds | None = None
        """Where others end tasks, too: what there is to read of it."""
        self._watch: asyncio.Task[None] | None = None
        self._view: RunView | None = None
        self.report: RunReport | None = None

    async def __aenter__(self) -> Self:
        await self._pool.ready()
        runtime = self._pool.runtime
        new = new_run(self._pool, self._name, self._on_error, self._max_tasks)
        runtime.waiting.listen(self, self._heard)
        try:
            await self._served.enter_async_context(serving(self._pool))
            if runtime.shared:
                await self._read_from_here(new)
            view = await open_run(self._pool, new, self._seed)
            if self._read is not None:
                self._read.run = view.id
        except BaseException:
            runtime.waiting.listen(self, None)
            await self._served.aclose()
            raise
        self._opened = view
        self._watch = runtime.spawn(self._until_over(view.id))
        return self

    async def _read_from_here(self, new: NewRun) -> None:
        """Note what has ended so far; a run of that name may be under way."""
        runtime = self._pool.runtime
        known = None if new.name is None else await runtime.view.run_named(new.pool, new.name)
        self._read = RunEnds(runtime, new.id if known is None else known.id)
        await self._read.begin()

    def _heard(self, task: int, _end: TaskResult | None) -> None:
        if self._read is None or self._ends.empty():
            # One is enough to make it read all there is.
            self._ends.put_nowait(task)

    async def _until_over(self, run: int) -> None:
        try:
            self._view = await finish(self._pool, run)
        finally:
            self._ends.put_nowait(None)

    def __aiter__(self) -> AsyncIterator[Outcome]:
        return self._outcomes()

    async def _outcomes(self) -> AsyncIterator[Outcome]:
        runtime, opened = self._pool.runtime, self._opened
        assert opened is not None  # noqa: S101 - the block was entered
        over = False
        while not over or not self._ends.empty():
            task = await self._ends.get()
            over = over or task is None
            if self._read is not None:
                runtime.must_be_open()
                async for ended in self._read.more():
                    yield self._outcome(ended)
                continue
            record = None if task is None else await runtime.view.task(task)
            if record is None or record.new.run != opened.id or record.new.is_callback:
                continue
            if record.status.terminal:
                yield self._outcome(record)
        assert self._watch is not None  # noqa: S101
        await asyncio.wait((self._watch,))
        if self._watch.cancelled():
            # By the end of everything: whoever waits here was not cancelled.
            runtime.must_be_open()
        self._watch.result()
        assert self._view is not None  # noqa: S101
        if opened.finished and opened.resumed:
            self.report = report_of(opened)
            return
        self.report = await concluded(
            self._pool, self._view, self._max_tasks, resumed=opened.resumed
        )

    def _outcome(self, task: Task) -> Outcome:
        end = self._pool.runtime.waiting.read(task)
        result = end.value
        if result is None and end.result is not None:
            known = self._pool.millpond.tasks
            function = task.new.call.function
            result = decoded(task.new.id, task.new.pool, function, end.result, known)
        return Outcome(
            task_id=task.new.id,
            pool=task.new.pool,
            function=task.new.call.function,
            status=str(task.status),
            key=task.new.key,
            labels=task.new.labels,
            result=result,
            result_stored=end.value is not None
            or task.result is not None
            or task.status is not Status.COMPLETED,
            error=read(task.error),
            reason=task.reason,
            attempts=task.attempt,
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        runtime = self._pool.runtime
        runtime.waiting.listen(self, None)
        try:
            if self._watch is not None and not self._watch.done():
                await runtime.control.cancel_run(self._opened.id if self._opened is not None else 0)
                self._watch.cancel()
            if self._watch is not None:
                await asyncio.gather(self._watch, return_exceptions=True)
        finally:
            await self._served.aclose()


class _Bar:
    """A line on the terminal that shows how far a run has come; in a log, only the last one."""

    def __init__(self, runtime: Runtime, run: int) -> None:
        self._runtime = runtime
        self._run = run
        self._live = sys.stderr.isatty()
        self._last = ""

    def draw(self, view: RunView) -> None:
        """Show the run as it is now."""
        ended = sum(view.ended.values())
        width = 30
        filled = width * ended // max(view.total, 1)
        failed = view.ended.get(Status.FAILED, 0)
        line = f"{'█' * filled}{'░' * (width - filled)} {ended}/{view.total}"
        if failed:
            line += f"  {failed} failed"
        if line != self._last:
            self._last = line
            if self._live:
                sys.stderr.write(f"\r{line}")
                sys.stderr.flush()

    def done(self) -> None:
        """End the line."""
        if self._last:
            sys.stderr.write("\n" if self._live else f"{self._last}\n")
            sys.stderr.flush()
