"""Submitting inside the caller's own transaction on PostgreSQL: with it, or not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.durable.buyers import BUYERS

from millpond import Millpond
from millpond.errors import UnknownTask

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.real_loop


class Shop:
    """An application that keeps its orders in the database of its pools."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.mp = Millpond(url, work=True)
        self.pool = self.mp.pool("mail", **options)
        self.sent: list[int] = []

        @self.pool.task
        async def send(order: int) -> int:
            self.sent.append(order)
            return order

        self.send = send
        with psycopg.connect(url) as own:
            own.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")

    def orders(self) -> list[int]:
        """What is committed of the application's own."""
        with psycopg.connect(self.url) as own:
            return [row[0] for row in own.execute("SELECT id FROM orders ORDER BY id")]


@pytest.fixture
def shop(postgres_url: str) -> Shop:
    """The shop."""
    return Shop(postgres_url)


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody polls: what is not told is not heard of in time."""
    monkeypatch.setattr("millpond.runtime.poll.POLL_FLOOR", 60.0)


@pytest.mark.parametrize("driver", BUYERS)
@pytest.mark.rows("DE-04")
async def test_with_the_transaction_or_not_at_all(
    shop: Shop, driver: str, unasked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed, rolled back and taken back in part; and nobody waits while it is open."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    connected: Callable[[str], Any] = BUYERS[driver]
    async with shop.mp, asyncio.timeout(20):
        async with connected(shop.url) as buyer:
            await buyer.execute("INSERT INTO orders VALUES (1)")
            kept = await shop.pool.submit(shop.send.bind(1), connection=buyer.given)
            await buyer.execute("SAVEPOINT part")
            gone = await shop.pool.submit(shop.send.bind(2), connection=buyer.given)
            await buyer.execute("ROLLBACK TO SAVEPOINT part")
            # The point of it: claims, submits and completions of others go on meanwhile.
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
