"""Play an act: the seed decides its events, the playback speed their pace."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from millpond.testing.clock import VirtualClock, run_virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

FRAMES_PER_SECOND = 20
PLAYING: list[asyncio.Task[Any]] = []
"""The act that is playing, if any."""
AGO = 60.0
"""How long before now virtual time begins, so that it ends before the real time."""


class Audience(msgspec.Struct, frozen=True):
    """A viewer of the demo."""

    speed: float
    """Seconds of the act per real second."""
    paint: Callable[[], object]
    """Shows the latest picture."""


class PacedClock(VirtualClock):
    """A virtual clock that lets real time pass where the loop would jump, and paints meanwhile.

    The loop sees the same moments as on any virtual clock, so an act that is watched comes to the
    same end as one that is not.
    """

    def __init__(self, audience: Audience, start: float = 0.0) -> None:
        super().__init__(start)
        self._audience = audience
        self._start = start
        self._began = time.monotonic()

    def advance(self, seconds: float) -> None:
        """Advance by `seconds`, after the same time at playback speed."""
        due = self._began + (self.now() - self._start + seconds) / self._audience.speed
        while (left := due - time.monotonic()) > 0:
            self._audience.paint()
            time.sleep(min(left, 1 / FRAMES_PER_SECOND))
        super().advance(seconds)


def in_virtual_time(main: Coroutine[Any, Any, T], audience: Audience | None = None) -> T:
    """Run to the end at once, or at playback speed.

    It begins at a whole second, and from each of them floats go on in the same steps: when the
    show is given makes no difference to it.
    """
    start = float(int(time.time() - AGO))
    clock = VirtualClock(start) if audience is None else PacedClock(audience, start)
    return run_virtual(on_stage(main), clock=clock)


def in_real_time(main: Coroutine[Any, Any, T], audience: Audience | None = None) -> T:
    """Run to the end in real time, and paint meanwhile."""

    async def watched(audience: Audience) -> T:
        painting = asyncio.create_task(paint_on(audience))
        try:
            return await main
        finally:
            painting.cancel()

    return asyncio.run(on_stage(main if audience is None else watched(audience)))


async def on_stage(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine as the current act."""
    act = cast("asyncio.Task[Any]", asyncio.current_task())
    PLAYING.append(act)
    try:
        return await main
    finally:
        PLAYING.remove(act)
        if act.cancelling():
            # The act was cancelled, even if something inside swallowed the CancelledError.
            raise asyncio.CancelledError


def call_off() -> bool:
    """Cancel the current act from a signal handler; return whether there is one.

    Nothing may be raised in its place: it would come up within whatever task runs just now, and
    again where that task is waited for, and the loop would be left before the act had tidied up.
    """
    for act in PLAYING:
        act.cancel()
        # Wake the loop, as asyncio does for Ctrl-C.
        act.get_loop().call_soon_threadsafe(lambda: None)
    return bool(PLAYING)


async def paint_on(audience: Audience) -> None:
    """Paint at the frame rate."""
    while True:
        audience.paint()
        await asyncio.sleep(1 / FRAMES_PER_SECOND)
