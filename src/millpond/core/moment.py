"""Moments: seconds as floats at the surface, whole microseconds wherever they are compared.

A store rounds each `now` it is given to a whole microsecond before anything looks at it. So a
moment that was computed (a rate that refills, a retry that is due) and the same moment asked about
are equal, on every store, whatever a float made of them on the way.
"""

from __future__ import annotations

MICROSECONDS = 1_000_000


def ticks(moment: float) -> int:
    """Return a moment in whole microseconds."""
    return round(moment * MICROSECONDS)


def seconds(ticked: int) -> float:
    """Return whole microseconds as seconds: the same float for the same tick, always."""
    return ticked / MICROSECONDS


def rounded(moment: float) -> float:
    """Return a moment on a whole microsecond."""
    return round(moment * MICROSECONDS) / MICROSECONDS
