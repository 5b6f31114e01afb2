"""Emitting inside the caller's own transaction on PostgreSQL, by every driver."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.durable.buyers import BUYERS

from millpond import Millpond
from millpond.errors import UnknownTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from verify.servers.postgres import Server

pytestmark = pytest.mark.real_loop

NAME = "order.placed"


@pytest.fixture(scope="module")
def url(postgres: Server) -> Iterator[str]:
    """Give a database that these tests share."""
    with postgres.database() as made, psycopg.connect(made, autocommit=True) as own:
        own.execute("CREATE TABLE orders (id text)")
        yield made


def shop(url: str) -> Millpond:
    """Make a Millpond that mails what is placed."""
    mp = Millpond(url, work=True)
    pool = mp.pool("mail")

    @pool.task
    async def send(order: str) -> str:
        return order

    mp.trigger("mailer", on=NAME, task=send)
    return mp


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "sqlalchemy"])
@pytest.mark.rows("HN-22")
async def test_an_event_is_committed_or_rolled_back_with_its_transaction(
    url: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rolled back it makes no task; committed it makes one; emitted again it is a duplicate."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    connected: Callable[[str], Any] = BUYERS[driver]
    mp = shop(url)
    async with mp, asyncio.timeout(30):
        async with connected(url) as buyer:
            await buyer.execute("INSERT INTO orders VALUES (1)")
            undone = await mp.emit(NAME, driver, event_id=driver, connection=buyer.given)
            await buyer.rollback()
            with pytest.raises(UnknownTask, match="rolled back"):
                await undone.receipts()
        async with connected(url) as buyer:
            await buyer.execute("INSERT INTO orders VALUES (1)")
            emitted = await mp.emit(NAME, driver, event_id=driver, connection=buyer.given)
            await buyer.commit()
            (handle,) = await emitted.handles()
            assert driver == await handle
        again = await mp.emit(NAME, driver, event_id=driver)
        assert (True, handle.id) == (again.duplicate, (await again.receipts())[0].task_id)


async def test_an_event_emitted_in_two_transactions_makes_one_task(url: str) -> None:
    """Neither transaction sees the other's event; both receipts name the one task."""
    mp = shop(url)
    async with mp, asyncio.timeout(30):
        with psycopg.connect(url) as one, psycopg.connect(url) as two:
            first = await mp.emit(NAME, "both", event_id="both", connection=one)
            second = await mp.emit(NAME, "both", event_id="both", connection=two)
            one.commit()
            two.commit()
        (left,), (right,) = await first.receipts(), await second.receipts()
        assert left.task_id == right.task_id
