"""A transaction is kept open, so no dead row can be removed: no statement may read all of them.

The tests measure how many rows and index entries the server reads for a task, not how long it
takes: before thousands of tasks have come and gone, and after that.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psycopg
import pytest
from tests.store.postgres.plans import IDLE_SESSION, watched
from verify.servers.postgres import OwnServer

from millpond.core.control import Declare, DeclareBudget, Register
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.core.spec import BudgetSpec, PoolSpec, fair_round_robin, fifo, priority
from millpond.core.task import Call, NewTask
from millpond.store.postgres.connect import connect
from millpond.store.postgres.dialect import dialect_of
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import address_of
from millpond.store.protocol import Batch
from millpond.store.sql.consistency import check_rows

pytestmark = pytest.mark.real_loop

POOLS = {
    "plain": PoolSpec(name="p", order=fifo(), max_concurrent=50),
    "ranked": PoolSpec(name="p", order=priority(), max_concurrent=50),
    "ahead": PoolSpec(name="p", order=fifo(), max_concurrent=50, prefetch=50),
    "by the verbs": PoolSpec(name="p", order=fifo(), max_concurrent=50),
    "tried again": PoolSpec(name="p", order=fifo(), max_concurrent=50),
    "delayed": PoolSpec(name="p", order=fifo(), max_concurrent=50),
    "from the inbox": PoolSpec(name="p", order=fifo(), max_concurrent=50),
    "fair": PoolSpec(name="p", order=fair_round_robin("share"), max_concurrent=50),
    "per key": PoolSpec(name="p", order=fifo(), max_concurrent=50, max_per_key=20),
    "fair per key": PoolSpec(name="p", order=fair_round_robin(), max_concurrent=50, max_per_key=20),
    "lanes": PoolSpec(name="p", order=fifo(), max_concurrent=2, lanes=2),
    "budget": PoolSpec(name="p", order=fifo(), max_concurrent=50, budgets=("wide",)),
}
KEYED = ("fair", "per key", "fair per key", "lanes")
"""Where each task has one of three keys."""

WATCHED = 40
"""Turns in which it is counted what the server reads."""
BETWEEN = 100
MANY = 20
"""Tasks of each turn in between."""

WAITING = 3
"""Tasks that always wait: where none does, there is nothing to walk past."""

A_MOMENT = 0.001
"""Seconds: what is delayed for that long is due in the next turn, or in the one after it."""

FOR_A_PLAN = 10_000
"""Rows: the planner of a join reads both ends of an index, in a hundred pages at most."""

ALLOWED = {"millpond_lease": WATCHED * 8 * 1024}
"""A search for a lease reads the last 1024."""

_ids = itertools.count(1 << 40)


@contextmanager
def held_open(url: str) -> Iterator[None]:
    """Keep a transaction open that has a snapshot and a transaction id."""
    with psycopg.connect(url, application_name=IDLE_SESSION) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT pg_current_xact_id(), count(*) FROM pg_class")
        yield


class Load:
    """One way to use a pool: in each turn some are submitted, as many start, others end."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        self.held: tuple[Leased, ...] = ()

    def new(self, number: int) -> NewTask:
        """Return a task as this way has it."""
        identifier = next(_ids)
        return NewTask(
            id=identifier,
            pool="p",
            call=Call("work", b"\x91\x01"),
            key=f"tenant-{identifier % 3}" if self.kind in KEYED else None,
            share=f"share-{identifier % 3}" if self.kind in KEYED else None,
            priority=number % 3 if self.kind == "ranked" else 0,
            delay=A_MOMENT if self.kind == "delayed" else 0.0,
            idempotency_key=f"order-{identifier}" if self.kind == "by the verbs" else None,
        )

    async def submit(self, store: PostgresStore, count: int) -> None:
        """Submit some tasks."""
        if self.kind == "from the inbox":
            with psycopg.connect(self.url) as connection:
                connection.execute(
                    "SELECT millpond.submit('p', 'work') FROM generate_series(1, %s)", [count]
                )
            return
        await store.submit([Batch(tasks=tuple(self.new(number) for number in range(count)))])

    def ends(self) -> list[Settlement]:
        """End all that runs; of those that are tried again, each first attempt is not the last."""
        return [
            Settlement(
                fence=one.fence,
                event=Transition.RETRY
                if self.kind == "tried again" and one.fence.attempt == 1
                else Transition.COMPLETE,
            )
            for one in self.held
        ]

    async def turns(self, turns: int, count: int) -> None:
        """Take turns with a store of one's own."""
        store = PostgresStore(address_of(self.url))
        ask = LeaseRequest(
            pool="p", worker="w", want=count, ahead=count if POOLS[self.kind].prefetch else 0
        )
        for _ in range(turns):
            await self.submit(store, count)
            if self.held:
                answer = (await store.settle(self.ends(), then=ask)).lease
            else:
                answer = await store.lease(ask)
            assert answer is not None
            self.held = answer.leased
        await store.close()


@pytest.mark.parametrize("kind", POOLS)
async def test_the_rows_read_for_a_task_stay_the_same(kind: str, own: OwnServer) -> None:
    """So it does after many tasks have come and gone since the transaction was opened."""
    with own.database() as url, psycopg.connect(url, autocommit=True) as watching:
        store = PostgresStore(address_of(url))
        await store.control(DeclareBudget(BudgetSpec(name="wide", max_concurrent=1000)))
        await store.control(Declare(POOLS[kind]))
        await store.control(Register("w", 3600.0))
        load = Load(kind, url)
        await load.submit(store, WAITING)
        await store.close()
        await load.turns(10, 3)
        with held_open(url):
            with watched(own, watching) as early:
                await load.turns(WATCHED, 1)
            await load.turns(BETWEEN, MANY)
            await compacted(url)
            await load.turns(1, 1)  # the first may read dead rows, and marks them
            watching.execute("ANALYZE")
            with watched(own, watching) as late:
                await load.turns(WATCHED, 1)
        assert [] == wrong_in(url)
    grown = {
        table: (early.rows[table], late.rows[table])
        for table in late.rows
        if late.rows[table] > 2 * early.rows[table] + ALLOWED.get(table, FOR_A_PLAN)
    }
    assert {} == grown


async def compacted(url: str) -> tuple[str, ...]:
    """Do what the leader does now and then, though the tables of a test are small."""
    store = PostgresStore(address_of(url))
    try:
        return await store.compact(least=8_192)
    finally:
        await store.close()


def wrong_in(url: str) -> list[str]:
    """Return the inconsistencies between the tables."""
    address = address_of(url)
    dialect = dialect_of(address.schema)
    counting = PostgresConnection(connect(address), dialect.many)
    try:
        return check_rows(counting, dialect)
    finally:
        counting.close()


@pytest.mark.rows("CX-08", "CX-21")
async def test_a_task_committed_late_is_found(own_url: str) -> None:
    """So it is if later tasks were found before it, and the marks were set past both."""
    store = PostgresStore(address_of(own_url))
    await store.control(Declare(POOLS["plain"]))
    await store.control(Register("w", 3600.0))
    submit = "SELECT millpond.submit('p', 'work')"
    with psycopg.connect(own_url) as late, psycopg.connect(own_url) as later:
        (first,) = late.execute(submit).fetchone() or ()
        (second,) = later.execute(submit).fetchone() or ()
        started = []
        for connection in (None, None, later, None, late, None):
            with psycopg.connect(own_url) as quick:
                (third,) = quick.execute(submit).fetchone() or ()
            if connection is not None:
                connection.commit()
            answer = await store.lease(LeaseRequest(pool="p", worker="w", want=10))
            started.append({one.fence.task for one in answer.leased} - {third})
        assert [set(), set(), {second}, set(), {first}, set()] == started
    await store.close()
    assert [] == wrong_in(own_url)


async def test_marks_of_another_server_are_forgotten(own_url: str) -> None:
    """Restored tables may name transactions that the new server has not reached yet."""
    store = PostgresStore(address_of(own_url))
    await store.control(Declare(POOLS["plain"]))
    await store.control(Register("w", 3600.0))
    await store.close()
    with psycopg.connect(own_url) as connection:
        connection.execute("UPDATE millpond.millpond_meta SET seen_upto = '1000000000000'")
        (task,) = connection.execute("SELECT millpond.submit('p', 'work')").fetchone() or ()
    store = PostgresStore(address_of(own_url))
    answer = await store.lease(LeaseRequest(pool="p", worker="w", want=10))
    await store.close()
    assert [task] == [one.fence.task for one in answer.leased]


async def test_a_claim_passes_due_tasks_though_others_are_ready(own_url: str) -> None:
    """A claim that looks for due and then for ready tasks has seen where both begin."""
    now = [1000.0]
    store = PostgresStore(address_of(own_url), clock=lambda: now[0])
    await store.control(Declare(POOLS["plain"]))
    await store.control(Register("w", 3600.0))
    load = Load("plain", own_url)
    await load.submit(store, WAITING)
    for _ in range(2):
        await store.submit([Batch(tasks=(msgspec.structs.replace(load.new(0), delay=10.0),))])
        now[0] += 20.0
        await store.close()  # a store with rows in memory would not read
        store = PostgresStore(address_of(own_url), clock=lambda: now[0])
        assert (await store.lease(LeaseRequest(pool="p", worker="w", want=1))).leased
    await store.close()
    with psycopg.connect(own_url) as connection:
        query = "SELECT max(undue_since) FROM millpond.millpond_pool"
        assert [(1040.0,)] == connection.execute(query).fetchall()
    assert [] == wrong_in(own_url)
