"""Submitting inside the caller's own transaction on PostgreSQL: with it, or not at all."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import asyncpg
import psycopg
import pytest
import sqlalchemy
from django.db import connections, transaction
from tests.durable.buyers import BUYERS, django_alias
from tests.waiting import eventually

from millpond import ConfigError, Millpond, PoolFull, Rate, TaskRejected, bounded
from millpond.errors import (
    ForeignConnection,
    MissingRights,
    NotInTransaction,
    StoreNotWritable,
    TransactionAborted,
    UnknownTask,
)
from millpond.pool.internals import internals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from verify.servers.postgres import Server

pytestmark = pytest.mark.real_loop

ADD = "INSERT INTO orders VALUES (1) ON CONFLICT DO NOTHING"


class Shop:
    """An application that keeps its orders in the database of its pools."""

    names = itertools.count(1)

    def __init__(self, url: str, *, work: bool = True, **options: Any) -> None:
        self.url = url
        self.mp = Millpond(url, work=work)
        self.pool = self.mp.pool(f"mail-{next(self.names)}", **options)
        self.sent: list[int] = []

        @self.pool.task
        async def send(order: int) -> int:
            self.sent.append(order)
            self.ran.put_nowait(order)
            return order

        self.send = send
        self.ran: asyncio.Queue[int] = asyncio.Queue()

    async def idle(self) -> None:
        """Let its workers have looked around, so that they ask for nothing by themselves."""
        await (await self.send.submit(0))
        await self.ran.get()
        await asyncio.sleep(0.2)  # nothing shows that a worker will ask no more

    def orders(self) -> list[int]:
        """What is committed of the application's own."""
        with psycopg.connect(self.url) as own:
            return [row[0] for row in own.execute("SELECT id FROM orders ORDER BY id")]


@pytest.fixture(scope="module")
def url(postgres: Server) -> Iterator[str]:
    """Give a database that these tests share: each has a pool of its own."""
    with postgres.database() as made:
        yield made


@pytest.fixture
def shop(url: str) -> Shop:
    """The shop, which has no orders yet."""
    with psycopg.connect(url) as own:
        own.execute("CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY)")
        own.execute("DELETE FROM orders")
    return Shop(url)


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no worker poll in time: only a notification wakes it."""
    monkeypatch.setattr("millpond.runtime.fleet.poll.POLL_FLOOR", 60.0)


@pytest.mark.parametrize("driver", BUYERS)
@pytest.mark.rows("DE-04")
async def test_a_task_is_stored_with_the_callers_transaction_or_not_at_all(
    shop: Shop, driver: str, unasked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits, rolls back, or rolls back to a savepoint; an open one blocks no other client."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    connected: Callable[[str], Any] = BUYERS[driver]
    async with shop.mp, asyncio.timeout(20):
        async with connected(shop.url) as buyer:
            await buyer.execute("INSERT INTO orders VALUES (1)")
            kept = await shop.pool.submit(shop.send.bind(1), connection=buyer.given)
            await buyer.execute("SAVEPOINT part")
            gone = await shop.pool.submit(shop.send.bind(2), connection=buyer.given)
            await buyer.execute("ROLLBACK TO SAVEPOINT part")
            # Claims, submits and completions of other clients go on meanwhile.
            assert 7 == await (await shop.send.submit(7))
            assert ["unknown"] == await shop.mp.status([kept.id])
            await buyer.commit()
            assert 1 == await kept
            with pytest.raises(UnknownTask, match="rolled back"):
                await gone
        async with connected(shop.url) as buyer:
            await buyer.execute("INSERT INTO orders VALUES (3)")
            undone = await shop.pool.submit(shop.send.bind(3), connection=buyer.given)
            await buyer.rollback()
            with pytest.raises(UnknownTask, match="rolled back"):
                await undone
    assert ([7, 1], [1]) == (shop.sent, shop.orders())


async def test_a_full_pool_refuses_at_once(shop: Shop) -> None:
    """The submit does not wait: block acts as fail, and the transaction is as before."""
    full = Shop(shop.url, work=False, backpressure=bounded(1))
    async with full.mp:
        with psycopg.connect(full.url) as own:
            own.execute(ADD)
            await full.pool.submit(full.send.bind(1), connection=own)
            with pytest.raises(PoolFull, match="1 of 1 waiting"):
                await full.pool.submit(full.send.bind(2), connection=own)
        assert 1 == await full.pool.size()
    assert [1] == full.orders()


async def test_idempotency_keys_are_answered_within_a_transaction(shop: Shop) -> None:
    """A known key gives its task; of two that could not see each other one is rejected."""
    keyed = shop.send.bind(1).options(idempotency_key="one")
    async with shop.mp, asyncio.timeout(20):
        with psycopg.connect(shop.url) as one, psycopg.connect(shop.url) as two:
            first = await shop.pool.submit(keyed, connection=one)
            again = await shop.pool.submit(keyed, connection=one)
            assert (first.id, True) == (again.id, again.duplicate)
            late = await shop.pool.submit(keyed, connection=two)
            assert not late.duplicate
            one.commit()
            assert 1 == await first
            assert 1 == await again
            two.commit()
            with pytest.raises(TaskRejected):
                await late
            assert "duplicate" == late.rejection_reason
            known = await shop.pool.submit(keyed, connection=two)
            assert (first.id, "completed") == (known.id, known.status)
    assert [1] == shop.sent


async def test_a_batch_is_stored_whole_and_impossible_tasks_are_refused(shop: Shop) -> None:
    """Closures and tasks too heavy are refused before the server is asked."""
    async with shop.mp, asyncio.timeout(20):
        with psycopg.connect(shop.url) as own:
            each = [shop.send.bind(n) for n in range(3)]
            handles = await shop.pool.submit_many(each, connection=own)
            assert [] == await shop.pool.submit_many([], connection=own)
            with pytest.raises(ConfigError, match="closure"):
                await shop.pool.submit(lambda: None, connection=own)
            own.commit()
            assert [0, 1, 2] == [await handle for handle in handles]
    heavy = Shop(shop.url, work=False, rate=Rate(1, per=1.0, of="weight"))
    async with heavy.mp:
        with psycopg.connect(shop.url) as own, pytest.raises(ConfigError, match="weight"):
            await heavy.pool.submit(heavy.send.bind(1), weight=9, connection=own)


async def test_a_thread_submits_with_a_connection_of_its_own(shop: Shop) -> None:
    """A connection of the loop is refused there."""
    async with shop.mp, asyncio.timeout(20):

        def buy() -> int:
            with psycopg.connect(shop.url) as own:
                own.execute(ADD)
                handle = shop.pool.sync.submit(shop.send.bind(5), connection=own)
            return handle.wait(timeout=10).result or 0

        assert 5 == await asyncio.to_thread(buy)
        async with await psycopg.AsyncConnection.connect(shop.url) as awaited:
            with pytest.raises(ForeignConnection, match="on its event loop"):
                await asyncio.to_thread(
                    shop.pool.sync.submit, shop.send.bind(6), connection=awaited
                )


async def test_a_pool_that_the_store_does_not_know_yet(shop: Shop) -> None:
    """It is declared first, and stays when the transaction is undone."""
    async with shop.mp, asyncio.timeout(20):
        late = shop.mp.pool(f"{shop.pool.name}-late")
        with psycopg.connect(shop.url) as own:
            await late.submit(shop.send.bind(1), connection=own)
            own.rollback()
            handle = await late.submit(shop.send.bind(2), connection=own)
            own.commit()
            assert 2 == await handle


@pytest.mark.listens
async def test_a_worker_runs_a_task_that_sql_submits(shop: Shop, unasked: None) -> None:
    """The server notifies the worker, which claims at once; it checks the arguments' types."""
    call = "SELECT millpond.submit(%s, 'send', '{\"order\": 8}')"
    async with shop.mp, asyncio.timeout(20):
        await shop.idle()
        with psycopg.connect(shop.url) as own:
            own.execute(call, [shop.pool.name])
            bad = own.execute(call.replace("8", '"x"'), [shop.pool.name]).fetchone()
        async with asyncio.timeout(5):
            assert 8 == await shop.ran.get()
        assert bad is not None
        # It is parked until a worker understands it, with the reason.
        parked = await shop.mp.handle(bad[0])

        async def has_error() -> object:
            return (await parked.refresh()).error

        await eventually(has_error)
        assert "queued" == parked.status
        assert "MILL-096" in str(parked.error)


async def test_a_worker_finds_a_task_by_polling_alone(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a pooler no notification arrives."""
    monkeypatch.setattr("millpond.runtime.fleet.poll.POLL_FLOOR", 0.05)
    deaf = Shop(f"{url}{'&' if '?' in url else '?'}listen=off")
    async with deaf.mp, asyncio.timeout(20):
        await internals_of(deaf.pool).ready()
        with psycopg.connect(url) as own:
            call = "SELECT millpond.submit(%s, 'send', '{\"order\": 9}')"
            row = own.execute(call, [deaf.pool.name]).fetchone()
        assert row is not None
        assert 9 == await (await deaf.mp.handle(row[0]))


@pytest.mark.parametrize("driver", ["psycopg", "sqlalchemy async asyncpg"])
async def test_a_schema_may_have_an_odd_name(url: str, driver: str) -> None:
    """Signs that drivers have for arguments, quotes and spaces: they are only a name."""
    named = quote("Od\"d: ?1 $1 :given 's")
    shop = Shop(f"{url}{'&' if '?' in url else '?'}schema={named}")
    async with shop.mp, asyncio.timeout(20):
        async with BUYERS[driver](url) as buyer:
            handle = await shop.pool.submit(shop.send.bind(1), connection=buyer.given)
            await buyer.commit()
        assert 1 == await handle


# Connections that cannot be joined


async def test_a_connection_without_a_transaction_is_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is for each driver that has connections without one."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

    async def refused(given: object) -> None:
        with pytest.raises(NotInTransaction, match="begin one"):
            await shop.pool.submit(shop.send.bind(1), connection=given)

    async with shop.mp:
        with psycopg.connect(shop.url, autocommit=True) as own:
            await refused(own)
        async with await psycopg.AsyncConnection.connect(shop.url, autocommit=True) as awaited:
            await refused(awaited)
        theirs = await asyncpg.connect(shop.url)
        await refused(theirs)
        await theirs.close()
        at = shop.url.replace("postgresql://", "postgresql+psycopg://", 1)
        engine = sqlalchemy.create_engine(at, isolation_level="AUTOCOMMIT")
        with engine.connect() as wrapped:
            await refused(wrapped)
        engine.dispose()
        with django_alias(shop.url) as alias:
            await refused(connections[alias])
            connections[alias].ensure_connection()
            await refused(connections[alias])
        assert 0 == await shop.pool.size()


async def test_a_failed_transaction_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that nothing more can be done in it."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

    async def refused(given: object) -> None:
        with pytest.raises(TransactionAborted, match="roll it back"):
            await shop.pool.submit(shop.send.bind(1), connection=given)

    async with shop.mp:
        with psycopg.connect(shop.url) as own:
            with pytest.raises(psycopg.Error):
                own.execute("SELECT 1/0")
            await refused(own)
        theirs = await asyncpg.connect(shop.url)
        await theirs.execute("BEGIN")
        with pytest.raises(asyncpg.PostgresError):
            await theirs.execute("SELECT 1/0")
        await refused(theirs)
        await theirs.close()
        with django_alias(shop.url) as alias:
            own = connections[alias]
            with transaction.atomic(using=alias):
                own.ensure_connection()
                transaction.set_rollback(True, using=alias)
                await refused(own)
        at = shop.url.replace("postgresql://", "postgresql+psycopg://", 1)
        engine = sqlalchemy.create_engine(at)
        with engine.connect() as wrapped:
            with pytest.raises(sqlalchemy.exc.DBAPIError):
                wrapped.execute(sqlalchemy.text("SELECT 1/0"))
            await refused(wrapped)
        engine.dispose()


async def test_a_connection_to_another_store_closed_or_unknown_is_refused(
    shop: Shop, postgres: Server
) -> None:
    """The error says which it is; an open transaction goes on."""

    async def refused(given: object, said: str) -> None:
        with pytest.raises(ForeignConnection, match=said):
            await shop.pool.submit(shop.send.bind(1), connection=given)

    async with shop.mp:
        with postgres.database() as other, psycopg.connect(other) as own:
            await refused(own, "no such store")
            own.execute("SELECT 1")
            own.rollback()
            async with Millpond(other):
                pass
            await refused(own, "no such store|another store of the same name")
            own.execute("SELECT 1")
        with psycopg.connect(shop.url) as closed:
            pass
        await refused(closed, "closed")
        theirs = await asyncpg.connect(shop.url)
        await theirs.close()
        await refused(theirs, "closed")
        await refused(object(), "millpond.*submit")
        with psycopg.connect(shop.url) as own:
            own.execute("SET TRANSACTION READ ONLY")
            with pytest.raises(StoreNotWritable, match="may only read"):
                await shop.pool.submit(shop.send.bind(1), connection=own)
            own.execute("SELECT 1")


async def test_missing_rights_are_named(shop: Shop) -> None:
    """The error has the GRANT statements, before anything could fail."""
    async with shop.mp:
        with psycopg.connect(shop.url) as own:
            own.execute("CREATE ROLE role_without_rights")
            own.execute("SET LOCAL ROLE role_without_rights")
            with pytest.raises(MissingRights, match="GRANT USAGE ON SCHEMA"):
                await shop.pool.submit(shop.send.bind(1), connection=own)
            own.execute("RESET ROLE")
            own.execute("GRANT USAGE ON SCHEMA millpond TO role_without_rights")
            own.execute("SET LOCAL ROLE role_without_rights")
            with pytest.raises(MissingRights, match="GRANT EXECUTE"):
                await shop.pool.submit(shop.send.bind(1), connection=own)
            own.execute("SELECT 1")
            own.rollback()


@pytest.mark.listens
def test_the_example_works_on_a_server(postgres_url: str) -> None:
    """Elsewhere it only says what it needs."""
    example = Path(__file__).parents[2] / "docs/examples/transactions_on_postgresql.py"
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(sys.path),
        "DATABASE_URL": postgres_url,
    }
    answer = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert ("paid 1250\n", "", 0) == (answer.stdout, answer.stderr, answer.returncode)


@pytest.mark.rows("TR-27")
async def test_a_pool_that_bounds_its_lanes_takes_no_submit_within_a_transaction(
    postgres_url: str,
) -> None:
    """The server cannot know the lane, so it refuses and does not guess; drop policies can wait."""
    bound = bounded(9, "fail_submitter", per_lane=1)
    shop = Shop(postgres_url, work=False, lanes=2, max_concurrent=2, backpressure=bound)
    drop = shop.mp.pool("dropping", lanes=2, backpressure=bounded(9, "drop_newest", per_lane=1))
    async with shop.mp:
        async with await psycopg.AsyncConnection.connect(postgres_url) as own:
            with pytest.raises(ConfigError, match=r"per_lane=1 of pool .* cannot know the lane"):
                await shop.pool.submit(shop.send.bind(1), connection=own)
            await drop.submit(shop.send.bind(2), connection=own)
        with psycopg.connect(postgres_url) as own, pytest.raises(psycopg.Error, match="MILL-003"):
            own.execute("SELECT millpond.submit(%s, 'send')", [shop.pool.name])
        await shop.pool.submit(shop.send.bind(3), key="a")
        with pytest.raises(PoolFull, match="lane"):
            await shop.pool.submit(shop.send.bind(4), key="a")
