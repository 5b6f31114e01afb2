"""The application of act 3, as the demo and each of its worker processes import it.

millpond worker millpond.demo.depot:make --store sqlite:///work.db
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from millpond import Context, Millpond, fair_round_robin
from millpond.pool.address import file_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
    async def pack(ctx: Context, seconds: float, tenant: str) -> str:
        """Take a while, and write into the ledger that it is done."""
        await asyncio.sleep(seconds)
        enter(ledger_of(mp), ctx.task_id)
        return tenant

    return mp


def ledger_of(mp: Millpond) -> Path:
    """Return the file that handlers write their effects into: it stands beside the store."""
    file = file_of(mp.url)
    if file is None:
        raise RuntimeError("parcels are packed from a SQLite file; name one with --store")
    return file.with_name(f"{file.name}.ledger")


def enter(ledger: Path, task: int) -> None:
    """Add a line, whole, whoever else writes at the same time."""
    with ledger.open("ab", buffering=0) as file:
        file.write(f"{task}\n".encode())


def entries(ledger: Path) -> list[int]:
    """Return the tasks whose effect was written down, once for each time."""
    return [int(line) for line in ledger.read_text("ascii").split()] if ledger.exists() else []


@contextlib.asynccontextmanager
async def leash() -> AsyncIterator[None]:
    """End this worker when the demo is gone, however that came about."""
    if os.environ.get(LEASH):
        threading.Thread(target=_until_it_is_loose, daemon=True).start()
    yield


def _until_it_is_loose() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
