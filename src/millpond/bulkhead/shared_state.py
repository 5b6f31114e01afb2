"""The shared state of a bulkhead: the gate behind a lock.

Every change is one short locked section; callers are woken outside it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from millpond.bulkhead.lock import Lock
from millpond.bulkhead.reports import Capacity, HookEvent, Leftover, PermitRejection, Stats
from millpond.bulkhead.waiters import DrainWaiter, seconds_of
from millpond.core.gate import Gate, RejectReason, TicketState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import timedelta
    from typing import ParamSpec

    from millpond.bulkhead.reports import Hook
    from millpond.bulkhead.waiters import Batches, Waiter
    from millpond.core.adaptive import Limiter

    P = ParamSpec("P")

Kind = Literal["admit", "reject", "release", "close"]


class LeftPermit(NamedTuple):
    """The fields of a collected permit that hooks get."""

    id: int
    weight: int
    revision: int


class Admitted(Protocol):
    """A permit, as far as the shared state uses it."""

    id: int
    weight: int
    revision: int
    _started: float
    _load: int

    def release(self) -> None: ...


class SharedState:
    """All that threads and loops share of one bulkhead; the internal object behind `Bulkhead`.

    A section, `with state:`, runs under the lock: gate verbs, and nothing that could wait or call
    out. `alert` is True while leaving a section takes more than waking the waiters it settled:
    hooks, an adaptive limit, a drain to end, a permit that was never released. Each section checks
    it *after* it has freed the lock, so that nothing that came up meanwhile is overlooked.
    """

    __slots__ = (
        "alert",
        "batches",
        "clock",
        "closing",
        "double_release",
        "drains",
        "gate",
        "hook_errors",
        "hooks",
        "keys",
        "leaked",
        "limiter",
        "lock",
        "name",
        "postponed",
        "unreleased",
        "watched",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        gate: Gate[Waiter],
        *,
        hooks: Mapping[Kind, Hook],
        limiter: Limiter | None,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.gate = gate
        self.hooks = hooks
        self.limiter = limiter
        self.clock = clock
        self.lock = Lock()
        self.keys = self.lock.keys
        self.batches: Batches = {}
        self.watched = self.alert = bool(hooks) or limiter is not None
        self.drains: list[DrainWaiter] = []
        self.unreleased: deque[LeftPermit] = deque()
        self.postponed: deque[Admitted] = deque()
        self.closing = False
        self.double_release = self.leaked = self.hook_errors = 0

    def __enter__(self) -> None:
        self.lock.__enter__()

    def __exit__(self, *_error: object) -> None:
        self.keys.append(None)
        if self.alert:
            self.catch_up()

    def capacity(self) -> Capacity:
        """Return how full it is; for use inside a section."""
        gate = self.gate
        return Capacity(
            gate.in_flight,
            gate.pending,
            gate.max_concurrent,
            gate.max_queue,
            gate.weight_in_flight,
            gate.max_weight,
            gate.closed,
            gate.revision,
        )

    def apply(self, verb: Callable[P, Sequence[Waiter]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run one gate verb in a section of its own, then wake the waiters it settled."""
        with self:
            settled = verb(*args, **kwargs)
            self._note_refusals(settled)
        self.wake_settled(settled)

    def queued(self, waiter: Waiter, timeout: float | timedelta | None) -> None:
        """Inside a section, after `gate.wait`: note a refusal, or refuse a wait of no time."""
        if waiter.outcome is TicketState.WAITING:
            if seconds_of(timeout) != 0:
                return
            self.gate.withdraw(waiter, RejectReason.TIMEOUT)
        waiter.capacity = self.capacity()

    def refused(self, waiter: Waiter) -> PermitRejection:
        """Return the refusal of `waiter` as a value."""
        assert isinstance(waiter.outcome, RejectReason)  # noqa: S101 - for the type checker
        return self.rejected(waiter.outcome, waiter.weight, waiter.capacity)

    def reject(self, reason: RejectReason, weight: int) -> PermitRejection:
        """Count a refusal without a ticket, and return it."""
        with self:
            self.gate.refuse(reason)
            capacity = self.capacity()
        return self.rejected(reason, weight, capacity)

    def rejected(self, reason: RejectReason, weight: int, capacity: Capacity) -> PermitRejection:
        """Call the hook of a refusal, and return the refusal as a value."""
        if "reject" in self.hooks:
            self._call(
                HookEvent("reject", self.name, None, weight, reason, capacity.revision, capacity)
            )
        return PermitRejection(reason, self.name, weight, capacity)

    def admitted(self, permit: Admitted) -> None:
        """Start the stopwatch of an admission and call its hook."""
        if self.limiter is not None:
            permit._started = self.clock()
            permit._load = self.gate.in_flight
        self._announce("admit", permit.id, permit.weight, permit.revision)
        self.catch_up()

    def departed(self, permit: Admitted, *, failed: bool) -> None:
        """Measure a release and call its hook."""
        if self.limiter is not None:
            self._measure(self.limiter, permit, failed=failed)
        self._announce("release", permit.id, permit.weight, permit.revision)

    def wake_settled(self, settled: Iterable[Waiter]) -> None:
        """Wake every caller in `settled`, and do the postponed work."""
        self.wake(settled)
        if self.alert:
            self.catch_up()

    def wake(self, settled: Iterable[Waiter]) -> None:
        """Wake every caller in `settled`; one whose loop is closed passes its slot on."""
        for waiter in settled:
            if not waiter.wake():
                unreachable = [waiter]
                while unreachable:
                    with self.lock:
                        next_waiters = self.gate.cancel(unreachable.pop())
                    unreachable += [waiter for waiter in next_waiters if not waiter.wake()]

    def reclaim_from_closed_loops(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Pass on slots of tasks whose loop was closed before it woke them.

        Called for a caller that is refused or about to wait on `loop`: it may need such a slot.
        """
        if not self.batches or loop in self.batches:
            return
        for other in [other for other in self.batches if other.is_closed()]:
            for waiter in self.batches.pop(other, []):
                self.apply(self.gate.cancel, waiter)

    def reclaim(self, permit: Admitted) -> None:
        """Take back the slot of a collected permit. The collector calls this, anywhere."""
        self.unreleased.append(LeftPermit(permit.id, permit.weight, permit.revision))
        self.alert = True
        # The collector may have run inside a section of this very thread, so waiting for the
        # lock could be for ever. The section checks `alert` after it has freed the lock.
        if self.lock.is_free():
            self.catch_up()

    def postpone_release(self, permit: Admitted) -> None:
        """Release `permit` as soon as the section under way ends."""
        self.postponed.append(permit)
        self.alert = True
        if self.lock.is_free():
            self.catch_up()

    def close(self) -> None:
        """Close the gate, now or as soon as the section under way ends."""
        if self.lock.wait_briefly():
            self._close()
            return
        self.closing = True
        self.alert = True
        if self.lock.is_free():
            self.catch_up()

    def _close(self) -> None:
        """With the lock taken: close, wake the refused, call the hook the first time."""
        try:
            first = not self.gate.closed
            settled = self.gate.close()
            self._note_refusals(settled)
        finally:
            self.keys.append(None)
        self.wake_settled(settled)
        if first:
            self._announce("close", None, 0, self.gate.revision)

    async def wait_until_idle(self, seconds: float | None) -> Leftover:
        """Wait until no caller is inside or waits, at most `seconds`."""
        drain = DrainWaiter()
        with self:
            left = Leftover(self.gate.in_flight, self.gate.pending)
            if not left or seconds == 0:
                return left
            self.drains.append(drain)
            self.alert = True
        try:
            async with asyncio.timeout(seconds):
                await drain.future
        except TimeoutError:
            with self:
                return Leftover(self.gate.in_flight, self.gate.pending)
        finally:
            with self:
                if drain in self.drains:
                    self.drains.remove(drain)
                self._update_alert()
        return Leftover(0, 0)

    def stats(self) -> Stats:
        """Read all counters at one instant."""
        gate = self.gate
        with self:
            refused = dict(gate.refused)
            return Stats(
                bulkhead=self.name,
                in_flight=gate.in_flight,
                pending=gate.pending,
                max_concurrent=gate.max_concurrent,
                max_queue=gate.max_queue,
                weight_in_flight=gate.weight_in_flight,
                max_weight=gate.max_weight,
                closed=gate.closed,
                revision=gate.revision,
                admitted=gate.admitted,
                released=gate.released,
                rejected=sum(refused.values()),
                rejected_by_reason=MappingProxyType(refused),
                aborted=refused[RejectReason.ABORTED],
                timed_out=refused[RejectReason.TIMEOUT],
                double_release=self.double_release,
                underflow=gate.underflow,
                leaked=self.leaked,
                hook_errors=self.hook_errors,
            )

    def catch_up(self) -> None:
        """Do the postponed work, take back slots of collected permits, end finished drains."""
        while self.drains or self._has_postponed():
            self._run_postponed()
            with self.lock:
                gone = [self.unreleased.popleft() for _ in range(len(self.unreleased))]
                settled = [waiter for permit in gone for waiter in self.gate.leave(permit.weight)]
                self.leaked += len(gone)
                finished = self._finished_drains()
                self._update_alert()
            for drain in finished:
                drain.wake()
            self.wake(settled)
            for permit in gone:
                self._announce("release", *permit)
            if not self._has_postponed():
                return

    def _has_postponed(self) -> bool:
        """Return whether something came up during a section that could not be done inside it."""
        return bool(self.unreleased or self.postponed or self.closing)

    def _run_postponed(self) -> None:
        """Make the releases and the close that were postponed."""
        with self.lock:
            postponed = [self.postponed.popleft() for _ in range(len(self.postponed))]
            closing = self.closing
            if closing:
                # Cleared only where it was seen: a signal handler may set it at any moment.
                self.closing = False
        for permit in postponed:
            permit.release()
        if closing:
            self.close()

    def _update_alert(self) -> None:
        """Inside a section: set `alert` again."""
        self.alert = self.watched or bool(self.drains)
        # Last: what comes up is first noted, and then sets the alert.
        if self._has_postponed():
            self.alert = True

    def _finished_drains(self) -> list[DrainWaiter]:
        """Inside a section: return the drains that are over, if the gate is idle."""
        if self.gate.in_flight or self.gate.pending:
            return []
        finished, self.drains = self.drains, []
        return finished

    def _note_refusals(self, settled: Sequence[Waiter]) -> None:
        refused = [waiter for waiter in settled if waiter.outcome is not TicketState.ADMITTED]
        if refused:
            capacity = self.capacity()
            for waiter in refused:
                waiter.capacity = capacity

    def _measure(self, limiter: Limiter, permit: Admitted, *, failed: bool) -> None:
        now = self.clock()
        with self:
            limit = limiter.observe(
                now, now - permit._started, in_flight=permit._load, failed=failed
            )
            settled = () if limit == self.gate.max_concurrent else self.gate.retune(limit)
        self.wake_settled(settled)

    def _announce(self, kind: Kind, number: int | None, weight: int, revision: int) -> None:
        if kind in self.hooks:
            with self:
                capacity = self.capacity()
            self._call(HookEvent(kind, self.name, number, weight, None, revision, capacity))

    def _call(self, event: HookEvent) -> None:
        """Call one hook; an error of it is counted and goes no further."""
        try:
            self.hooks[event.kind](event)
        # A hook must not change the bulkhead, not even by cancelling itself.
        except (Exception, asyncio.CancelledError):  # noqa: BLE001
            with self.lock:
                self.hook_errors += 1
