"""Emitting in the caller's transaction on SQLite: the event commits with it, or not at all."""

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
    """An application that keeps its orders in the file of its pools, and mails each order."""

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


async def results(emitted: Any) -> list[int]:
    """Return the results of the event's tasks."""
    async with asyncio.timeout(20):
        return [await one for one in await emitted.handles()]


@pytest.mark.rows("HN-22")
async def test_an_event_is_committed_or_rolled_back_with_its_transaction(tmp_path: Path) -> None:
    """After a rollback the event does not exist, and its id can be used again."""
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
            emitted = await shop.mp.emit(NAME, 1, event_id="1", connection=own)
            assert not emitted.duplicate
            assert [] == await shop.mp.events()
            own.commit()
            assert [1] == await results(emitted)
            own.execute("INSERT INTO orders VALUES (2)")
            again = await shop.mp.emit(NAME, 1, event_id="1", connection=own)
            assert again.duplicate
            own.commit()
            assert [1] == await results(again)


async def test_the_first_event_of_a_store_may_be_part_of_a_transaction(tmp_path: Path) -> None:
    """No trigger is declared yet; one declared later gets the event by a replay."""
    shop = Shop(tmp_path, trigger=False)
    async with shop.mp:
        with closing(shop.orders()) as own:
            own.execute("INSERT INTO orders VALUES (1)")
            emitted = await shop.mp.emit(NAME, 1, event_id="1", connection=own)
            own.commit()
            assert [] == await emitted.receipts(timeout=20)
    late = Shop(tmp_path)
    async with late.mp:
        assert [1] == await results(await late.mp.replay(NAME, "1"))


async def test_a_thread_emits_inside_its_transaction(tmp_path: Path) -> None:
    """The write happens in that thread: another thread may not use its connection."""
    shop = Shop(tmp_path)

    def buy() -> Any:
        with closing(sqlite3.connect(shop.file)) as own:
            own.execute("INSERT INTO orders VALUES (1)")
            emitted = shop.mp.sync.emit(NAME, 1, connection=own)
            own.commit()
        (handle,) = emitted.handles(timeout=20)
        return handle.get(timeout=20)

    async with shop.mp:
        assert 1 == await asyncio.to_thread(buy)


@pytest.mark.memory
async def test_memory_has_no_transactions_to_join() -> None:
    """connection= raises NotSupported."""
    async with Millpond() as mp:
        with pytest.raises(NotSupported, match="connection="):
            await mp.emit(NAME, connection=object())
