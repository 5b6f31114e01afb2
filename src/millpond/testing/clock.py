"""Virtual time: a loop whose clock jumps to the next timer instead of waiting for it.

A test that sleeps an hour takes a millisecond and always the same one. When every task waits and
no timer is set, nothing can ever happen again: that is reported as `Deadlock`, not as a hang.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_TICK = 1e-6


class Deadlock(RuntimeError):
    """Every task waits, no timer is set and no thread can wake the loop."""


class VirtualClock:
    """A clock that moves only by its `advance`."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`; time never goes back."""
        if seconds < 0:
            message = f"a clock cannot move back ({seconds} s)"
            raise ValueError(message)
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    """Where the loop would block until its next timer, the clock jumps there instead."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            message = "every task waits and no timer is set"
            raise Deadlock(message)
        self._clock.advance(max(timeout, 0.0))
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time. It knows no other threads: use a real loop with those."""

    def __init__(
        self, clock: VirtualClock | None = None, selector: selectors.BaseSelector | None = None
    ) -> None:
        self.clock: VirtualClock = clock or VirtualClock()
        """Its clock."""
        super().__init__(selector or _JumpingSelector(self.clock))

    @property
    def _clock_resolution(self) -> float:
        """What a float of the present size can tell apart: a timer at this very moment is due.

        It grows with the time: one that stayed as it was at 0 would leave a timer that is due now
        undone from 2**24 s on, and the loop would go round without a moment passing.
        """
        return max(1e-9, 4 * math.ulp(self.clock.now()))

    @_clock_resolution.setter
    def _clock_resolution(self, _seconds: float) -> None:
        """Accept the resolution of the real clock, which does not matter here."""

    def time(self) -> float:
        """Return the virtual time: `asyncio.sleep`, timeouts and `call_at` all follow it."""
        return self.clock.now()

    def wall_time(self) -> float:
        """Return the time of day, which is the virtual time too: stores of this loop follow it."""
        return self.clock.now()

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Wait for at least a microsecond where any wait is asked for.

        Real time moves on by itself; here a wait too small for a float to hold would stand still,
        and a task that waits again for the rest would wait for ever.
        """
        shortest = max(_TICK, self._clock_resolution) if delay > 0 else delay
        return super().call_later(max(delay, shortest), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Move on for any moment to come: one within the resolution would be due before it is."""
        now = self.time()
        if now < when <= now + self._clock_resolution:
            when = now + max(_TICK, 2 * self._clock_resolution)
        return super().call_at(when, callback, *args, context=context)


def run_virtual(main: Coroutine[Any, Any, T], *, clock: VirtualClock | None = None) -> T:
    """Run `main` to its end on a fresh virtual loop, as `asyncio.run` would on a real one."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main)
