"""The context of an attempt: what a handler knows of its task, and what it can do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.control import SaveStep
from millpond.core.task import CALLBACKS
from millpond.errors import ConfigError, NotSupported
from millpond.pool.follow_ups import follow_ups, invocations, undeclared
from millpond.pool.handle import Handle
from millpond.pool.handler_transaction import HOLD, SyncTransaction, Transaction
from millpond.pool.internals import internals_of
from millpond.pool.payload.codec import PLAIN, Refused
from millpond.runtime.fork_safety import must_not_be_child
from millpond.runtime.jobs.job import CancelReason
from millpond.runtime.runtime_of_job import runtime_of
from millpond.runtime.worker.commit import commit_with

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from typing import Unpack

    from millpond.core.validation import Seconds
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.options import Options
    from millpond.pool.task import BoundCall
    from millpond.runtime.executors.processes.briefing import Brief
    from millpond.runtime.executors.processes.child import Channel
    from millpond.runtime.jobs.job import Job
    from millpond.store.sql.handler_connection import HandlerConnection

T = TypeVar("T")


class AnyPool(Protocol):
    """A pool, of the loop (`Pool`) or for threads (`SyncPool`)."""

    @property
    def _internals(self) -> DeclaredPool: ...


class ChildJob:
    """A job in the child process of its handler."""

    def __init__(self, brief: Brief, channel: Channel) -> None:
        self.leased = brief.leased
        self.started_at = brief.started_at
        self.deadline = brief.deadline
        self._channel = channel

    @property
    def why(self) -> CancelReason | None:
        """Why the attempt must end, as the parent process reported it."""
        return CancelReason(self._channel.cancel_reason) if self._channel.cancel_reason else None

    @property
    def cancel_asked(self) -> bool:
        """Whether the attempt must end."""
        return self._channel.cancelled.is_set()

    @property
    def worker(self) -> ChildJob:
        """A child process has no worker, so this stands for it: without resources."""
        return self

    resources = None

    @property
    def weight(self) -> int | None:
        """The weight that the handler reported: only the parent process knows it."""
        return None

    @weight.setter
    def weight(self, actual: int) -> None:
        self._channel.send(msgspec.msgpack.encode(actual))

    def progress(self, fraction: float, text: str) -> None:
        """Report the handler's progress to the parent process."""
        check.number("fraction", fraction, most=1.0)
        text = check.cut(check.encodable("text", check.text("text", text)), bounds.MAX_PROGRESS)
        self._channel.send(msgspec.msgpack.encode((fraction, text)))


class _Attempt:
    """The attempt, as both kinds of context show it."""

    __slots__ = ("_child", "_job")

    def __init__(self, job: Job | ChildJob) -> None:
        # A child's job has all the attributes of a job that a context uses there.
        self._job = cast("Job", job)
        self._child = job if isinstance(job, ChildJob) else None

    @property
    def task_id(self) -> int:
        """The id of the task."""
        return self._job.leased.fence.task

    @property
    def pool(self) -> str:
        """The name of the pool that the task is in."""
        return self._job.leased.pool.removesuffix(CALLBACKS)

    @property
    def function(self) -> str:
        """The name of the function that the task was submitted with."""
        return self._job.leased.call.function

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1; attempts that were not charged do not count."""
        return self._job.leased.fence.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts the task has in all."""
        return self._job.leased.max_attempts

    @property
    def is_retry(self) -> bool:
        """Whether an earlier attempt was charged."""
        return self.attempt > 1

    @property
    def key(self) -> str | None:
        """The key of the task."""
        return self._job.leased.key

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the task."""
        return dict(self._job.leased.labels)

    @property
    def lane(self) -> str | None:
        """The lane of the task, in a pool that has lanes."""
        return self._job.leased.lane

    @property
    def sequence(self) -> int:
        """The number of the task in its lane, or in the pool."""
        return self._job.leased.sequence

    @property
    def submitted_at(self) -> float:
        """When the task was submitted."""
        return self._job.leased.submitted_at

    @property
    def started_at(self) -> float:
        """When this attempt began."""
        return self._job.started_at

    @property
    def deadline(self) -> float | None:
        """When the timeout of this attempt ends; None if it has none."""
        return self._job.deadline

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why this attempt must end; None while it may go on."""
        return self._job.why

    @property
    def weight(self) -> int:
        """The weight that the task was submitted with and that its start was charged."""
        return self._job.leased.weight

    def settle_weight(self, actual: int) -> None:
        """Report the weight that this attempt used, for rates by weight; the last call wins.

        When the attempt ends, the difference to `weight` is charged, or refunded as far as time
        has not refilled it. An attempt that loses its lease refunds nothing.
        """
        self._job.weight = check.integer("actual", actual)

    @property
    def resources(self) -> Any:  # noqa: ANN401 - what the user's lifespan yielded
        """The value that the worker's `resources` yielded; all handlers of the worker share it."""
        return self._job.worker.resources

    def _known(self, step: str) -> bytes | None:
        """Return the stored result of a step, of this attempt or an earlier one."""
        own = None if self._child is not None else self._job.steps
        return own[step] if own and step in own else self._job.leased.steps.get(step)

    def _stored(self, stored: bytes) -> Any:  # noqa: ANN401 - plain data
        return msgspec.json.decode(stored)


class Context(_Attempt):
    """The context of an `async def` handler: one attempt of one task."""

    __slots__ = ()

    @property
    def cancelled(self) -> asyncio.Event:
        """Set when this attempt must end; `cancel_reason` says why."""
        return self._job.cancelled

    @property
    def lease_lost(self) -> asyncio.Event:
        """Set when the lease is lost: stop, because the store will refuse the result."""
        return self._job.lease_lost

    async def submit(
        self, work: BoundCall[T], /, *, pool: AnyPool | None = None, **options: Unpack[Options]
    ) -> Handle[T]:
        """Submit a call as part of this attempt's outcome: stored if and when it completes.

        An attempt that fails submits nothing. The call goes to `pool`, else to the pool of its
        function, else to this one. If this task belongs to a run, so does the new one.
        """
        return (await self.submit_many([work.options(**options)], pool=pool))[0]

    async def submit_many(
        self, works: Iterable[BoundCall[T]], /, *, pool: AnyPool | None = None
    ) -> list[Handle[T]]:
        """Submit calls as part of this attempt's outcome, all of them or none."""
        calls, target = invocations(works), None if pool is None else internals_of(pool)
        for one in undeclared(self._job, calls, target):
            await one.ready()
        return [Handle(task) for task in follow_ups(self._job, calls, target)]

    async def progress(self, fraction: float, text: str = "") -> None:
        """Report how far this attempt has come, from 0.0 to 1.0; `handle.progress()` yields it."""
        await runtime_of(self._job).control.report_progress(self._job, fraction, text)

    async def once(self, step: str, fn: Callable[[], Awaitable[T]]) -> T:
        """Run a step once: store its result, and return that in later attempts of the task.

        `step` names the step within the task. JSON must be able to hold the result.
        """
        check.storable("step", step, bounds.MAX_STEP_NAME)
        known = self._known(step)
        if known is not None:
            return self._stored(known)  # type: ignore[no-any-return]
        result = await fn()
        await remember(self._job, step, result)
        return result

    def transaction(self, *, hold: Seconds = HOLD) -> Transaction:
        """Commit what the handler writes, its follow-ups and its completion together.

        `async with ctx.transaction() as tx:` leaves with all of it stored, or none. The handler's
        tables are in the database of the pools. Others wait for its locks (on SQLite every
        writer), so after `hold` seconds it is rolled back.
        """
        return Transaction(self._job, hold)

    async def commit(self, fn: Callable[[HandlerConnection], T], /, *, result: Any = None) -> T:  # noqa: ANN401
        """Complete this attempt with `result`, in one transaction with what `fn` writes.

        `fn(connection)` is a plain function and runs in another thread; its result is returned.
        If it raises, nothing is stored and the attempt goes on.
        """
        return await commit_with(self._job, fn, result)


class SyncContext(_Attempt):
    """The context of a `def` handler, which runs in a thread."""

    __slots__ = ()

    @property
    def cancelled(self) -> bool:
        """Whether this attempt must end; `cancel_reason` says why."""
        if self._child is not None:
            return self._child.cancel_asked
        return self._job.why is not None

    @property
    def lease_lost(self) -> bool:
        """Whether the lease is lost: the store will refuse the result."""
        return self._job.why == "lease_lost"

    def submit(
        self, work: BoundCall[T], /, *, pool: AnyPool | None = None, **options: Unpack[Options]
    ) -> Handle[T]:
        """Submit a call as part of this attempt's outcome: stored if and when it completes.

        An attempt that fails submits nothing. The call goes to `pool`, else to the pool of its
        function, else to this one. If this task belongs to a run, so does the new one.
        """
        return self.submit_many([work.options(**options)], pool=pool)[0]

    def submit_many(
        self, works: Iterable[BoundCall[T]], /, *, pool: AnyPool | None = None
    ) -> list[Handle[T]]:
        """Submit calls as part of this attempt's outcome, all of them or none."""
        if self._child is not None:
            raise NotSupported(
                "ctx.submit() does not work in a child process: return the data and submit it "
                "from a handler on the loop or in a thread",
                feature="submit",
            )
        calls, target = invocations(works), None if pool is None else internals_of(pool)
        for one in undeclared(self._job, calls, target):
            self._on_loop(one.ready())
        return [Handle(task) for task in follow_ups(self._job, calls, target)]

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far this attempt has come, from 0.0 to 1.0; `handle.progress()` yields it."""
        if self._child is not None:
            self._child.progress(fraction, text)
            return
        self._on_loop(runtime_of(self._job).control.report_progress(self._job, fraction, text))

    def once(self, step: str, fn: Callable[[], T]) -> T:
        """Run a step once: store its result, and return that in later attempts of the task.

        `step` names the step within the task. JSON must be able to hold the result.
        """
        check.storable("step", step, bounds.MAX_STEP_NAME)
        known = self._known(step)
        if known is not None:
            return self._stored(known)  # type: ignore[no-any-return]
        self._not_in_a_process("once")
        result = fn()
        self._on_loop(remember(self._job, step, result))
        return result

    def transaction(self, *, hold: Seconds = HOLD) -> SyncTransaction:
        """Commit what the handler writes, its follow-ups and its completion together.

        `with ctx.transaction() as tx:` leaves with all of it stored, or none. Others wait for its
        locks (on SQLite every writer), so after `hold` seconds it is rolled back.
        """
        self._not_in_a_process("transaction")
        return SyncTransaction(self._job, hold)

    def commit(self, fn: Callable[[HandlerConnection], T], /, *, result: Any = None) -> T:  # noqa: ANN401
        """Complete this attempt with `result`, in one transaction with what `fn` writes.

        `fn(connection)` runs in another thread; its result is returned. If it raises, nothing is
        stored and the attempt goes on.
        """
        self._not_in_a_process("commit")
        return self._on_loop(commit_with(self._job, fn, result))

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the worker's loop and wait for it; a forked child has no loop."""
        must_not_be_child(self._job.worker.env.process)
        return asyncio.run_coroutine_threadsafe(work, self._job.worker.loop).result()

    def _not_in_a_process(self, feature: str) -> None:
        if self._child is not None:
            raise NotSupported(
                f"ctx.{feature}() does not work in a child process; use a handler in a thread",
                feature=feature,
            )


async def remember(job: Job, step: str, result: Any) -> None:  # noqa: ANN401 - plain data
    """Store the result of a step, if the attempt still holds its lease."""
    try:
        stored = PLAIN.encode(result)
    except Refused as refused:
        raise ConfigError(
            "result",
            result,
            f"of step {step!r} cannot be stored as JSON and come back the same: {refused}",
        ) from refused
    if len(stored) > bounds.MOST_PAYLOAD:
        raise ConfigError("result", f"{len(stored)} bytes", f"of step {step!r} cannot be stored")
    runtime = runtime_of(job)
    runtime.answers.apply(await runtime.store.control(SaveStep(job.leased.fence, step, stored)))
    steps = job.steps = job.steps or {}
    steps.setdefault(step, stored)
