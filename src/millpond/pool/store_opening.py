"""Opens the store that a URL names, with its clock.

This is imported when a Millpond opens: a module that only declares pools and tasks does not
wait for the code that runs them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from millpond.runtime.environment import evidence_of, lasting_clock, wall_clock
from millpond.store.clock import ForwardClock, ServerClock
from millpond.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.pool.store_url import Place
    from millpond.store.protocol import Store


def clock_of_loop() -> Callable[[], float]:
    """Return the wall clock that goes with the running loop."""
    return wall_clock(asyncio.get_running_loop())


async def open_store(
    place: Place | None, *, owner: str, durability: Literal["full", "normal"], migrate: bool
) -> tuple[Store, Callable[[], float]]:
    """Open the store at a place, in memory where that is None; return it with its clock."""
    loop = asyncio.get_running_loop()
    wall = wall_clock(loop)
    clock: Callable[[], float]
    if place is None:
        return MemoryStore(clock=wall), wall
    if isinstance(place, Path):
        from millpond.store.sqlite import SqliteStore  # noqa: PLC0415 - memory does not need it

        clock = ForwardClock(wall, lasting_clock(loop), evidence=evidence_of(loop))
        file = await SqliteStore.open(
            place, owner=owner, durability=durability, migrate=migrate, clock=clock
        )
        return file, clock
    from millpond.store.postgres.store import PostgresStore  # noqa: PLC0415 - nor this one

    clock = ServerClock(lasting_clock(loop))
    server = await PostgresStore.open(
        place, owner=owner, durability=durability, migrate=migrate, clock=clock
    )
    return server, clock
