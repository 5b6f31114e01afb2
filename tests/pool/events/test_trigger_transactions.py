"""Emitting inside the caller's own transaction on SQLite: with it, or not at all."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from millpond import Millpond, NotSupported
from millpond.errors import UnknownTask

pytestmark = pytest.mark.real_loop

NAME = "order.placed"


class Shop:
    """An application that keeps its orders in the file of its pools, and mails what is placed."""

    def __init__(self, folder: Path, *, trigger: bool = True) -> None:
        self.file = folder / "shop.db"
        self.mp = Millpond(f"sqlite:///{self.file}", work=True)
        self.pool = self.mp.pool("mail")

        @self.pool.task
        async def send(order: int) -> int:
            return order

        if trigger:
            self.mp.trigger("mailer", on=NAME, task=send)
        with closing(self.orders()) as own:
            own.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")

    def orders(self) -> sqlite3.Connection:
        """A connection of the application's own."""
        return sqlite3.connect(self.file, timeout=0.1, check_same_thread=False)


async def results(told: Any) -> list[int]:
    """What became of an event in the end."""
    async with asyncio.timeout(20):
        return [await one for one in await told.handles()]


@pytest.mark.rows("HN-22")
async def test_an_event_is_committed_or_rolled_back_with_its_transaction(tmp_path: Path) -> None:
    """Rolled back, it never was; and its id is free for the time when it happens after all."""
    shop = Shop(tmp_path)
    async with shop.mp:
        with closing(shop.orders()) as own:
            own.execute("INSERT INTO orders VALUES (1)")
            undone = await shop.mp.emit(NAME, 1, event_id="1", connection=own)
            own.rollback()
            with pytest.raises(UnknownTask, match="rolled back"):
                await undone.receipts(timeout=20)
            assert [] == await shop.mp.events()
            own.execute("INSERT INTO orders VALUES (1)")
            told = await shop.mp.emit(NAME, 1, event_id="1", connection=own)
            assert not told.duplicate
            assert [] == await shop.mp.events()
            own.commit()
            assert [1] == await results(told)
            own.execute("INSERT INTO orders VALUES (2)")
            again = await shop.mp.emit(NAME, 1, event_id="1", connection=own)
            assert again.duplicate
            own.commit()
            assert [1] == await results(again)


async def test_the_first_event_of_a_store_may_be_part_of_a_transaction(tmp_path: Path) -> None:
    """Nobody has declared anything yet; a trigger that comes later has it replayed."""
    shop = Shop(tmp_path, trigger=False)
    async with shop.mp:
        with closing(shop.orders()) as own:
            own.execute("INSERT INTO orders VALUES (1)")
            told = await shop.mp.emit(NAME, 1, event_id="1", connection=own)
            own.commit()
            assert [] == await told.receipts(timeout=20)
    late = Shop(tmp_path)
    async with late.mp:
        assert [1] == await results(await late.mp.replay(NAME, "1"))


async def test_a_thread_emits_inside_its_transaction(tmp_path: Path) -> None:
    """In that very thread: its connection may be of no use in another."""
    shop = Shop(tmp_path)

    def buy() -> Any:
        with closing(sqlite3.connect(shop.file)) as own:
            own.execute("INSERT INTO orders VALUES (1)")
            told = shop.mp.sync.emit(NAME, 1, connection=own)
            own.commit()
        (handle,) = told.handles(timeout=20)
        return handle.get(timeout=20)

    async with shop.mp:
        assert 1 == await asyncio.to_thread(buy)


@pytest.mark.memory
async def test_memory_has_no_transactions_to_join() -> None:
    """It says so."""
    async with Millpond() as mp:
        with pytest.raises(NotSupported, match="connection="):
            await mp.emit(NAME, connection=object())
