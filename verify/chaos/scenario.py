"""The course of one scenario: a time of calm, the fault, and what comes after it."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from millpond.pool.internals import internals_of
from verify.chaos.faults import FAULTS, Scene
from verify.chaos.fleet import Fleet, Unfinished
from verify.chaos.judge import Phases, judged
from verify.chaos.load import POOL
from verify.chaos.member import LEDGER, application
from verify.torture.evidence import PAGE
from verify.torture.ledger import Ledger, read

if TYPE_CHECKING:
    from millpond.core.audit import Record
    from millpond.core.spec import PoolSpec
    from millpond.core.task import Task
    from verify.chaos.judge import Verdict
    from verify.chaos.load import Load
    from verify.servers.postgres import OwnServer

WARM = 2.0
"""Seconds of load before anything is measured."""

PATIENCE = 60.0
"""Seconds that a fleet has to do what is left in the end."""

LOOK_EVERY = 0.5


def scenario(name: str, server: OwnServer, load: Load, *, seconds: float, seed: int) -> Verdict:
    """Run one scenario on an empty database and return its verdict."""
    read_store(load)
    with Fleet(load) as fleet:
        fleet.send_order(f"rate {load.rate}")
        time.sleep(min(WARM, seconds))
        _wait_until_little_is_left(load)
        begun = time.time()
        time.sleep(seconds)
        fault = time.time()
        FAULTS[name](Scene(fleet, server, load, seconds, random.Random(seed)))
        over = time.time()
        # The backlog may take as long as it took to pile up; then the fleet is watched for a while.
        time.sleep(seconds)
        _wait_until_little_is_left(load)
        time.sleep(seconds)
        end = time.time()
        exits = fleet.exits()
        fleet.stop_producing()
        _wait_until_done(load)
        fleet.stop()
    records, rows, spec = read_store(load)
    lines, _ = read(Path(load.home) / LEDGER)
    phases = Phases(begun, fault, over, end)
    return judged(
        name,
        phases,
        offered=load.rate,
        records=records,
        specs={POOL: spec},
        lines=lines,
        rows=rows,
        exits=exits,
    )


def _wait_until_little_is_left(load: Load) -> None:
    """Wait until nothing is piled up, for so long at most."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and _left(load) > 2 * load.slots:
        time.sleep(LOOK_EVERY)


def _wait_until_done(load: Load) -> None:
    until = time.monotonic() + PATIENCE
    while _left(load):
        if time.monotonic() > until:
            raise Unfinished(f"{_left(load)} tasks are left after {PATIENCE:g} s")
        time.sleep(LOOK_EVERY)


def _left(load: Load) -> int:
    """Return how many tasks wait or run."""
    with psycopg.connect(load.url) as connection:
        row = connection.execute("SELECT count(*) FROM millpond.millpond_alive").fetchone()
    return 0 if row is None else int(row[0])


class StoreContent(NamedTuple):
    """What the store holds in the end."""

    records: list[Record]
    rows: dict[int, Task]
    spec: PoolSpec


def read_store(load: Load) -> StoreContent:
    """Open the store, which creates it if it is new, and read all its content."""

    async def read_all() -> StoreContent:
        ledger = Ledger(Path(load.home) / LEDGER)
        async with application(load, ledger) as mp:
            rows: dict[int, Task] = {}
            after: int | None = 0
            while after is not None:
                page = await internals_of(mp).runtime.view.tasks(POOL, after=after, limit=PAGE)
                rows.update((task.new.id, task) for task in page.tasks)
                after = page.next
            records = [record async for record in mp.audit()]
            spec = mp.get_pool(POOL).spec
        ledger.close()
        return StoreContent(records, rows, spec)

    return asyncio.run(read_all())
