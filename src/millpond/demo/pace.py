"""Virtual time at the pace of a watch: what happens is the seed's doing, when is the audience's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from millpond.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

FRAMES_PER_SECOND = 20


class PacedClock(VirtualClock):
    """A virtual clock that lets real time pass where the loop would jump, and paints meanwhile.

    The loop sees the same moments as on any virtual clock, so an act that is watched comes to the
    same end as one that is not.
    """

    def __init__(self, speed: float, paint: Callable[[], None]) -> None:
        super().__init__()
        self._speed = speed
        self._paint = paint
        self._began = time.monotonic()

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`, once they have passed for those who watch."""
        due = self._began + (self.now() + seconds) / self._speed
        while (left := due - time.monotonic()) > 0:
            self._paint()
            time.sleep(min(left, 1 / FRAMES_PER_SECOND))
        super().advance(seconds)
