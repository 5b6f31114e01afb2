"""The place of a task in its queue, and its lane."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from millpond.core.bounds import MAX_RANK
from millpond.core.spec import OrderKind
from millpond.core.ticks import ticks

if TYPE_CHECKING:
    from millpond.core.spec import Order

# Looking up a member of an enumeration costs as much as a call: once is enough.
_FIFO, _FAIR, _LIFO = OrderKind.FIFO, OrderKind.FAIR, OrderKind.LIFO
_PRIORITY = OrderKind.PRIORITY


def rank(order: Order, priority: int, submitted_at: float, seq: int) -> int:
    """Return the rank of a task in its group: the lowest is next, equal ranks go by seq.

    Time does not change a rank, so one index serves every order. Aging too: a task that gains one
    priority per `aging` seconds overtakes those submitted less than priority * aging before it.
    It is a whole number (of microseconds, with aging), so that every store compares it alike.
    """
    kind = order.kind
    if kind is _FIFO or kind is _FAIR:
        return 0
    if kind is _LIFO:
        return -seq
    if kind is not _PRIORITY:
        message = f"no rank is defined for the order {kind!r}"
        raise NotImplementedError(message)
    if order.aging is None:
        return -priority
    aged = ticks(submitted_at) - priority * ticks(order.aging)
    # The database keeps it in 64 bits; beyond this bound differences of priority are lost.
    return max(-MAX_RANK, min(MAX_RANK, aged))


def reranked(order: Order, rank: int, before: int, after: int) -> int:
    """Return the rank of a waiting task whose priority changes; its age counts as before."""
    if order.kind is not _PRIORITY:
        return rank
    step = 1 if order.aging is None else ticks(order.aging)
    return max(-MAX_RANK, min(MAX_RANK, rank + (before - after) * step))


def lane_of(key: str, lanes: int) -> str:
    """Return the lane of a key: the same one in every process, release and store."""
    return str(crc32(key.encode()) % lanes)
