"""Submitting inside a transaction of SQLAlchemy's or Django's own making."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django
import pytest
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction

from millpond import Millpond
from millpond.pool.internals import internals_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import TaskFunction

pytestmark = pytest.mark.real_loop

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY)"
ADD = "INSERT INTO orders VALUES (7)"


class Shop:
    """An application that keeps its orders in the file of its pools."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.mp = Millpond(f"sqlite:///{file}")
        self.pool = self.mp.pool("mail")

        async def send(order: int) -> int:
            return order

        self.send: TaskFunction[[int], int, Any] = self.pool.task(send)


class Undone(Exception):
    """What an application raises when it thinks better of it."""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """The shop, whose file is made by its pools."""
    return Shop(tmp_path / "shop.db")


async def test_a_transaction_of_sqlalchemy_is_joined(shop: Shop) -> None:
    """The order and its mail are there together, or neither is."""
    async with shop.mp:
        await internals_of(shop.pool).ready()
        engine = sqlalchemy.create_engine(f"sqlite:///{shop.file}")
        with engine.begin() as own:
            own.execute(sqlalchemy.text(ORDERS))
        with engine.begin() as own:
            own.execute(sqlalchemy.text(ADD))
            await shop.pool.submit(shop.send.bind(7), connection=own)
        with pytest.raises(Undone), engine.begin() as own:
            await shop.pool.submit(shop.send.bind(8), connection=own)
            raise Undone
        with engine.connect() as own:
            (count,) = own.execute(sqlalchemy.text("SELECT count(*) FROM orders")).one()
        engine.dispose()
        assert (1, 1) == (count, await shop.pool.size())


@pytest.fixture
def alias(shop: Shop) -> Iterator[str]:
    """Django's name for the file of the shop."""
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    connections.settings["shop"] = connections.configure_settings(
        {
            "default": {},
            "shop": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(shop.file)},
        }
    )["shop"]
    yield "shop"
    connections["shop"].close()
    del connections["shop"]
    del connections.settings["shop"]


async def test_a_transaction_of_django_is_joined(
    shop: Shop, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order and its mail are there together, or neither is."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    async with shop.mp:
        await internals_of(shop.pool).ready()
        own = connections[alias]
        with own.cursor() as cursor:
            cursor.execute(ORDERS)
        with transaction.atomic(using=alias):
            with own.cursor() as cursor:
                cursor.execute(ADD)
            await shop.pool.submit(shop.send.bind(7), connection=own)
        with pytest.raises(Undone), transaction.atomic(using=alias):
            await shop.pool.submit(shop.send.bind(8), connection=own)
            raise Undone
        with own.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM orders")
            (count,) = cursor.fetchone()
        assert (1, 1) == (count, await shop.pool.size())
