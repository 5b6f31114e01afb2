"""Time at the pace of a watch: what happens is the seed's doing, when is the audience's."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millpond.testing.clock import VirtualClock, run_virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

FRAMES_PER_SECOND = 20
AGO = 60.0
"""How long before now virtual time begins, so that it is over before real time goes on."""


class Audience(msgspec.Struct, frozen=True):
    """Somebody who watches."""

    speed: float
    """How many seconds of an act are to pass in one of theirs."""
    paint: Callable[[], object]
    """Shows them the latest picture."""


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
        """Move on by `seconds`, once they have passed for those who watch."""
        due = self._began + (self.now() - self._start + seconds) / self._audience.speed
        while (left := due - time.monotonic()) > 0:
            self._audience.paint()
            time.sleep(min(left, 1 / FRAMES_PER_SECOND))
        super().advance(seconds)


def in_virtual_time(main: Coroutine[Any, Any, T], audience: Audience | None = None) -> T:
    """Run to the end in no time, or in the time of those who watch.

    It begins at a whole second, and from each of them floats go on in the same steps: when the
    show is given makes no difference to it.
    """
    start = float(int(time.time() - AGO))
    clock = VirtualClock(start) if audience is None else PacedClock(audience, start)
    return run_virtual(main, clock=clock)


def in_real_time(main: Coroutine[Any, Any, T], audience: Audience | None = None) -> T:
    """Run to the end in the time it takes, painting all the while."""

    async def watched(audience: Audience) -> T:
        painting = asyncio.create_task(paint_on(audience))
        try:
            return await main
        finally:
            painting.cancel()

    return asyncio.run(main if audience is None else watched(audience))


async def paint_on(audience: Audience) -> None:
    """Paint as often as an eye can tell."""
    while True:
        audience.paint()
        await asyncio.sleep(1 / FRAMES_PER_SECOND)
