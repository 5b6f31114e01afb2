"""One virtual loop for several simulated processes, each of which can be stopped where it stands.

A callback belongs to the process whose context it runs in. While that process is frozen, its
callbacks and timers are kept and nothing of it moves: not its handlers, not its clocks, no
`finally`. To other processes it looks like a stopped or killed process.
"""

from __future__ import annotations

from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVarTuple

from millpond.testing.clock import VirtualClock, VirtualLoop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from contextvars import Context

Ts = TypeVarTuple("Ts")


class Body:
    """What can be frozen: the callbacks and the asyncio tasks of one simulated process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._kept: list[tuple[_Gated, Context]] = []

    def keep(self, gated: _Gated, context: Context) -> None:
        """Keep a callback for later."""
        self._kept.append((gated, context))

    def thaw(self, loop: ProcessLoop) -> None:
        """Go on where it stood: everything that came due in the meantime comes now, in order."""
        self.frozen = False
        kept, self._kept = self._kept, []
        for gated, context in kept:
            loop.call_soon(gated.again, context=context)

    def alive(self) -> list[asyncio.Task[Any]]:
        """Return its tasks that have not ended, oldest first."""
        for task in [task for task in self.tasks if task.done()]:
            del self.tasks[task]
        return list(self.tasks)


body_of: ContextVar[Body | None] = ContextVar("millpond_body", default=None)
"""The simulated process that code runs in, if any."""


class _Gated:
    """A callback that waits while its process is frozen."""

    __slots__ = ("_args", "_body", "_callback", "_context", "handle")

    def __init__(
        self, body: Body, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self._body = body
        self._callback = callback
        self._args = args
        self._context = context
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        if self._body.frozen:
            self._body.keep(self, self._context)
        else:
            self._callback(*self._args)

    def again(self) -> None:
        """Run after a thaw, unless it was cancelled in the meantime."""
        if self.handle is None or not self.handle.cancelled():
            self()


class WatchedClock(VirtualClock):
    """A clock that calls a check each time before it moves on.

    At that time every process that could act has acted, and all wait.
    """

    def __init__(self, start: float = 0.0) -> None:
        super().__init__(start)
        self.before_it_moves: Callable[[], None] | None = None

    def advance(self, seconds: float) -> None:
        """Call the check, then move on."""
        if self.before_it_moves is not None:
            self.before_it_moves()
        super().advance(seconds)


class ProcessLoop(VirtualLoop):
    """A virtual loop that knows which process each callback belongs to."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        super().__init__(clock)
        self.tasks_made = 0

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call back soon, or after the thaw of the process it belongs to."""
        context = copy_context() if context is None else context
        body = context.get(body_of)
        if body is None:
            return super().call_soon(callback, *args, context=context)
        gated = _Gated(body, callback, args, context)
        handle = gated.handle = super().call_soon(gated, context=context)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at a moment, or after the thaw of the process it belongs to."""
        context = copy_context() if context is None else context
        body = context.get(body_of)
        if body is None:
            return super().call_at(when, callback, *args, context=context)
        gated = _Gated(body, callback, args, context)
        handle = super().call_at(when, gated, context=context)
        gated.handle = handle
        return handle

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],  # type: ignore[override]
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        """Make a task and note whose it is."""
        self.tasks_made += 1
        body = (copy_context() if context is None else context).get(body_of)
        task = super().create_task(
            coro, name=f"task-{self.tasks_made}" if name is None else name, context=context
        )
        if body is not None:
            body.tasks[task] = None
        return task
