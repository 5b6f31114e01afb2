"""The application of act 3, as the demo and each of its worker processes import it.

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

from millpond import Context, Millpond, fair_round_robin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from millpond.store.sql.handler_connection import HandlerConnection

LIMIT, LIMIT_EACH = 12, 8
LEASE = 30.0
LEASH = "MILLPOND_DEMO_LEASH"
"""Set for the demo's own workers: they end with whoever holds the other end of their stdin."""


def make(url: str | None = None) -> Millpond:
    """Return the application; a worker says itself where its store is."""
    mp = Millpond(url, lease=LEASE, resources=leash)
    parcels = mp.pool(
        "parcels",
        max_concurrent=LIMIT,
        max_per_key=LIMIT_EACH,
        queue=fair_round_robin("tenant"),
    )

    @parcels.task(key="tenant")
    async def pack(ctx: Context, seconds: float, tenant: str) -> None:  # noqa: ARG001 - its key
        """Take a while, then write down that it is done: in the transaction that ends the task."""
        await asyncio.sleep(seconds)
        await ctx.commit(partial(enter, task=ctx.task_id))

    return mp


def lay_out(file: Path) -> None:
    """Make the ledger: a table of our own in the file of the store. It would take a task twice."""
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE ledger (task INTEGER NOT NULL)")


def enter(database: HandlerConnection, task: int) -> None:
    """Write into the ledger that a task is done."""
    database.execute("INSERT INTO ledger VALUES (?)", (task,))


def entries(file: Path) -> list[int]:
    """Return the tasks in the ledger, once for each time they were written."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        return [task for (task,) in database.execute("SELECT task FROM ledger")]


@contextlib.asynccontextmanager
async def leash() -> AsyncIterator[None]:
    """End this worker when the demo is gone, however that came about."""
    if os.environ.get(LEASH):
        threading.Thread(target=_until_it_is_loose, daemon=True).start()
    yield


def _until_it_is_loose() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
