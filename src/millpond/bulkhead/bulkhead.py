"""The bulkhead: a hard limit on how many callers are inside, and an answer for all others."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import AbstractAsyncContextManager, contextmanager
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar, TypeVarTuple

from millpond.bulkhead.permit import Permit, is_failure, issue
from millpond.bulkhead.permit_context import Stay
from millpond.bulkhead.reports import PermitRejection, as_error
from millpond.bulkhead.shared_state import Door
from millpond.bulkhead.waiters import (
    LoopWaiter,
    ThreadWaiter,
    seconds_of,
    wait_in_thread,
    wait_on_loop,
)
from millpond.core import validation as check
from millpond.core.adaptive import Adaptive, Limiter
from millpond.core.gate import Gate, RejectReason, TicketState
from millpond.errors import ConfigError, StaleRevision

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from datetime import timedelta
    from types import TracebackType

    from millpond.bulkhead.reports import Hook, Leftover, Stats
    from millpond.bulkhead.shared_state import Kind
    from millpond.bulkhead.waiters import Waiter

# As globals of this module, because the lookup through the enum is a third of a wait's cost.
ADMITTED = TicketState.ADMITTED
WAITING = TicketState.WAITING

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Bulkhead:
    """Admits at most `max_concurrent` callers at once; `max_queue` more may wait, in order.

    Everyone else is refused at once, with a reason. It does no I/O, belongs to no loop, and may be
    shared by tasks of several loops and by threads: all of them stand in one queue.

    `max_weight` also bounds the sum of the weights inside. `adaptive(1, 50)` in place of
    `max_concurrent` lets observed latency and failures move the limit. Hooks are called after
    every change, outside the lock, with one `HookEvent`; what they raise is counted and dropped.
    """

    def __init__(
        self,
        name: str,
        max_concurrent: int | Adaptive,
        *,
        max_queue: int = 0,
        max_weight: int | None = None,
        revision: int = 0,
        on_admit: Hook | None = None,
        on_reject: Hook | None = None,
        on_release: Hook | None = None,
        on_close: Hook | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limiter = Limiter(max_concurrent) if isinstance(max_concurrent, Adaptive) else None
        gate: Gate[Waiter] = Gate(
            limiter.limit if limiter else check.integer("max_concurrent", max_concurrent, least=1),
            max_queue=check.integer("max_queue", max_queue),
            max_weight=_whole_or_none("max_weight", max_weight),
            revision=check.integer("revision", revision),
        )
        hooks: dict[Kind, Hook] = {}
        hook_options: tuple[tuple[Kind, Hook | None], ...] = (
            ("admit", on_admit),
            ("reject", on_reject),
            ("release", on_release),
            ("close", on_close),
        )
        for kind, hook in hook_options:
            if hook is not None:
                hooks[kind] = _checked_hook(f"on_{kind}", hook)
        self._door = Door(check.name("name", name), gate, hooks=hooks, limiter=limiter, clock=clock)
        # Only for a watched bulkhead: which permits `async with` holds for which task.
        self._entered: defaultdict[int, list[Permit]] = defaultdict(list)

    @property
    def name(self) -> str:
        """The name it was given."""
        return self._door.name

    def try_acquire(self, weight: int = 1) -> Permit | PermitRejection:
        """Return a permit or a rejection at once; never waits, never queues."""
        if weight != 1:
            check.integer("weight", weight, least=1)
        door = self._door
        gate = door.gate
        keys = door.keys
        permit = Permit()
        permit.held = False
        permit.door = door
        permit.weight = weight
        try:
            keys.pop()
        except IndexError:
            door.lock.wait()
        except BaseException:
            keys.append(None)
            raise
        try:
            reason = gate.try_enter(weight)
            if reason is None:
                permit.held = True
                permit.id = gate.admitted
                permit.revision = gate.revision
            else:
                capacity = door.capacity()
        finally:
            keys.append(None)
        if reason is not None:
            if door.alert:
                door.tidy()
            if door.batches:
                door.recall(None)
            return door.rejected(reason, weight, capacity)
        if door.alert:
            door.admitted(permit)
        return permit

    async def acquire(
        self,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - bounds the wait, not the work
        signal: asyncio.Event | None = None,
        weight: int = 1,
    ) -> Permit | PermitRejection:
        """Return a permit, waiting in order if the queue has a place, or a rejection.

        `timeout` bounds the wait. `signal` aborts it, and is looked at first: once set, even a
        free slot is refused. Cancelling the waiting task works too; no way of leaving loses a slot.
        """
        if weight != 1:
            check.integer("weight", weight, least=1)
        if timeout is not None:
            timeout = seconds_of(timeout)
        door = self._door
        if signal is not None and signal.is_set():
            return door.reject(RejectReason.ABORTED, weight)
        gate = door.gate
        waiter = None
        keys = door.keys
        try:
            keys.pop()
        except IndexError:
            door.lock.wait()
        except BaseException:
            keys.append(None)
            raise
        try:
            if gate.take(weight):
                number, revision = gate.admitted, gate.revision
            else:
                waiter = LoopWaiter(weight, door.batches)
                if gate.wait(waiter) is not WAITING or timeout is not None:
                    door.queued(waiter, timeout)
        finally:
            keys.append(None)
        if waiter is not None:
            if door.alert:
                door.tidy()
            if door.batches:
                door.recall(waiter.get_loop())
            if waiter.outcome is WAITING:
                if timeout is None and signal is None:
                    try:
                        await waiter
                    except BaseException:
                        door.apply(gate.cancel, waiter)
                        raise
                else:
                    await wait_on_loop(door, waiter, timeout, signal)
            return issue(door, waiter) if waiter.outcome is ADMITTED else door.refused(waiter)
        permit = Permit()
        permit.door = door
        permit.id = number
        permit.weight = weight
        permit.revision = revision
        permit.held = True
        if door.alert:
            door.admitted(permit)
        return permit

    async def run(
        self,
        function: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109
        signal: asyncio.Event | None = None,
    ) -> T:
        """Call `function` inside the bulkhead and return its result; always releases.

        Raises BulkheadRejected if it is not admitted. `timeout` and `signal` concern the wait
        only: work that has begun is never stopped from here.
        """
        permit = await self.acquire(timeout, signal)
        if not permit:
            raise as_error(permit)
        try:
            result = await function(*args)
        except BaseException as error:
            permit.release(is_failure(type(error)))
            raise
        permit.release()
        return result

    def permit(
        self,
        *,
        weight: int = 1,
        timeout: float | timedelta | None = None,
        signal: asyncio.Event | None = None,
    ) -> AbstractAsyncContextManager[Permit]:
        """Hold a permit for the length of an `async with`; raises BulkheadRejected."""
        return Stay(self, weight, timeout, signal)

    @contextmanager
    def blocking(
        self, *, weight: int = 1, timeout: float | timedelta | None = None
    ) -> Iterator[Permit]:
        """Hold a permit for the length of a `with` in a thread; raises BulkheadRejected.

        Threads and tasks wait in one queue. On a thread that runs a loop it is refused with
        RuntimeError: the wait would stop the very tasks it waits for.
        """
        permit = self._acquire_in_thread(weight, timeout)
        if not permit:
            raise as_error(permit)
        with permit:
            yield permit

    async def __aenter__(self) -> None:
        door = self._door
        if door.watched:
            permit = await self.acquire()
            if not permit:
                raise as_error(permit)
            self._entered[_task_id()].append(permit)
            return
        waiter = None
        keys = door.keys
        try:
            keys.pop()
        except IndexError:
            door.lock.wait()
        except BaseException:
            keys.append(None)
            raise
        try:
            if not door.gate.take():
                waiter = LoopWaiter(1, door.batches)
                if door.gate.wait(waiter) is not WAITING:
                    door.queued(waiter, None)
        finally:
            keys.append(None)
        if door.alert:
            door.tidy()
        if waiter is not None:
            if door.batches:
                door.recall(waiter.get_loop())
            if waiter.outcome is WAITING:
                try:
                    await waiter
                except BaseException:
                    door.apply(door.gate.cancel, waiter)
                    raise
            if waiter.outcome is not ADMITTED:
                raise as_error(door.refused(waiter))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        door = self._door
        if door.watched:
            self._take_out().release(failed=is_failure(kind))
            return
        # One anonymous permit is as good as another: leaving returns one, no matter whose.
        keys = door.keys
        try:
            keys.pop()
        except IndexError:
            door.lock.wait()
        except BaseException:
            keys.append(None)
            raise
        try:
            settled = door.gate.leave()
        finally:
            keys.append(None)
        if settled:
            door.wake(settled)
        if door.alert:
            door.tidy()

    def would_admit(self, *, weight: int = 1) -> Literal[True] | PermitRejection:
        """Say what `try_acquire` would answer now; reserves and counts nothing.

        By the time you act on it another caller may have come first.
        """
        check.integer("weight", weight, least=1)
        door = self._door
        with door:
            reason = door.gate.refusal(weight)
            return (
                True
                if reason is None
                else PermitRejection(reason, door.name, weight, door.capacity())
            )

    def resize(
        self,
        *,
        max_concurrent: int | None = None,
        max_queue: int | None = None,
        max_weight: int | None = None,
        revision: int | None = None,
    ) -> int:
        """Change the limits that are given, all or none, and return the revision now in force.

        Raised limits admit waiters at once. Lowered ones are reached by attrition: nobody inside
        and nobody accepted into the queue loses a place, except that a waiter heavier than the
        new `max_weight` could never be admitted and is refused. `max_concurrent=0` refuses
        all newcomers until it is raised. Raises StaleRevision unless `revision` is above the
        one in force.
        """
        door = self._door
        if max_concurrent is not None:
            check.integer("max_concurrent", max_concurrent)
            if door.limiter is not None:
                raise ConfigError("max_concurrent", max_concurrent, "is adaptive here")
        if max_queue is not None:
            check.integer("max_queue", max_queue)
        if max_weight is not None:
            check.integer("max_weight", max_weight, least=1)
        if revision is not None:
            check.integer("revision", revision)
        try:
            door.apply(
                door.gate.resize,
                max_concurrent=max_concurrent,
                max_queue=max_queue,
                max_weight=max_weight,
                revision=revision,
            )
        except StaleRevision as error:
            error.name = door.name
            raise
        return door.gate.revision

    def close(self) -> None:
        """Refuse everyone who waits and everyone to come; those inside keep their permits.

        Synchronous, final, and safe to repeat.
        """
        self._door.close()

    async def drain(
        self,
        *,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - returns, never raises
    ) -> Leftover:
        """Wait until nobody is inside and nobody waits, or for `timeout`; return what was left.

        It watches and does nothing else: without `close` newcomers are still admitted.
        """
        return await self._door.rest(seconds_of(timeout))

    def stats(self) -> Stats:
        """Read all counters at one instant; changes nothing."""
        return self._door.stats()

    def __repr__(self) -> str:
        gate = self._door.gate
        return (
            f"<Bulkhead {self.name!r}: {gate.in_flight}/{gate.max_concurrent} in flight, "
            f"{gate.pending}/{gate.max_queue} waiting{', closed' if gate.closed else ''}>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Bulkhead counts callers of one process and cannot be pickled or copied")

    def _acquire_in_thread(
        self, weight: int, timeout: float | timedelta | None
    ) -> Permit | PermitRejection:
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - listed in asyncio.__all__
            raise RuntimeError("blocking() on a thread that runs a loop; use `async with` there")
        check.integer("weight", weight, least=1)
        timeout = seconds_of(timeout)
        door, waiter = self._door, ThreadWaiter(weight)
        with door:
            if door.gate.enter(waiter) is not ADMITTED:
                door.queued(waiter, timeout)
        if waiter.outcome is WAITING:
            wait_in_thread(door, waiter, timeout)
        return issue(door, waiter) if waiter.outcome is ADMITTED else door.refused(waiter)

    def _take_out(self) -> Permit:
        """The permit that this task's innermost `async with` put in."""
        task = _task_id()
        if task not in self._entered:
            # The block is left by another task than entered it (an exit stack was handed over):
            # one anonymous permit is as good as another.
            task = next(iter(self._entered))
        permit = self._entered[task].pop()
        if not self._entered[task]:
            del self._entered[task]
        return permit


def _task_id() -> int:
    """A name for the running task that does not keep it alive; 0 where there is none."""
    try:
        return id(asyncio.current_task())
    except RuntimeError:
        return 0


def _whole_or_none(option: str, value: int | None) -> int | None:
    return None if value is None else check.integer(option, value, least=1)


def _checked_hook(option: str, hook: object) -> Hook:
    if not callable(hook) or iscoroutinefunction(hook):
        raise ConfigError(option, hook, "must be a plain function of one HookEvent")
    return hook
