"""A slot: one long-lived task that runs jobs, each in a context of its own.

Making a task for each job costs more than most of what the pool does for it. A slot drives each
handler step by step inside the job's own context; `asyncio.current_task()` is real, so timeouts,
task groups and cancellation work inside handlers as anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine, Generator
from contextvars import Context
from inspect import iscoroutine
from types import CoroutineType, coroutine
from typing import TYPE_CHECKING, Any

from millpond.core.admit import Reason
from millpond.core.settle import Interrupted, Outcome, Raised, Stopped, Succeeded
from millpond.runtime.ctrl_c import is_ctrl_c
from millpond.runtime.error_info import describe, from_the_handler_on
from millpond.runtime.fork_safety import must_not_be_child
from millpond.runtime.worker.job import CancelReason, Closure, Job, Where
from millpond.runtime.worker.outcome import BadResult, Encoded, Unreadable, raised

if TYPE_CHECKING:
    from millpond.runtime.worker.worker import Worker


class Slot:
    """Runs one job at a time for a worker."""

    __slots__ = ("_wake", "called", "job", "task", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.job: Job | None = None
        """The job it runs now."""
        self._wake: asyncio.Future[None] | None = None
        self.called = True
        """Whether it was woken, or made, for a job and has not come yet."""
        # Of no factory's making: an eager task would run a job in the middle of a turn. And in a
        # context of its own: a slot outlives whoever happened to submit when it was made.
        context = worker.runtime.context.copy()
        self.task = asyncio.Task(self._main(), loop=worker.loop, context=context)
        self.task.add_done_callback(self._over, context=context)

    def wake(self) -> None:
        """Tell an idle slot that there are jobs to take."""
        self.called = True
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    def interrupt(self, job: Job) -> None:
        """Cancel the handler of a job, if this slot still runs it."""
        if self.job is job:
            self.task.cancel()

    def _over(self, _task: asyncio.Task[None]) -> None:
        """Be gone, whatever ended it: somebody else takes what it was woken for."""
        self.worker.lost(self)

    async def _main(self) -> None:
        worker, ready = self.worker, self.worker.ready
        hooks = worker.runtime.hooks
        stays = True
        while True:
            self.called = False
            worker.called -= 1
            while ready and stays:
                job = self.job = ready.popleft()
                job.slot = self
                probes = hooks.probes
                if probes is None:
                    value, outcome = await self._attempt(job)
                else:
                    probes.began(job)
                    value, outcome = await self._attempt(job)
                    probes.over(job, value, outcome)
                must_not_be_child(worker.runtime.process)
                if self.task.cancelling():
                    # Where nobody told the job to stop, the loop may be about to end: so does this.
                    stays = job.why is not None
                    await self._live_on()
                self.job = None
                worker.finished(job, value, outcome)
                if worker.must_settle():
                    # The store works on what has ended while this goes on.
                    worker.kick()
                    await asyncio.sleep(0)
                if type(outcome) is Raised and outcome.retry_in is not None:
                    # It may ask to be tried again at once, and without end: others want the loop.
                    await asyncio.sleep(0)
                # An idle slot must not keep what its last handler returned or raised.
                del job, value, outcome
            woken = self._wake = worker.loop.create_future()
            kept = stays and worker.has_room_for(self)
            if worker.wants_turn():
                # This may give it a job already.
                await worker.turn()
            if not kept:
                return
            await woken

    async def _live_on(self) -> None:
        """Take back cancellations that belonged to the job, also one it has not felt yet."""
        while self.task.cancelling():
            self.task.uncancel()
            if not self.task.cancelling():
                # Before Python 3.13 a task that cancelled itself still has it coming. And while
                # this waits, the job may be told to stop once more.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)

    async def _attempt(self, job: Job) -> tuple[Any, Outcome]:
        """Run the handler; whatever it does, an outcome comes back."""
        body, context, worker = job.body, job.context, self.worker
        if job.stopped_early:
            return None, _interrupted(job, asyncio.CancelledError())
        job.began = True
        try:
            if body.where is not Where.LOOP:
                if worker.ready:
                    worker.wake_slots()
                value = await worker.run_elsewhere(job)
            elif type(body) is Closure:
                value = await stepped(as_coroutine(context.run(body.fn)), context, worker)
            else:
                started = context.run(body.invoke, job)  # type: ignore[union-attr]
                value = await stepped(as_coroutine(started), context, worker)
            if job.timed_out:
                return timed_out(job)
            return value, succeeded(job, value)
        except asyncio.CancelledError as error:
            told = from_the_handler_on(error)
            if job.timed_out:
                return timed_out(job, error if told else None)
            return error, _interrupted(job, error)
        except BadResult as error:
            return error, Raised(describe(error), final=True, reason="bad_result")
        except Unreadable as error:
            return error, worker.unreadable(job, error)
        except BaseException as error:
            # SystemExit in a handler must not end us; Ctrl-C must, and only ever comes to the loop.
            if body.where is Where.LOOP and is_ctrl_c(error):
                raise
            from_the_handler_on(error)
            if job.timed_out:
                return timed_out(job, error)
            return error, raised(error, job)


def as_coroutine(started: Any) -> Coroutine[Any, Any, Any]:  # noqa: ANN401 - what a handler gave
    """Return a coroutine for whatever calling a handler gave."""
    # By type first: nearly all of them are plain coroutines, and asking an ABC takes far longer.
    if type(started) is CoroutineType or iscoroutine(started):
        return started
    return _awaited(started)


async def _awaited(started: Any) -> Any:  # noqa: ANN401 - any awaitable, or a plain value
    return await started if isinstance(started, Awaitable) else started


@coroutine
def stepped(
    coro: Coroutine[Any, Any, Any], context: Context, worker: Worker | None = None
) -> Generator[Any, Any, Any]:
    """Drive a coroutine to its end, each step inside `context`.

    A handler that is about to wait lets the next job begin elsewhere: jobs that never wait are
    run one after another by the same slot, without a round of the loop for each.
    """
    run = context.run
    try:
        yielded = run(coro.send, None)
    except StopIteration as stop:
        return stop.value
    if worker is not None and worker.ready:
        worker.wake_slots()
    while True:
        if worker is not None:
            must_not_be_child(worker.runtime.process)
        try:
            given = yield yielded
        except GeneratorExit:
            run(coro.close)
            raise
        except BaseException as error:  # noqa: BLE001 - it belongs to the handler
            thrown: BaseException | None = error
        else:
            thrown = None
        try:
            yielded = run(coro.send, given) if thrown is None else run(coro.throw, thrown)
        except StopIteration as stop:
            return stop.value


_NOTHING_TO_STORE = Succeeded()
"""What a closure returned stays in this process, and it has no context to submit through."""

_RETURNED_NONE = Succeeded(b"null")


def succeeded(job: Job, value: Any) -> Outcome:  # noqa: ANN401 - what the handler returned
    """Return the outcome of a handler that returned."""
    if job.committed:
        return _NOTHING_TO_STORE
    body = job.body
    if isinstance(body, Closure):
        return _of_closure(body, value)
    follow_ups = tuple(job.follow_ups) if job.follow_ups else ()
    if type(value) is Encoded:
        return Succeeded(value.data, follow_ups)
    try:
        return Succeeded(body.encode_result(value), follow_ups)
    except BadResult as error:
        return Raised(describe(error), final=True, reason="bad_result")
    except BaseException as error:
        # A class of the user's that exits while it is encoded.
        if is_ctrl_c(error):
            raise
        return Raised(describe(error), final=True, reason="bad_result")


def _of_closure(body: Closure, value: Any) -> Succeeded:  # noqa: ANN401 - what it returned
    """Return the outcome of a closure; a result that cannot be stored stays in this process."""
    if value is None:
        return _RETURNED_NONE
    if body.encode_result is None:
        return _NOTHING_TO_STORE
    try:
        return Succeeded(body.encode_result(value))
    except BadResult:
        return _NOTHING_TO_STORE


def timed_out(job: Job, stopped: BaseException | None = None) -> tuple[TimeoutError, Outcome]:
    """Return the error of an attempt that ran for too long, and its outcome.

    What it was stopped with is the cause, and so tells where the handler was.
    """
    seconds = job.leased.timeout or 0.0
    error = TimeoutError(f"the attempt ran for longer than {seconds:g} s")
    error.__cause__ = stopped
    return error, raised(error, job)


def interrupted(job: Job, *, begun: bool) -> Interrupted:
    """Return the outcome of an attempt that its worker gives up."""
    lost = job.why is CancelReason.LEASE_LOST
    return Interrupted(begun, Reason.LEASE_LOST if lost else Reason.STOPPED)


def _interrupted(job: Job, error: asyncio.CancelledError) -> Outcome:
    if job.timed_out:
        return timed_out(job)[1]
    match job.why:
        case CancelReason.CANCEL:
            return Stopped()
        case CancelReason.STOP | CancelReason.LEASE_LOST:
            return interrupted(job, begun=job.began)
        case _:
            # Nobody asked: something inside the handler was cancelled, and it did not care.
            return raised(error, job)
