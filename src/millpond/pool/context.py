"""The context of an attempt: what a handler may know of itself, and ask for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.control import SaveStep
from millpond.core.task import CALLBACKS
from millpond.errors import ConfigError, NotSupported
from millpond.pool.handler_transaction import HOLD, SyncTransaction, Transaction
from millpond.pool.payload.codec import PLAIN, Refused
from millpond.runtime.fork_safety import must_not_be_child
from millpond.runtime.jobs.job import CancelReason
from millpond.runtime.runtime import runtime_of
from millpond.runtime.worker.commit import commit_with

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from typing import Unpack

    from millpond.core.validation import Seconds
    from millpond.pool.handle import Handle
    from millpond.pool.options import Options
    from millpond.pool.pool import Pool
    from millpond.pool.task import BoundCall
    from millpond.runtime.executors.processes.child import Channel
    from millpond.runtime.executors.processes.parent import Brief
    from millpond.runtime.jobs.job import Job
    from millpond.store.sql.handler_connection import HandlerConnection

T = TypeVar("T")


class ChildJob:
    """A job as its handler's own process sees it."""

    def __init__(self, brief: Brief, channel: Channel) -> None:
        self.leased = brief.leased
        self.started_at = brief.started_at
        self.deadline = brief.deadline
        self._channel = channel

    @property
    def why(self) -> CancelReason | None:
        """Why the attempt is to end, as far as the parent has said."""
        return CancelReason(self._channel.cancel_reason) if self._channel.cancel_reason else None

    @property
    def cancel_asked(self) -> bool:
        """Whether somebody asked for the task to be cancelled."""
        return self._channel.cancelled.is_set()

    @property
    def worker(self) -> ChildJob:
        """There is no worker here, and so nothing it made."""
        return self

    resources = None

    @property
    def weight(self) -> int | None:
        """What the handler said it really used: known to the parent alone."""
        return None

    @weight.setter
    def weight(self, actual: int) -> None:
        self._channel.send(msgspec.msgpack.encode(actual))

    def progress(self, fraction: float, text: str) -> None:
        """Tell the parent how far the handler has come."""
        check.number("fraction", fraction, most=1.0)
        text = check.cut(check.encodable("text", check.text("text", text)), bounds.MAX_PROGRESS)
        self._channel.send(msgspec.msgpack.encode((fraction, text)))


class _About:
    """What both kinds of context tell."""

    __slots__ = ("_child", "_job")

    def __init__(self, job: Job | ChildJob) -> None:
        # A child's job has what both kinds of context need of one, and asks for no more.
        self._job = cast("Job", job)
        self._child = job if isinstance(job, ChildJob) else None

    @property
    def task_id(self) -> int:
        """The task's id."""
        return self._job.leased.fence.task

    @property
    def pool(self) -> str:
        """The name of the pool it runs in."""
        return self._job.leased.pool.removesuffix(CALLBACKS)

    @property
    def attempt(self) -> int:
        """Which charged run this is, from 1."""
        return self._job.leased.fence.attempt

    @property
    def max_attempts(self) -> int:
        """How many charged runs there may be."""
        return self._job.leased.max_attempts

    @property
    def is_retry(self) -> bool:
        """Whether an earlier attempt was charged."""
        return self.attempt > 1

    @property
    def key(self) -> str | None:
        """The task's key."""
        return self._job.leased.key

    @property
    def labels(self) -> dict[str, str]:
        """The task's labels."""
        return dict(self._job.leased.labels)

    @property
    def lane(self) -> str | None:
        """Its lane, in a pool that has lanes."""
        return self._job.leased.lane

    @property
    def sequence(self) -> int:
        """Its number in its lane, or in the pool."""
        return self._job.leased.sequence

    @property
    def submitted_at(self) -> float:
        """When it was submitted."""
        return self._job.leased.submitted_at

    @property
    def started_at(self) -> float:
        """When this attempt began."""
        return self._job.started_at

    @property
    def deadline(self) -> float | None:
        """When this attempt runs out of time, or None."""
        return self._job.deadline

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why this attempt is to end: cancel, timeout, stop or lease_lost; None while it is not."""
        return self._job.why

    @property
    def weight(self) -> int:
        """What the task was submitted with, and this attempt's start was charged."""
        return self._job.leased.weight

    def settle_weight(self, actual: int) -> None:
        """Say what this attempt really used, for rates by weight; the last word counts.

        When the attempt ends, however it does, the difference to `weight` is refunded, as far as
        time has not refilled it, or charged. An attempt that loses its lease refunds nothing.
        """
        self._job.weight = check.integer("actual", actual)

    @property
    def resources(self) -> Any:  # noqa: ANN401 - what the user's lifespan yielded
        """What the worker's `resources` yielded, shared by its jobs."""
        return self._job.worker.resources

    def _known(self, step: str) -> bytes | None:
        """Return what a step gave before, in this attempt or in an earlier one."""
        own = None if self._child is not None else self._job.steps
        return own[step] if own and step in own else self._job.leased.steps.get(step)

    def _stored(self, stored: bytes) -> Any:  # noqa: ANN401 - plain data
        return msgspec.json.decode(stored)


class Context(_About):
    """The context of an `async def` handler."""

    __slots__ = ()

    @property
    def cancelled(self) -> asyncio.Event:
        """Set, and true, when this attempt is to end; `cancel_reason` says why."""
        return self._job.cancelled

    @property
    def lease_lost(self) -> asyncio.Event:
        """Set when the right to settle this attempt is gone: stop, nobody will take the result."""
        return self._job.lease_lost

    async def submit(
        self, work: BoundCall[T], /, *, pool: Pool | None = None, **options: Unpack[Options]
    ) -> Handle[T]:
        """Submit a call as part of this attempt's outcome: stored if and when it completes."""
        return (await self.submit_many([work.options(**options)], pool=pool))[0]

    async def submit_many(
        self, works: Iterable[BoundCall[T]], /, *, pool: Pool | None = None
    ) -> list[Handle[T]]:
        """Submit calls as part of this attempt's outcome, all of them or none."""
        from millpond.pool.follow_ups import follow_ups, undeclared  # noqa: PLC0415 - they know us

        calls = list(works)
        for target in undeclared(self._job, calls, pool):
            await target.ready()
        return follow_ups(self._job, calls, pool)

    async def progress(self, fraction: float, text: str = "") -> None:
        """Tell how far this attempt has come, to whoever watches the handle."""
        await runtime_of(self._job).control.report_progress(self._job, fraction, text)

    async def once(self, step: str, fn: Callable[[], Awaitable[T]]) -> T:
        """Run a step once: its result is stored, and returned when the task is run again."""
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
        tables are in the database of the pools. Others wait for it (on SQLite everybody who
        writes), so after `hold` seconds it is rolled back.
        """
        return Transaction(self._job, hold)

    async def commit(self, fn: Callable[[HandlerConnection], T], /, *, result: Any = None) -> T:  # noqa: ANN401
        """Complete this attempt with `result`, in one transaction with what `fn` writes.

        `fn(connection)` is a plain function and runs in another thread; what it returns is
        returned. If it raises nothing is stored, and the attempt goes on.
        """
        return await commit_with(self._job, fn, result)  # type: ignore[no-any-return]


class SyncContext(_About):
    """The context of a `def` handler, which runs in a thread."""

    __slots__ = ()

    @property
    def cancelled(self) -> bool:
        """Whether this attempt is to end; `cancel_reason` says why."""
        if self._child is not None:
            return self._child.cancel_asked
        return self._job.why is not None

    @property
    def lease_lost(self) -> bool:
        """Whether the right to settle this attempt is gone."""
        return self._job.why == "lease_lost"

    def submit(
        self, work: BoundCall[T], /, *, pool: Pool | None = None, **options: Unpack[Options]
    ) -> Handle[T]:
        """Submit a call as part of this attempt's outcome: stored if and when it completes."""
        return self.submit_many([work.options(**options)], pool=pool)[0]

    def submit_many(
        self, works: Iterable[BoundCall[T]], /, *, pool: Pool | None = None
    ) -> list[Handle[T]]:
        """Submit calls as part of this attempt's outcome, all of them or none."""
        from millpond.pool.follow_ups import follow_ups, undeclared  # noqa: PLC0415 - they know us

        if self._child is not None:
            raise NotSupported(
                "ctx.submit() is not there in a process: return what is to follow, or submit it "
                "from a handler on the loop or in a thread",
                feature="submit",
            )
        calls = list(works)
        for target in undeclared(self._job, calls, pool):
            self._on_loop(target.ready())
        return follow_ups(self._job, calls, pool)

    def progress(self, fraction: float, text: str = "") -> None:
        """Tell how far this attempt has come, to whoever watches the handle."""
        if self._child is not None:
            self._child.progress(fraction, text)
            return
        self._on_loop(runtime_of(self._job).control.report_progress(self._job, fraction, text))

    def once(self, step: str, fn: Callable[[], T]) -> T:
        """Run a step once: its result is stored, and returned when the task is run again."""
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

        `with ctx.transaction() as tx:` leaves with all of it stored, or none. Others wait for it
        (on SQLite everybody who writes), so after `hold` seconds it is rolled back.
        """
        self._not_in_a_process("transaction")
        return SyncTransaction(self._job, hold)

    def commit(self, fn: Callable[[HandlerConnection], T], /, *, result: Any = None) -> T:  # noqa: ANN401
        """Complete this attempt with `result`, in one transaction with what `fn` writes.

        `fn(connection)` runs in another thread; what it returns is returned. If it raises nothing
        is stored, and the attempt goes on.
        """
        self._not_in_a_process("commit")
        return self._on_loop(commit_with(self._job, fn, result))  # type: ignore[no-any-return]

    def _on_loop(self, asked: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - whatever it gives
        """Have the loop do something, and wait for it; a forked child has no loop, and ends."""
        must_not_be_child(self._job.worker.env.process)
        return asyncio.run_coroutine_threadsafe(asked, self._job.worker.loop).result()

    def _not_in_a_process(self, feature: str) -> None:
        if self._child is not None:
            raise NotSupported(
                f"ctx.{feature}() is not there in a process; use it from a handler in a thread",
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
