"""The application of act 3, imported by the demo and its worker processes.

millpond worker millpond.demo.fleet_app:make --store sqlite:///work.db
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

from millpond import Context, Millpond, Retry, fair_round_robin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from millpond.store.sql.handler_connection import HandlerConnection

LIMIT, LIMIT_EACH = 12, 8
LEASE = 30.0
LEASH = "MILLPOND_DEMO_LEASH"
"""Set for the demo's workers: they exit when the demo closes their stdin."""


def make(url: str | None = None) -> Millpond:
    """Return the application; the worker command adds its store."""
    mp = Millpond(url, lease=LEASE, resources=leash)
    parcels = mp.pool(
        "parcels",
        max_concurrent=LIMIT,
        max_per_key=LIMIT_EACH,
        queue=fair_round_robin("tenant"),
    )

    @parcels.task(key="tenant")
    async def pack(ctx: Context, seconds: float, tenant: str) -> None:  # noqa: ARG001 - its key
        """Sleep, then write to the ledger in the transaction that settles the task."""
        await asyncio.sleep(seconds)
        await ctx.commit(partial(enter, task=ctx.task_id))

    @parcels.task(key="tenant", retry=Retry(attempts=2, initial=1.0))
    async def label(seconds: float, tenant: str, house: int) -> str:
        """Sleep, then return the text of a label; only `millpond demo --serve` submits it."""
        await asyncio.sleep(seconds)
        if not house:
            raise ValueError(f"the address of a parcel of {tenant} has no house number")
        return f"{tenant}, Mill Lane {house}"

    return mp


def make_live(url: str | None = None) -> Millpond:
    """Return the application of `millpond demo --serve`: act 3, and something for each page."""
    mp = make(url)
    visits = mp.pool("visits", max_concurrent=4)

    @visits.task
    async def greet(event: dict[str, str]) -> str:
        """Greet a customer who has joined."""
        await asyncio.sleep(0.2)
        return f"welcome, {event['customer']}"

    @visits.task
    async def visit(ctx: Context, street: str, houses: int) -> str:
        """Ring at each house of a street: tasks of the same run."""
        await asyncio.sleep(0.4)
        await ctx.submit_many(visit.bind(f"{street} {house}", 0) for house in range(1, houses + 1))
        return street

    mp.trigger("greeting", on="customer.joined", into=visits, task=greet)
    mp.cron("evening-round", every=60, task=visit.bind("Pond Street", 3))
    return mp


def lay_out(file: Path) -> None:
    """Create the ledger: a table in the store's file, without a unique key, so it shows repeats."""
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE ledger (task INTEGER NOT NULL)")


def enter(database: HandlerConnection, task: int) -> None:
    """Add a task to the ledger."""
    database.execute("INSERT INTO ledger VALUES (?)", (task,))


def entries(file: Path) -> list[int]:
    """Return the tasks in the ledger, with repeats."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        return [task for (task,) in database.execute("SELECT task FROM ledger")]


@contextlib.asynccontextmanager
async def leash() -> AsyncIterator[None]:
    """End this worker when the demo has exited, for whatever reason."""
    if os.environ.get(LEASH):
        threading.Thread(target=_until_it_is_loose, daemon=True).start()
    yield


def _until_it_is_loose() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
