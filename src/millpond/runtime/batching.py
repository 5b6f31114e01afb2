"""Batching: how much goes to the store in one verb, by number and by bytes.

A transaction that carries hundreds of megabytes delays all others, and its values are in memory
several times meanwhile.
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


def fitting(waiting: Sequence[T], size: Callable[[T], int], most: int) -> int:
    """Return how many of the waiting ones fit into one verb; the first always does."""
    if len(waiting) <= most and sum(map(size, waiting)) <= MOST_BYTES:
        return len(waiting)
    count = bytes_ = 0
    for one in waiting:
        bytes_ += size(one)
        if count == most or (count and bytes_ > MOST_BYTES):
            break
        count += 1
    return count


def bytes_of(settlement: Settlement) -> int:
    """Return about how many bytes a settlement sends to the store."""
    own = len(settlement.result or b"") + len(settlement.error or b"")
    return own + bytes_of_tasks(settlement.follow_ups) if settlement.follow_ups else own


def bytes_of_tasks(tasks: Sequence[NewTask]) -> int:
    """Return about how many bytes new tasks send to the store."""
    return sum([len(new.call.payload) for new in tasks])
