"""Portions: how much of what waits goes to the store in one verb, by number and by weight.

A transaction that carries hundreds of megabytes keeps everybody else waiting, and what it holds
is in memory several times meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.core.settle import Settlement
    from millpond.core.task import NewTask

T = TypeVar("T")

MOST_BYTES = 8 << 20
"""How many bytes of arguments, results and errors one verb carries; a single one may have more."""


def portion(waiting: Sequence[T], weight: Callable[[T], int], most: int) -> int:
    """Return how many of those that wait go together: the first in any case."""
    if len(waiting) <= most and sum(map(weight, waiting)) <= MOST_BYTES:
        return len(waiting)
    count = bytes_ = 0
    for one in waiting:
        bytes_ += weight(one)
        if count == most or (count and bytes_ > MOST_BYTES):
            break
        count += 1
    return count


def weight_of(settlement: Settlement) -> int:
    """Return about how many bytes a settlement brings to the store."""
    own = len(settlement.result or b"") + len(settlement.error or b"")
    return own + weight_of_tasks(settlement.follow_ups) if settlement.follow_ups else own


def weight_of_tasks(tasks: Sequence[NewTask]) -> int:
    """Return about how many bytes new tasks bring to the store."""
    return sum([len(new.call.payload) for new in tasks])
