"""An open run, on the loop and for threads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.core.control import CallWhenOver, Seal
from millpond.errors import ConfigError, RunOverBudget, RunStopped
from millpond.pool.handle import Handle, SyncHandle
from millpond.pool.internals import internals_of
from millpond.pool.options import checked
from millpond.pool.pool_submitter import PoolSubmitter
from millpond.pool.runs.opening import encoded_callback, new_run, open_run
from millpond.pool.runs.report import RunReport, report_of
from millpond.pool.runs.watch import concluded, finish

if TYPE_CHECKING:
    from typing import Self, Unpack

    from millpond.core.run import RunView
    from millpond.core.validation import Seconds
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.loop_bridge import LoopBridge
    from millpond.pool.options import Callback, Options
    from millpond.pool.task import BoundCall, TaskFunction

T = TypeVar("T")


class Run:
    """An open run: the tasks submitted through it, and those that they submit.

    Open it with `async with pool.run("nightly") as run:`. Leaving the block waits for the end of
    the run; leaving it with an error cancels it.
    """

    def __init__(
        self, pool: DeclaredPool, name: str | None, *, on_error: str, max_tasks: int | None
    ) -> None:
        self._pool = pool
        self._name = name
        self._on_error = on_error
        self._max_tasks = max_tasks
        self._view: RunView | None = None
        self.report: RunReport | None = None
        """The report of the run, once the block is left."""

    def __repr__(self) -> str:
        return f"<run {self._name!r} of pool {self._pool.name!r}>"

    @property
    def finished_before(self) -> bool:
        """Whether a run of this name had ended before; it takes no more tasks."""
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
        """Submit one task of the run; return its handle.

        It raises RunStopped if the run was stopped, and RunOverBudget beyond its `max_tasks`.
        """
        return (await self.submit_many([work], wait=wait, **options))[0]

    async def submit_many(
        self,
        works: Iterable[BoundCall[T] | TaskFunction[[], T, Any]],
        /,
        *,
        wait: Seconds | None = None,
        **options: Unpack[Options],
    ) -> list[Handle[T]]:
        """Submit tasks of the run as one batch: the store takes all of them, or none."""
        view = self._opened()
        try:
            submit = PoolSubmitter(self._pool).submit_batch
            tasks = await submit(list(works), checked(options), wait, view.id)
        except RunStopped as refusal:
            refusal.run = self._name
            if isinstance(refusal, RunOverBudget) and self._max_tasks is not None:
                refusal.max_tasks = self._max_tasks
            raise
        return [Handle(task) for task in tasks]

    async def on_complete(self, call: Callback, /) -> None:
        """Submit a call once when the run has ended, whatever process ends it.

        Its function gets `outcome: RunOutcome` first. The store has it before this returns, and
        submits it in the transaction that ends the run. A second call replaces the first.
        """
        view, runtime = self._opened(), self._pool.runtime
        answer = await runtime.store.control(CallWhenOver(view.id, encoded_callback(call)))
        if not answer.count:
            raise RunStopped(
                f"the run {self._name!r} had ended: its callback was not set",
                pool=self._pool.name,
                run=self._name,
                report=report_of(view),
            )

    def _opened(self) -> RunView:
        if self._view is None:
            raise ConfigError("run", self._name, "is not open: use `async with pool.run(...)`")
        return self._view

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
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


class SyncRun:
    """An open run, for threads: `with pool.sync.run("nightly") as run: run.submit(...)`.

    Leaving the block waits for the end of the run; leaving it with an error cancels it.
    """

    def __init__(self, bridge: LoopBridge, run: Run) -> None:
        self._bridge = bridge
        self._run = run

    @property
    def report(self) -> RunReport | None:
        """The report of the run, once the block is left."""
        return self._run.report

    @property
    def finished_before(self) -> bool:
        """Whether a run of this name had ended before; it takes no more tasks."""
        return self._run.finished_before

    def __enter__(self) -> Self:
        self._bridge.write(self._run.__aenter__)
        return self

    def submit(
        self,
        work: BoundCall[T] | TaskFunction[[], T, Any],
        /,
        *,
        wait: Seconds | None = None,
        **options: Unpack[Options],
    ) -> SyncHandle[T]:
        """Submit one task of the run; return its handle.

        It raises RunStopped if the run was stopped, and RunOverBudget beyond its `max_tasks`.
        """
        return self.submit_many([work], wait=wait, **options)[0]

    def submit_many(
        self,
        works: Iterable[BoundCall[T] | TaskFunction[[], T, Any]],
        /,
        *,
        wait: Seconds | None = None,
        **options: Unpack[Options],
    ) -> list[SyncHandle[T]]:
        """Submit tasks of the run as one batch: the store takes all of them, or none."""
        given = list(works)
        handles = self._bridge.write(lambda: self._run.submit_many(given, wait=wait, **options))
        return [SyncHandle(self._bridge, internals_of(handle)) for handle in handles]

    def on_complete(self, call: Callback, /) -> None:
        """Submit a call once when the run has ended, whatever process ends it.

        Its function gets `outcome: RunOutcome` first. The store has it before this returns, and
        submits it in the transaction that ends the run. A second call replaces the first.
        """
        self._bridge.write(self._run.on_complete, call)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bridge.call(self._run.__aexit__, kind)
