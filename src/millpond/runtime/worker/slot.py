"""A slot: one long-lived task that runs jobs, each in a context of its own.

Making a task for each job costs more than most of what a pool does for it. A slot drives each
handler step by step inside the job's own context; `asyncio.current_task()` is real, so timeouts,
task groups and cancellation work inside handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from millpond.core.settle import Outcome, Raised
from millpond.runtime.ctrl_c import is_ctrl_c
from millpond.runtime.error_info import describe, from_the_handler_on
from millpond.runtime.fork_safety import must_not_be_child
from millpond.runtime.jobs.job import Closure, Job, Where
from millpond.runtime.jobs.outcome import BadResult, Unreadable, raised
from millpond.runtime.jobs.stepping import as_coroutine, stepped
from millpond.runtime.worker.run_outcome import cancelled, succeeded, timed_out

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from millpond.core.settle import Unfit
    from millpond.runtime.environment import Environment
    from millpond.runtime.executors.executors import Executors
    from millpond.runtime.observe.hooks import Hooks
    from millpond.runtime.worker.schedule import TurnSchedule


class SlotOwner(Protocol):
    """The worker, as its slots see it."""

    schedule: TurnSchedule
    executors: Executors
    hooks: Hooks
    finished: Callable[[Job, Any, Outcome], None]
    """Called with a job that has ended, with what its handler returned or raised."""

    async def turn(self) -> None:
        """Settle what has ended and lease what may start."""

    async def turn_in_slot(self) -> None:
        """Do the same for a slot, which then runs the last leased tasks."""

    def unreadable(self, job: Job, error: Unreadable, /) -> Unfit:
        """Return the outcome of a task whose arguments cannot be read here."""


class SlotKeeper(Protocol):
    """The slots of a worker, as each of them sees the others."""

    env: Environment
    process: int
    ready: deque[Job]
    called: int

    def job_waits(self) -> None:
        """Let ready jobs begin, and what has ended be settled, while a job waits."""

    def keep_idle(self, slot: Slot, /) -> bool:
        """Keep a slot that has nothing to do; return whether there is room for it."""

    def lost(self, slot: Slot, /) -> None:
        """Note that a slot has ended."""


class Slot:
    """Runs one job at a time for a worker."""

    __slots__ = ("_owner", "_slots", "_wake", "called", "job", "task")

    def __init__(self, slots: SlotKeeper, owner: SlotOwner) -> None:
        self._slots = slots
        self._owner = owner
        self.job: Job | None = None
        """The job it runs now."""
        self._wake: asyncio.Future[None] | None = None
        self.called = True
        """Whether it was woken, or made, for a job and has not started yet."""
        # Not made by the loop's task factory: an eager task would run a job in the middle of a
        # turn. And in a context of its own: a slot outlives the submit that it was made in.
        env = slots.env
        context = env.context.copy()
        self.task = asyncio.Task(self._main(), loop=env.loop, context=context)
        self.task.add_done_callback(self._over, context=context)

    def wake(self) -> None:
        """Wake an idle slot: there are jobs to take."""
        self.called = True
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    def interrupt(self, job: Job) -> None:
        """Cancel the handler of a job, if this slot still runs it."""
        if self.job is job:
            self.task.cancel()

    def _over(self, _task: asyncio.Task[None]) -> None:
        """Leave the slots; another slot takes the job that this one was woken for."""
        self._slots.lost(self)

    async def _main(self) -> None:
        owner, slots, ready = self._owner, self._slots, self._slots.ready
        hooks, schedule, process = owner.hooks, owner.schedule, slots.process
        stays = True
        while True:
            self.called = False
            slots.called -= 1
            while stays:
                if not ready:
                    if not schedule.slot_takes_turn():
                        break
                    await owner.turn_in_slot()
                    continue
                job = self.job = ready.popleft()
                job.slot = self
                probes = hooks.probes
                if probes is None:
                    value, outcome = await self._attempt(job)
                else:
                    probes.began(job)
                    value, outcome = await self._attempt(job)
                    probes.over(job, value, outcome)
                must_not_be_child(process)
                if self.task.cancelling():
                    # If the worker did not stop the job, the loop may be about to end: end too.
                    stays = job.why is not None
                    await self._uncancel()
                self.job = None
                owner.finished(job, value, outcome)
                if schedule.must_settle(others_wait=bool(ready)):
                    # The store works on what has ended while this goes on.
                    schedule.kick()
                    await asyncio.sleep(0)
                if type(outcome) is Raised and outcome.retry_in is not None:
                    # It may ask for a retry at once, without end: others want the loop.
                    await asyncio.sleep(0)
                # An idle slot must not keep what its last handler returned or raised.
                del job, value, outcome
            woken = self._wake = slots.env.loop.create_future()
            kept = stays and slots.keep_idle(self)
            schedule.slot_rests()
            if schedule.wants_turn():
                # This may give it a job already.
                await owner.turn()
            if not kept:
                return
            await woken

    async def _uncancel(self) -> None:
        """Take back cancellations that belonged to the job, also one that has not been raised."""
        while self.task.cancelling():
            self.task.uncancel()
            if not self.task.cancelling():
                # Before Python 3.13 a task that cancelled itself still has it coming. And while
                # this waits, the job may be asked to stop once more.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)

    async def _attempt(self, job: Job) -> tuple[Any, Outcome]:
        """Run the handler; whatever it does, an outcome comes back."""
        body, context, slots = job.body, job.context, self._slots
        if job.stopped_early:
            return None, cancelled(job, asyncio.CancelledError())
        job.began = True
        try:
            if body.where is not Where.LOOP:
                slots.job_waits()
                value = await self._owner.executors.run(job)
            elif type(body) is Closure:
                value = await stepped(as_coroutine(context.run(body.fn)), context, slots)
            else:
                started = context.run(body.invoke, job)  # type: ignore[union-attr]
                value = await stepped(as_coroutine(started), context, slots)
            if job.timed_out:
                return timed_out(job)
            return value, succeeded(job, value)
        except asyncio.CancelledError as error:
            in_handler = from_the_handler_on(error)
            if job.timed_out:
                return timed_out(job, error if in_handler else None)
            return error, cancelled(job, error)
        except BadResult as error:
            return error, Raised(describe(error), final=True, reason="bad_result")
        except Unreadable as error:
            return error, self._owner.unreadable(job, error)
        except BaseException as error:
            # SystemExit in a handler must not end us; Ctrl-C must, and only ever comes to the loop.
            if body.where is Where.LOOP and is_ctrl_c(error):
                raise
            from_the_handler_on(error)
            if job.timed_out:
                return timed_out(job, error)
            return error, raised(error, job)
