"""Quantiles of recent measurements."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

SAMPLES = 1000
"""How many of the latest attempts a pool's quantiles are taken over."""


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that half, nine in ten and ninety-nine in a hundred of the samples stayed within."""

    p50: float = 0.0
    """Half of them."""
    p90: float = 0.0
    """Nine in ten."""
    p99: float = 0.0
    """Ninety-nine in a hundred."""
    samples: int = 0
    """The number of samples; 0 = nothing measured yet."""


def quantiles(measured: Iterable[float]) -> Quantiles:
    """Return the quantiles of these numbers; each is one of them (nearest rank)."""
    ordered = sorted(measured)
    if not ordered:
        return Quantiles()
    p50, p90, p99 = (ordered[ceil(part * len(ordered) / 100) - 1] for part in (50, 90, 99))
    return Quantiles(p50=p50, p90=p90, p99=p99, samples=len(ordered))
