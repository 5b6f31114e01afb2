"""What the hot statements cost must not depend on how much is queued, whatever the planner knows.

A scenario runs every verb of a working day on 1,000 and on 1,000,000 queued tasks: once with the
statistics of a table that was empty at its last ANALYZE, and once with fresh ones.
"""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import Connection
from tests.machine import version_of_postgres
from tests.store.postgres.backlog import BUDGET, POOLS, SEED, multiply, new_task, seed
from tests.store.postgres.plans import Seen, watched
from verify.servers.postgres import OwnServer

from millpond.core.control import Cancel, Declare, DeclareBudget, Deregister, Register
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, fair_round_robin, fifo
from millpond.core.task import Call, NewTask
from millpond.store.postgres.connect import connect
from millpond.store.postgres.dialect import dialect_of
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.server_functions import installed_name
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import address_of
from millpond.store.protocol import Batch
from millpond.store.sql.consistency import check_rows

pytestmark = pytest.mark.real_loop

SMALL = {"meta", "pool", "budget", "worker", "lease", "revision", "schema", "functions"}
"""Tables whose rows are not those of tasks that wait or have ended: they may be read as a whole."""
BY_ITSELF = ("submit", "settle_and_lease", "flush", "next_in_turn", "renew")
"""What the server does by itself for the verbs; its statements are within functions."""
MILLION = 1_000_000
HANDFUL, BATCHES = 20, 4

_numbers = itertools.count(1)


async def filled(url: str, *, later: float = 0.0) -> None:
    """Make a store, submit a thousand tasks to each pool, and run some of them."""
    store = PostgresStore(address_of(url))
    await store.control(DeclareBudget(BUDGET))
    for spec in POOLS:
        await store.control(Declare(spec))
    await seed(store)
    await store.close()
    await work(url, later=later)


async def work(url: str, *, later: float = 60.0) -> None:
    """Run every verb of a working day, on each pool; some tasks are to be tried again `later`."""
    store = PostgresStore(address_of(url))
    renewing = store.renewer()
    first = next(_numbers) * 10**15
    for at, spec in enumerate(POOLS):
        worker = f"worker-{first}-{at}"
        await store.control(Register(worker, 60.0))
        ids = first + at * 10**6
        await store.submit([Batch(tasks=(new_task(spec.name, 0, ids),))])
        many = tuple(new_task(spec.name, number, ids) for number in range(1, HANDFUL))
        await store.submit([Batch(tasks=many)])
        ask = LeaseRequest(pool=spec.name, worker=worker, want=HANDFUL, ahead=spec.prefetch)
        held = (await store.lease(ask)).leased
        assert HANDFUL == len(held)
        for number in range(BATCHES):
            renewing.renew(worker, 60.0)
            # Most are done, which the server sees to by itself; of the last some are not.
            ends = settled(held, later, all_done=number < BATCHES - 1)
            answer = await store.settle(ends, then=ask)
            assert answer.lease is not None
            held = answer.lease.leased
        await store.renew(worker, 60.0)
        await look(store, spec.name, ids)
        await store.settle(settled(held, later, all_done=False))
        await store.control(Cancel((ids + 1,)))
        await store.recover()
        await store.control(Deregister(worker))
    renewing.close()
    await store.close()


def settled(held: tuple[Leased, ...], later: float, *, all_done: bool) -> list[Settlement]:
    """End attempts; unless all are done, one is tried again at once, one later, and one failed."""
    events = [Transition.COMPLETE] * len(held)
    if not all_done:
        events[:3] = Transition.RETRY, Transition.RETRY, Transition.FAIL
    return [
        Settlement(fence=one.fence, event=event, delay=later * (at == 1 and not all_done))
        for at, (one, event) in enumerate(zip(held, events, strict=True))
    ]


async def look(store: PostgresStore, pool: str, task: int) -> None:
    """Ask what workers and their watchers ask all the time."""
    view = store.view
    assert await view.pool(pool) is not None
    assert await view.pool(pool, measured=False) is not None
    assert await view.task(task) is not None
    assert len(await view.status([task, task + 1])) == 2
    assert len((await view.tasks(pool, limit=HANDFUL)).tasks) == HANDFUL
    await view.due(now=time.time())
    await view.workers()
    await view.audit(limit=HANDFUL)


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Connect with the schema of the store as the search path."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'SET search_path = "{address_of(url).schema}"'.encode())
        yield connection


def forget_statistics(connection: Connection) -> None:
    """Make the planner think that every table is empty, and keep autovacuum off."""
    for (name,) in connection.execute(
        "SELECT oid::regclass::text FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
    ).fetchall():
        connection.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)".encode())
    connection.execute(
        "UPDATE pg_class SET relpages = 0, reltuples = 0, relallvisible = 0 "
        "WHERE relkind IN ('r', 'i') AND relnamespace = current_schema()::regnamespace"
    )


async def seen_at_work(server: OwnServer, url: str) -> tuple[Seen, Seen]:
    """Return what the server does for the scenario: knowing nothing of the tables, and all."""
    with connected(url) as connection:
        forget_statistics(connection)
        with watched(server, connection) as stale:
            await work(url)
        connection.execute("ANALYZE")
        with watched(server, connection) as fresh:
            await work(url)
    return stale, fresh


PLANNING = 30_000 if 0 < version_of_postgres() < 15 else 0
"""Pages that sessions may read for their plans: PostgreSQL 14 looks through dead rows at the ends
of indexes. To carry out the same statements it reads a fifth more pages with a million rows."""


def too_much(few: Seen, many: Seen) -> dict[str, str]:
    """Return the tables of which more was touched with a million queued than with a thousand."""
    return {
        table: f"rows {few.rows[table]} -> {many.rows[table]}, "
        f"pages {few.pages[table]} -> {many.pages[table]}"
        for table in many.rows
        if many.rows[table] > 2 * few.rows[table] + 100
        # An index of a million rows is a level or two deeper.
        or many.pages[table] > 3 * few.pages[table] + 200 + PLANNING
    }


@pytest.mark.rows("CX-09", "CX-T107")
@pytest.mark.timeout(120)
async def test_no_verb_reads_more_rows_when_the_backlog_is_larger(own: OwnServer) -> None:
    with own.database() as url:
        await filled(url)
        with own.database(template=url) as other:
            with connected(other) as connection:
                multiply(connection, MILLION // (SEED * len(POOLS)) - 1)
            many = await seen_at_work(own, other)
        few = await seen_at_work(own, url)
    for seen in (*few, *many):
        planned = " ".join(plan.statement for plan in seen.plans)
        assert [] == [
            name
            for name in BY_ITSELF
            if f"function {installed_name(f'millpond_{name}')}(" not in planned
        ]
        assert {} == {
            table: statements
            for table, statements in seen.read_whole().items()
            if table.removeprefix("millpond_") not in SMALL
        }
    assert {} == too_much(few[0], many[0])
    assert {} == too_much(few[1], many[1])
    # What the planner knows of the tables makes no difference either.
    assert {} == too_much(many[1], many[0])


IN_GROUPS = {
    "lanes": PoolSpec(name="lanes", lanes=2, max_concurrent=2, order=fifo()),
    "a lane for each key": PoolSpec(name="lanes", ordered=True, max_concurrent=2, order=fifo()),
    "one of each key": PoolSpec(name="lanes", max_per_key=1, max_concurrent=2, order=fifo()),
    "shares": PoolSpec(
        name="lanes", max_concurrent=2, order=fair_round_robin(weights={"k1": 2.0, "k3": 0.5})
    ),
}
"""Pools whose tasks are in groups: a few long ones, or many short ones."""


async def used_groups(url: str, spec: PoolSpec) -> None:
    """Submit, claim and settle, a few times."""
    store = PostgresStore(address_of(url))
    ask = LeaseRequest(pool="lanes", worker="w", want=2)
    held = (await store.lease(ask)).leased
    for number in range(HANDFUL):
        first = next(_numbers) * 10**15
        await store.submit([Batch(tasks=(grouped(first, number, spec),))])
        ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in held]
        answer = await store.settle(ends, then=ask)
        assert answer.lease is not None
        held = answer.lease.leased
        assert 2 == len(held)
    await store.settle([Settlement(fence=one.fence, event=Transition.RELEASE) for one in held])
    await store.close()


def grouped(first: int, number: int, spec: PoolSpec) -> NewTask:
    """Return a task for one of both lanes, or with a key of its own."""
    key = None if spec.lanes else f"k{number}"
    return NewTask(id=first + number, pool="lanes", call=Call("work"), key=key, share=key)


@pytest.mark.rows("DE-03")
@pytest.mark.parametrize("kind", IN_GROUPS)
async def test_a_long_lane_costs_no_more_than_a_short_one(own: OwnServer, kind: str) -> None:
    """Submit, claim and settle read as many rows with 4,000 tasks that wait as with 100."""
    spec = IN_GROUPS[kind]
    seen = []
    for length in (100, 4_000):
        with own.database() as url, connected(url) as connection:
            store = PostgresStore(address_of(url))
            await store.control(Declare(spec))
            await store.control(Register("w", 3600.0))
            first = next(_numbers) * 10**15
            await store.submit([Batch(tasks=tuple(grouped(first, n, spec) for n in range(length)))])
            await store.close()
            connection.execute(f'SET search_path = "{address_of(url).schema}"'.encode())
            connection.execute("ANALYZE")
            with watched(own, connection) as counted:
                await used_groups(url, spec)
            seen.append(counted)
    assert {} == too_much(*seen)


async def test_an_idle_worker_reads_no_delayed_task(own: OwnServer) -> None:
    with own.database() as url:
        await filled(url, later=3600.0)
        with connected(url) as connection:
            multiply(connection, 40)
            with watched(own, connection) as seen:
                store = PostgresStore(address_of(url))
                await store.view.due(now=time.time())
                await store.close()
    assert 100 > seen.rows["millpond_live"]


async def test_asking_whether_a_task_is_ready_reads_few_rows(own: OwnServer) -> None:
    with own.database() as url:
        await filled(url)
        with connected(url) as connection:
            multiply(connection, 40)
            with watched(own, connection) as seen:
                store = PostgresStore(address_of(url))
                # Under a rate by weight the heaviest task decides, so the store reads all of them.
                for pool in (spec for spec in POOLS if not spec.has_flow_control):
                    await store.control(Register("w", 60.0))
                    assert await store.view.ready(pool.name, "w", now=time.time())
                await store.close()
    assert 100 * len(POOLS) > seen.rows["millpond_live"]


async def test_the_backlog_of_these_tests_is_consistent(own_url: str) -> None:
    await filled(own_url, later=3600.0)
    with connected(own_url) as connection:
        multiply(connection, 12)
        connection.execute("ANALYZE")  # or counting takes a minute
    address = address_of(own_url)
    dialect = dialect_of(address.schema)
    counting = PostgresConnection(connect(address), dialect.many)
    assert [] == check_rows(counting, dialect)
    counting.close()


async def test_a_full_scan_of_a_table_is_noticed(own: OwnServer, own_url: str) -> None:
    await filled(own_url)
    with (
        connected(own_url) as connection,
        watched(own, connection) as seen,
        connected(own_url) as other,
    ):
        other.execute(
            "CREATE FUNCTION counted() RETURNS bigint LANGUAGE plpgsql AS "
            "$$ BEGIN RETURN (SELECT count(*) FROM millpond_live WHERE attempt < 7); END $$"
        )
        ((counted,),) = other.execute("SELECT counted()").fetchall()
        other.execute("SELECT 1 FROM millpond_live WHERE place = 1 OR place = 2")
    ((table, statements),) = seen.read_whole().items()
    assert "millpond_live" == table
    assert any("attempt < 7" in statement for statement in statements)
    assert 1 == seen.full_scans[table]
    assert 2 * SEED < counted <= seen.rows[table]
