"""Submitting inside a transaction of SQLAlchemy's or Django's own making."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import django
import pytest
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction

from millpond import Millpond
from millpond.errors import StoreLocked
from millpond.pool.internals import internals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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
    """Raised by the application to roll its transaction back."""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """The shop, whose file is made by its pools."""
    return Shop(tmp_path / "shop.db")


async def test_a_transaction_of_sqlalchemy_is_joined(shop: Shop) -> None:
    """The order and its task are stored together, or neither is."""
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
    """The order and its task are stored together, or neither is."""
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
        own.close()  # that of this task; the fixture closes its own


WRITES: dict[str, Callable[[Shop], object]] = {
    "submit": lambda shop: shop.pool.sync.submit(shop.send.bind(8)),
    "submit of a task": lambda shop: shop.send.sync.submit(8),
    "submit_many": lambda shop: shop.pool.sync.submit_many([shop.send.bind(8)]),
    "try_submit": lambda shop: shop.pool.sync.try_submit(shop.send.bind(8)),
    "map": lambda shop: shop.pool.sync.map(shop.send, [8]).get(),
    "map, one by one": lambda shop: list(shop.pool.sync.map(shop.send, [8])),
    "run": lambda shop: shop.pool.sync.run().__enter__(),
    "emit": lambda shop: shop.mp.sync.emit("bought", {}),
    "pause": lambda shop: shop.pool.sync.pause(),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_plain_write_inside_atomic_is_refused_at_once(shop: Shop, alias: str, name: str) -> None:
    """It would wait for the transaction that waits for it; the error says what to do instead."""
    with shop.mp.sync:
        own = connections[alias]
        with own.cursor() as cursor:
            cursor.execute(ORDERS)
        with transaction.atomic(using=alias):
            with own.cursor() as cursor:
                cursor.execute(ADD)
            begun = time.monotonic()
            with pytest.raises(StoreLocked, match=r"its own transaction.* connection=") as caught:
                WRITES[name](shop)
            assert time.monotonic() - begun < 5
            assert 0.0 == caught.value.waited
            assert 0 == shop.pool.sync.size()  # reading goes on
            shop.pool.sync.submit(shop.send.bind(7), connection=own)
            transaction.on_commit(lambda: shop.send.sync.submit(8), using=alias)
        assert 2 == shop.pool.sync.size()


async def test_a_plain_write_inside_atomic_is_refused_on_the_event_loop(
    shop: Shop, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With DJANGO_ALLOW_ASYNC_UNSAFE set."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    async with shop.mp:
        with transaction.atomic(using=alias), connections[alias].cursor():
            with pytest.raises(StoreLocked, match="its own transaction"):
                await shop.send.submit(7)
            with pytest.raises(StoreLocked, match="its own transaction"):
                await shop.pool.submit_many([shop.send.bind(7)])
        await shop.send.submit(7)
        connections[alias].close()


def test_a_transaction_on_another_file_or_thread_is_no_obstacle(
    shop: Shop, alias: str, tmp_path: Path
) -> None:
    """Only a wait that cannot end is refused."""
    connections[alias].settings_dict["NAME"] = str(tmp_path / "other.db")
    with shop.mp.sync, transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(ORDERS)
        shop.send.sync.submit(7)
        assert 1 == shop.pool.sync.size()
