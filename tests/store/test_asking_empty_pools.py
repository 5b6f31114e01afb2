"""Asking for work where there is none changes nothing in the store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from verify.servers.schemas import InlinePostgresStore, Schema, Schemas
from verify.servers.sqlite_files import InlineStore, fresh_file

from millpond.core.control import Declare, DeclareBudget, Pause, Register
from millpond.core.lease import LeaseRequest
from millpond.core.rate import Rate
from millpond.core.spec import BudgetSpec, PoolSpec, fair_round_robin, fifo, priority
from millpond.core.task import CALLBACKS
from millpond.store.postgres.quoting import qualified
from millpond.store.protocol import Store
from millpond.store.sqlite.connect import connect

POOLS = (
    PoolSpec(name="plain"),
    PoolSpec(name="ahead", prefetch=4),
    PoolSpec(name="fair", order=fair_round_robin()),
    PoolSpec(name="by-priority", order=priority(), max_per_key=1),
    PoolSpec(name="lanes", order=fifo(), lanes=3, max_concurrent=3),
    PoolSpec(name="paced", rates=(Rate(1, per=60.0),), rate_per_key=Rate(1, per=60.0)),
    PoolSpec(name="sharing", budgets=("both",)),
    PoolSpec(name="paused"),
)
WORKERS = {"any": None, "some": ("work",), "none": ()}
"""Workers by what they know: everything, one function, or nothing but their own closures."""

TABLES = ("pool", "meta", "worker", "budget", "unit", "group", "seat", "audit", "live", "lease")


async def ask_them_all(store: Store) -> None:
    """Ask every pool, and the queue of its callbacks, for each worker."""
    for spec in POOLS:
        for name in (spec.name, spec.name + CALLBACKS):
            for worker in WORKERS:
                ask = LeaseRequest(pool=name, worker=worker, want=5, ahead=spec.prefetch)
                answer = await store.lease(ask, now=1001.0)
                assert not answer.leased
                assert not answer.fenced


async def writes_nothing(store: Store, written: Callable[[], Any]) -> None:
    """Declare pools of every kind, and see that asks of them leave what is written as it is."""
    await store.control(DeclareBudget(BudgetSpec(name="both", max_concurrent=3)), now=1000.0)
    for spec in POOLS:
        await store.control(Declare(spec), now=1000.0)
    await store.control(Pause("paused"), now=1000.0)
    for worker, functions in WORKERS.items():
        join = Register(worker, 60.0, owner=f"process-{worker}", functions=functions)
        await store.control(join, now=1000.0)
    before = written()
    await ask_them_all(store)
    await ask_them_all(store)
    assert before == written()


@pytest.mark.rows("TR-19")
@pytest.mark.stores("sqlite")
async def test_asking_empty_pools_writes_nothing_to_a_file() -> None:
    """Not one commit that another connection could see, whatever kind of pool is asked."""
    with fresh_file() as path:
        store, other = InlineStore(path), connect(path)
        try:
            await writes_nothing(store, lambda: _file(path, other))
        finally:
            other.close()
            await store.close()


def _file(path: Path, other: Any) -> Any:
    """Return what only a commit changes: what SQLite counts, and how long its WAL is."""
    version = other.execute("PRAGMA data_version").fetchone()
    return version, path.with_name(path.name + "-wal").stat().st_size


@pytest.mark.rows("TR-19")
@pytest.mark.real_loop
async def test_asking_empty_pools_writes_nothing_to_a_server(postgres_schemas: Schemas) -> None:
    """It writes no row for any kind of pool, so no other process need poll."""
    schema = postgres_schemas.take()
    store = InlinePostgresStore(schema)
    try:
        await writes_nothing(store, lambda: _rows(schema))
    finally:
        await store.close()
    postgres_schemas.give_back(schema)


def _rows(schema: Schema) -> list[Any]:
    """Return where each row stands, and which transaction has written it."""
    said = " UNION ALL ".join(
        f"SELECT '{table}', ctid::text, xmin::text, xmax::text FROM millpond_{table}"  # noqa: S608
        for table in TABLES
    )
    connection = schema.connection()
    rows = connection.driver.execute(qualified(said, schema.address.schema).encode()).fetchall()
    connection.close()
    return sorted(rows)
