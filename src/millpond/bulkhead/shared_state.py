"""The gate behind a lock: every change is one short section, every caller is told outside it."""

from __future__ import annotations

import asyncio
from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from millpond.bulkhead.lock import Lock
from millpond.bulkhead.reports import Capacity, HookEvent, Leftover, PermitRejection, Stats
from millpond.bulkhead.waiters import Idler, seconds_of
from millpond.core.gate import Gate, RejectReason, TicketState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import timedelta
    from typing import ParamSpec

    from millpond.bulkhead.permit import Permit
    from millpond.bulkhead.reports import Hook
    from millpond.bulkhead.waiters import Batches, Waiter
    from millpond.core.adaptive import Limiter

    P = ParamSpec("P")

Kind = Literal["admit", "reject", "release", "close"]


class Gone(NamedTuple):
    """What hooks are told of a permit that has left."""

    id: int
    weight: int
    revision: int


class Door:
    """One bulkhead's shared state. Threads and loops meet here and nowhere else.

    A section, `with door:`, is what runs under the lock: gate verbs, and nothing that could wait or
    call out. `alert` is True while leaving a section takes more than waking those it settled:
    hooks, an adaptive limit, a drain to end, a permit that was lost. Whoever leaves a section
    looks at it *after* the lock is free, so that what came up meanwhile is never overlooked.
    """

    __slots__ = (
        "alert",
        "batches",
        "clock",
        "closing",
        "double_release",
        "gate",
        "hook_errors",
        "hooks",
        "idlers",
        "keys",
        "leaked",
        "limiter",
        "lock",
        "lost",
        "name",
        "postponed",
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
        self.idlers: list[Idler] = []
        self.lost: deque[Gone] = deque()
        self.postponed: deque[Permit] = deque()
        self.closing = False
        self.double_release = self.leaked = self.hook_errors = 0

    def __enter__(self) -> None:
        self.lock.__enter__()

    def __exit__(self, *_error: object) -> None:
        self.keys.append(None)
        if self.alert:
            self.tidy()

    def capacity(self) -> Capacity:
        """How full it is; for use inside a section."""
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
        """Run one gate verb in a section of its own, then tell everyone whom it settled."""
        with self:
            settled = verb(*args, **kwargs)
            self._note_refusals(settled)
        self.tell(settled)

    def queued(self, waiter: Waiter, timeout: float | timedelta | None) -> None:
        """Inside a section, after `gate.wait`: note a refusal, refuse who has no time to wait."""
        if waiter.outcome is TicketState.WAITING:
            if seconds_of(timeout) != 0:
                return
            self.gate.withdraw(waiter, RejectReason.TIMEOUT)
        waiter.capacity = self.capacity()

    def refused(self, waiter: Waiter) -> PermitRejection:
        """The refusal that `waiter` met, as a value."""
        assert isinstance(waiter.outcome, RejectReason)  # noqa: S101 - for the type checker
        return self.rejected(waiter.outcome, waiter.weight, waiter.capacity)

    def reject(self, reason: RejectReason, weight: int) -> PermitRejection:
        """Count a refusal that no ticket carries."""
        with self:
            self.gate.refuse(reason)
            capacity = self.capacity()
        return self.rejected(reason, weight, capacity)

    def rejected(self, reason: RejectReason, weight: int, capacity: Capacity) -> PermitRejection:
        """The refusal as a value, after its hook was called."""
        if "reject" in self.hooks:
            self._call(
                HookEvent("reject", self.name, None, weight, reason, capacity.revision, capacity)
            )
        return PermitRejection(reason, self.name, weight, capacity)

    def admitted(self, permit: Permit) -> None:
        """Do what an admission takes beyond the count: its hook, the start of its stopwatch."""
        if self.limiter is not None:
            permit.started = self.clock()
            permit.load = self.gate.in_flight
        self._announce("admit", permit.id, permit.weight, permit.revision)
        self.tidy()

    def departed(self, permit: Permit, *, failed: bool) -> None:
        """Do what a release takes beyond passing the slot on: measure, call the hook."""
        if self.limiter is not None:
            self._measure(self.limiter, permit, failed=failed)
        self._announce("release", permit.id, permit.weight, permit.revision)

    def tell(self, settled: Iterable[Waiter]) -> None:
        """Wake every caller in `settled`, and see to what else has come up."""
        self.wake(settled)
        if self.alert:
            self.tidy()

    def wake(self, settled: Iterable[Waiter]) -> None:
        """Wake every caller in `settled`; one whose loop is gone passes its slot on."""
        for waiter in settled:
            if not waiter.wake():
                deaf = [waiter]
                while deaf:
                    with self.lock:
                        heirs = self.gate.cancel(deaf.pop())
                    deaf += [heir for heir in heirs if not heir.wake()]

    def recall(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Pass on what was granted to tasks of a loop that was closed before it could tell them.

        Called by whoever is refused, or about to wait on `loop`: what it lacks may be just that.
        """
        if not self.batches or loop in self.batches:
            return
        for other in [other for other in self.batches if other.is_closed()]:
            for waiter in self.batches.pop(other, []):
                self.apply(self.gate.cancel, waiter)

    def lose(self, permit: Permit) -> None:
        """Take back the slot of a permit that was collected. Called by the collector, anywhere."""
        self.lost.append(Gone(permit.id, permit.weight, permit.revision))
        self.alert = True
        # The collector may have struck inside a section of this very thread, so waiting for the
        # lock could be for ever. Whoever has it looks at `alert` after giving it back.
        if self.lock.is_free():
            self.tidy()

    def put_off(self, permit: Permit) -> None:
        """Release `permit` as soon as the section under way ends."""
        self.postponed.append(permit)
        self.alert = True
        if self.lock.is_free():
            self.tidy()

    def close(self) -> None:
        """Close the gate, or have it closed as soon as the section under way ends."""
        if self.lock.wait_briefly():
            self._close()
            return
        self.closing = True
        self.alert = True
        if self.lock.is_free():
            self.tidy()

    def _close(self) -> None:
        """With the key in hand: close, tell those turned away, call the hook the first time."""
        try:
            first = not self.gate.closed
            settled = self.gate.close()
            self._note_refusals(settled)
        finally:
            self.keys.append(None)
        self.tell(settled)
        if first:
            self._announce("close", None, 0, self.gate.revision)

    async def rest(self, seconds: float | None) -> Leftover:
        """Wait until nobody is inside and nobody waits, at most `seconds`."""
        idler = Idler()
        with self:
            left = Leftover(self.gate.in_flight, self.gate.pending)
            if not left or seconds == 0:
                return left
            self.idlers.append(idler)
            self.alert = True
        try:
            async with asyncio.timeout(seconds):
                await idler.future
        except TimeoutError:
            with self:
                return Leftover(self.gate.in_flight, self.gate.pending)
        finally:
            with self:
                if idler in self.idlers:
                    self.idlers.remove(idler)
                self._calm_down()
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

    def tidy(self) -> None:
        """Do what was put off, take back lost slots, and end drains that have seen idleness."""
        while self.idlers or self._is_behind():
            self._catch_up()
            with self.lock:
                gone = [self.lost.popleft() for _ in range(len(self.lost))]
                settled = [waiter for permit in gone for waiter in self.gate.leave(permit.weight)]
                self.leaked += len(gone)
                rested = self._idlers_at_rest()
                self._calm_down()
            for idler in rested:
                idler.wake()
            self.wake(settled)
            for permit in gone:
                self._announce("release", *permit)
            if not self._is_behind():
                return

    def _is_behind(self) -> bool:
        """Whether something came up during a section that could not be done inside it."""
        return bool(self.lost or self.postponed or self.closing)

    def _catch_up(self) -> None:
        """Make the releases and the close that were put off."""
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

    def _calm_down(self) -> None:
        """Inside a section: end the alert, unless there is still cause for it."""
        self.alert = self.watched or bool(self.idlers)
        # Asked last: what comes up is first noted, and then the alert is raised.
        if self._is_behind():
            self.alert = True

    def _idlers_at_rest(self) -> list[Idler]:
        """Inside a section: those whose drain is over: nobody is inside, nobody waits."""
        if self.gate.in_flight or self.gate.pending:
            return []
        rested, self.idlers = self.idlers, []
        return rested

    def _note_refusals(self, settled: Sequence[Waiter]) -> None:
        refused = [waiter for waiter in settled if waiter.outcome is not TicketState.ADMITTED]
        if refused:
            capacity = self.capacity()
            for waiter in refused:
                waiter.capacity = capacity

    def _measure(self, limiter: Limiter, permit: Permit, *, failed: bool) -> None:
        now = self.clock()
        with self:
            limit = limiter.observe(now, now - permit.started, in_flight=permit.load, failed=failed)
            settled = () if limit == self.gate.max_concurrent else self.gate.retune(limit)
        self.tell(settled)

    def _announce(self, kind: Kind, number: int | None, weight: int, revision: int) -> None:
        if kind in self.hooks:
            with self:
                capacity = self.capacity()
            self._call(HookEvent(kind, self.name, number, weight, None, revision, capacity))

    def _call(self, event: HookEvent) -> None:
        """Call one hook; what it raises is counted and goes no further."""
        try:
            self.hooks[event.kind](event)
        # An observer must not change what it observes, not even by cancelling itself.
        except (Exception, asyncio.CancelledError):  # noqa: BLE001
            with self.lock:
                self.hook_errors += 1
