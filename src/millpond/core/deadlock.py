"""Deadlock: whether a handler that waits for a task waits for itself.

A running task can finish if it does not wait, or if all it waits for can finish. A queued task can
finish if every limit it needs has room, or a holder of that limit can finish. The tasks for which
neither can be derived wait in a circle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Limit = tuple[str, str | None]
"""A pool and a lane or key of it, or the pool as a whole (None)."""


class Holder(msgspec.Struct, frozen=True):
    """A running task: the limits it counts against, and the tasks it waits for."""

    limits: tuple[Limit, ...]
    awaits: frozenset[int] = frozenset()


def waits_for_itself(
    task: int,
    running: Mapping[int, Holder],
    queued: Mapping[int, tuple[Limit, ...]],
    room: Collection[Limit],
) -> bool:
    """Return whether `task`, which runs and waits, can never finish.

    `queued` has the limits that each awaited queued task needs; `room` has the limits with a free
    place, or with a holder outside of this process.
    """
    free = set(room)
    finishing = {one for one, holder in running.items() if not holder.awaits}
    free |= {limit for one in finishing for limit in running[one].limits}
    grew = True
    while grew and task not in finishing:
        grew = False
        for one, holder in running.items():
            if one not in finishing and all(
                _can_finish(awaited, running, finishing, queued, free) for awaited in holder.awaits
            ):
                finishing.add(one)
                free.update(holder.limits)
                grew = True
    return task not in finishing


def _can_finish(
    awaited: int,
    running: Mapping[int, Holder],
    finishing: set[int],
    queued: Mapping[int, tuple[Limit, ...]],
    free: set[Limit],
) -> bool:
    if awaited in running:
        return awaited in finishing
    # A task neither running nor queued here has ended, or belongs to another process.
    return all(limit in free for limit in queued.get(awaited, ()))
