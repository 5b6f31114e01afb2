"""Submitting inside the caller's own transaction on PostgreSQL: with it, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from millpond import Millpond

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


@pytest.fixture
def shop(postgres_url: str) -> Shop:
    """The shop."""
    return Shop(postgres_url)


async def test_first(shop: Shop) -> None:
    """Runs."""
    async with shop.mp:
        with psycopg.connect(shop.url) as own:
            own.execute("INSERT INTO orders VALUES (1)")
            handle = await shop.pool.submit(shop.send.bind(1), connection=own)
            await asyncio.sleep(0.05)
            assert [] == shop.sent
            assert ("unknown",) == await shop.mp.runtime.view.status((handle.id,))
            own.commit()
            async with asyncio.timeout(5):
                assert 1 == await handle
