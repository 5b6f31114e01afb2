"""The clock of a store that outlives processes: the time of day, made to move on and never back.

A wall clock can be set. What was due must stay due, so a store never acts before a moment it has
acted at; and if its time merely stood still until the wall clock has caught up, nothing would
become due and no lease would run out all that while. So after the wall clock was set back, this
one goes on from where it was, at the pace of a clock that nobody sets.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ForwardClock:
    """Tells the time of day, or later: never less than it told, or was told, before.

    One may be read and told from several threads: at worst the last word of another thread is
    heard a moment later.
    """

    __slots__ = ("_ahead", "_steady", "_wall")

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._ahead = wall() - steady()
        """How far it is ahead of the steady clock: this only ever grows."""

    def __call__(self) -> float:
        """Return the time.

        The steady clock is read last: a process that stands still between the two readings must
        think itself behind for once. The other way round it would be ahead by that long for ever,
        and so would everybody who hears from it.
        """
        wall = self._wall()
        steady = self._steady()
        self._ahead = max(self._ahead, wall - steady)
        return steady + self._ahead

    def reached(self, moment: float) -> None:
        """Somebody has acted at a moment: it is that late at least."""
        self._ahead = max(self._ahead, moment - self._steady())


class ServerClock:
    """Tells the time of a server, by what it last said and what has passed since on this side.

    All that use one server go by its clock, so theirs need not agree. It is heard with every
    transaction; between two of them a clock that nobody sets goes on.
    """

    __slots__ = ("_ahead", "_steady")

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        # Until the server is heard, what this machine thinks will do.
        self._ahead = time.time() - steady()

    def __call__(self) -> float:
        """Return the time."""
        return self._steady() + self._ahead

    def told(self, moment: float) -> None:
        """Hear what the server's clock says now."""
        self._ahead = moment - self._steady()
