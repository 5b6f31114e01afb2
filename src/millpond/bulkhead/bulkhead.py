"""The bulkhead: a hard limit on concurrent callers, and a rejection for all others."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar, TypeVarTuple

from millpond.bulkhead.permit import Permit, is_failure, issue
from millpond.bulkhead.permit_context import PermitContext
from millpond.bulkhead.reports import PermitRejection, as_error
from millpond.bulkhead.shared_state import SharedState
from millpond.bulkhead.waiters import LoopWaiter, ThreadWaiter, seconds_of
from millpond.bulkhead.waiting import wait_in_thread, wait_on_loop
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

    Any other caller is refused at once, with a reason. It does no I/O, belongs to no loop, and
    tasks of several loops and threads may share it: all of them wait in one queue.

    `max_weight` also bounds the sum of the weights inside. `adaptive(1, 50)` in place of
    `max_concurrent` lets observed latency and failures move the limit. Hooks are called after
    every change, outside the lock, with one `HookEvent`; their errors are counted and dropped.
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
            max_weight=None
            if max_weight is None
            else check.integer("max_weight", max_weight, least=1),
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
        self._internals = SharedState(
            check.name("name", name), gate, hooks=hooks, limiter=limiter, clock=clock
        )
        # With hooks or an adaptive limit: the permits that `async with` holds, by task.
        self._entered: defaultdict[int, list[Permit]] = defaultdict(list)

    @property
    def name(self) -> str:
        """Its name."""
        return self._internals.name

    def try_acquire(self, weight: int = 1) -> Permit | PermitRejection:
        """Return a permit or a rejection at once; never waits, never queues."""
        if weight != 1:
            check.integer("weight", weight, least=1)
        state = self._internals
        gate = state.gate
        keys = state.keys
        permit = Permit()
        permit._held = False
        permit._state = state
        permit.weight = weight
        try:
            keys.pop()
        except IndexError:
            state.lock.wait()
        except BaseException:
            keys.append(None)
            raise
        try:
            reason = gate.try_enter(weight)
            if reason is None:
                permit._held = True
                permit.id = gate.admitted
                permit.revision = gate.revision
            else:
                capacity = state.capacity()
        finally:
            keys.append(None)
        if reason is not None:
            if state.alert:
                state.catch_up()
            if state.batches:
                state.reclaim_from_closed_loops(None)
            return state.rejected(reason, weight, capacity)
        if state.alert:
            state.admitted(permit)
        return permit

    async def acquire(
        self,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - bounds the wait, not the work
        signal: asyncio.Event | None = None,
        weight: int = 1,
    ) -> Permit | PermitRejection:
        """Return a permit, waiting in order if the queue has a place, or a rejection.

        `timeout` bounds the wait. `signal` aborts it and is checked first: once it is set, even a
        free slot is refused. Cancelling the waiting task works too; no abort loses a slot.
        """
        if weight != 1:
            check.integer("weight", weight, least=1)
        if timeout is not None:
            timeout = seconds_of(timeout)
        state = self._internals
        if signal is not None and signal.is_set():
            return state.reject(RejectReason.ABORTED, weight)
        gate = state.gate
        waiter = None
        keys = state.keys
        try:
            keys.pop()
        except IndexError:
            state.lock.wait()
        except BaseException:
            keys.append(None)
            raise
        try:
            if gate.take(weight):
                number, revision = gate.admitted, gate.revision
            else:
                waiter = LoopWaiter(weight, state.batches)
                if gate.wait(waiter) is not WAITING or timeout is not None:
                    state.queued(waiter, timeout)
        finally:
            keys.append(None)
        if waiter is not None:
            if state.alert:
                state.catch_up()
            if state.batches:
                state.reclaim_from_closed_loops(waiter.get_loop())
            if waiter.outcome is WAITING:
                if timeout is None and signal is None:
                    try:
                        await waiter
                    except BaseException:
                        state.apply(gate.cancel, waiter)
                        raise
                else:
                    await wait_on_loop(state, waiter, timeout, signal)
            return issue(state, waiter) if waiter.outcome is ADMITTED else state.refused(waiter)
        permit = Permit()
        permit._state = state
        permit.id = number
        permit.weight = weight
        permit.revision = revision
        permit._held = True
        if state.alert:
            state.admitted(permit)
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
        return PermitContext(partial(self.acquire, timeout, signal, weight))

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
        """Hold a slot for the length of the block, as `permit()` does; raises BulkheadRejected."""
        state = self._internals
        if state.watched:
            permit = await self.acquire()
            if not permit:
                raise as_error(permit)
            self._entered[_task_id()].append(permit)
            return
        waiter = None
        keys = state.keys
        try:
            keys.pop()
        except IndexError:
            state.lock.wait()
        except BaseException:
            keys.append(None)
            raise
        try:
            if not state.gate.take():
                waiter = LoopWaiter(1, state.batches)
                if state.gate.wait(waiter) is not WAITING:
                    state.queued(waiter, None)
        finally:
            keys.append(None)
        if state.alert:
            state.catch_up()
        if waiter is not None:
            if state.batches:
                state.reclaim_from_closed_loops(waiter.get_loop())
            if waiter.outcome is WAITING:
                try:
                    await waiter
                except BaseException:
                    state.apply(state.gate.cancel, waiter)
                    raise
            if waiter.outcome is not ADMITTED:
                raise as_error(state.refused(waiter))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        state = self._internals
        if state.watched:
            self._take_out().release(failed=is_failure(kind))
            return
        # Anonymous permits are all alike: leaving returns any of them.
        keys = state.keys
        try:
            keys.pop()
        except IndexError:
            state.lock.wait()
        except BaseException:
            keys.append(None)
            raise
        try:
            settled = state.gate.leave()
        finally:
            keys.append(None)
        if settled:
            state.wake(settled)
        if state.alert:
            state.catch_up()

    def would_admit(self, *, weight: int = 1) -> Literal[True] | PermitRejection:
        """Return what `try_acquire` would answer now; reserves and counts nothing.

        Another caller may be admitted before you act on the answer.
        """
        check.integer("weight", weight, least=1)
        state = self._internals
        with state:
            reason = state.gate.refusal(weight)
            return (
                True
                if reason is None
                else PermitRejection(reason, state.name, weight, state.capacity())
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

        Raised limits admit waiters at once. Lowered ones are reached by attrition: no caller inside
        or in the queue loses its place, except that a waiter heavier than the new `max_weight`
        could never be admitted and is refused. `max_concurrent=0` refuses all new callers until
        it is raised. Raises StaleRevision unless `revision` is above the one in force.
        """
        state = self._internals
        if max_concurrent is not None:
            check.integer("max_concurrent", max_concurrent)
            if state.limiter is not None:
                raise ConfigError("max_concurrent", max_concurrent, "is adaptive here")
        if max_queue is not None:
            check.integer("max_queue", max_queue)
        if max_weight is not None:
            check.integer("max_weight", max_weight, least=1)
        if revision is not None:
            check.integer("revision", revision)
        try:
            state.apply(
                state.gate.resize,
                max_concurrent=max_concurrent,
                max_queue=max_queue,
                max_weight=max_weight,
                revision=revision,
            )
        except StaleRevision as error:
            error.name = state.name
            raise
        return state.gate.revision

    def close(self) -> None:
        """Refuse all waiting and future callers; those inside keep their permits.

        Synchronous, final, and safe to repeat.
        """
        self._internals.close()

    async def drain(
        self,
        *,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - returns, never raises
    ) -> Leftover:
        """Wait until no caller is inside or waits, or for `timeout`; return how many were left.

        It only waits: without `close` new callers are still admitted.
        """
        return await self._internals.wait_until_idle(seconds_of(timeout))

    def stats(self) -> Stats:
        """Read all counters at one instant; changes nothing."""
        return self._internals.stats()

    def __repr__(self) -> str:
        gate = self._internals.gate
        return (
            f"<Bulkhead {self.name!r}: {gate.in_flight}/{gate.max_concurrent} in flight, "
            f"{gate.pending}/{gate.max_queue} waiting{', closed' if gate.closed else ''}>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Bulkhead counts callers of one process and cannot be pickled or copied")

    def _acquire_in_thread(
        self, weight: int, timeout: float | timedelta | None
    ) -> Permit | PermitRejection:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("blocking() on a thread that runs a loop; use `async with` there")
        check.integer("weight", weight, least=1)
        timeout = seconds_of(timeout)
        state, waiter = self._internals, ThreadWaiter(weight)
        with state:
            if state.gate.enter(waiter) is not ADMITTED:
                state.queued(waiter, timeout)
        if waiter.outcome is WAITING:
            wait_in_thread(state, waiter, timeout)
        return issue(state, waiter) if waiter.outcome is ADMITTED else state.refused(waiter)

    def _take_out(self) -> Permit:
        """Return the permit of this task's innermost `async with`."""
        task = _task_id()
        if task not in self._entered:
            # Another task entered the block (an exit stack was passed on): any anonymous permit
            # will do.
            task = next(iter(self._entered))
        permit = self._entered[task].pop()
        if not self._entered[task]:
            del self._entered[task]
        return permit


def _task_id() -> int:
    """Return an id of the running task, which does not keep it alive; 0 where there is none."""
    try:
        return id(asyncio.current_task())
    except RuntimeError:
        return 0


def _checked_hook(option: str, hook: object) -> Hook:
    if not callable(hook) or iscoroutinefunction(hook):
        raise ConfigError(option, hook, "must be a plain function of one HookEvent")
    return hook
