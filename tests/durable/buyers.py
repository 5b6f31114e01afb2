"""Connections of applications to their own database, by each driver, used in one way by tests."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests import stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

FOR_ASYNCPG: dict[str, Any] = {"statement_cache_size": 0} if stores.POOLED else {}
"""What its users have to say where a pooler stands between."""


class Buyer:
    """A caller of Millpond that has a connection and an open transaction."""

    def __init__(self, given: Any) -> None:
        self.given = given

    async def execute(self, statement: str) -> None:
        """Do something of one's own."""
        self.given.execute(statement)

    async def commit(self) -> None:
        """End well."""
        self.given.commit()

    async def rollback(self) -> None:
        """Roll the transaction back."""
        self.given.rollback()


class ByHand(Buyer):
    """A caller that executes BEGIN and COMMIT as statements."""

    async def commit(self) -> None:
        await self.execute("COMMIT")

    async def rollback(self) -> None:
        await self.execute("ROLLBACK")


class Awaited(Buyer):
    """A caller whose connection is asynchronous."""

    async def execute(self, statement: str) -> None:
        await self.given.execute(statement)

    async def commit(self) -> None:
        await self.given.commit()

    async def rollback(self) -> None:
        await self.given.rollback()


class Asyncpg(Awaited):
    """asyncpg's transactions are objects of their own."""

    def __init__(self, given: Any, own: Any) -> None:
        super().__init__(given)
        self.own = own

    async def commit(self) -> None:
        await self.own.commit()

    async def rollback(self) -> None:
        await self.own.rollback()


class Alchemist(Buyer):
    """SQLAlchemy takes statements wrapped."""

    async def execute(self, statement: str) -> None:
        self.given.execute(sqlalchemy.text(statement))


class AsyncAlchemist(Awaited):
    """So does its asynchronous half."""

    async def execute(self, statement: str) -> None:
        await self.given.execute(sqlalchemy.text(statement))


class Djangonaut(Buyer):
    """Django commits when its block is left."""

    def __init__(self, given: Any, block: Any) -> None:
        super().__init__(given)
        self.block = block

    async def execute(self, statement: str) -> None:
        with self.given.cursor() as cursor:
            cursor.execute(statement)

    async def commit(self) -> None:
        self.block.__exit__(None, None, None)

    async def rollback(self) -> None:
        transaction.set_rollback(True, using=self.given.alias)
        self.block.__exit__(None, None, None)


@asynccontextmanager
async def plain(url: str) -> AsyncIterator[Buyer]:
    """psycopg, which begins by itself; its rows are dictionaries."""
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as own:
        yield Buyer(own)


@asynccontextmanager
async def by_hand(url: str) -> AsyncIterator[Buyer]:
    """psycopg with autocommit."""
    with psycopg.connect(url, autocommit=True) as own:
        own.execute("BEGIN")
        yield ByHand(own)


@asynccontextmanager
async def awaited(url: str) -> AsyncIterator[Buyer]:
    """psycopg on the loop."""
    async with await psycopg.AsyncConnection.connect(url) as own:
        yield Awaited(own)


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Buyer]:
    """asyncpg."""
    own = await asyncpg.connect(url, **FOR_ASYNCPG)
    try:
        block = own.transaction()
        await block.start()
        yield Asyncpg(own, block)
    finally:
        await own.close()


@asynccontextmanager
async def from_a_pool(url: str) -> AsyncIterator[Buyer]:
    """What a pool of asyncpg lends."""
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1, **FOR_ASYNCPG) as pool,
        pool.acquire() as own,
    ):
        block = own.transaction()
        await block.start()
        yield Asyncpg(own, block)


def _for(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


@asynccontextmanager
async def alchemy(url: str) -> AsyncIterator[Buyer]:
    """SQLAlchemy's connection."""
    engine = sqlalchemy.create_engine(_for(url, "psycopg"))
    with engine.connect() as own:
        yield Alchemist(own)
    engine.dispose()


@asynccontextmanager
async def alchemy_session(url: str) -> AsyncIterator[Buyer]:
    """SQLAlchemy's session."""
    engine = sqlalchemy.create_engine(_for(url, "psycopg"))
    with Session(engine) as own:
        yield Alchemist(own)
    engine.dispose()


def _async_alchemy(driver: str, *, session: bool) -> Callable[[str], Any]:
    @asynccontextmanager
    async def connected(url: str) -> AsyncIterator[Buyer]:
        engine = create_async_engine(_for(url, driver))
        async with AsyncSession(engine) if session else engine.connect() as own:
            yield AsyncAlchemist(own)
        await engine.dispose()

    return connected


@contextmanager
def django_alias(url: str) -> Iterator[str]:
    """Django's name for a database."""
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    place = psycopg.conninfo.conninfo_to_dict(url)
    named = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": place["dbname"],
        "HOST": place.get("host", ""),
        "PORT": place.get("port", ""),
        "USER": place.get("user", ""),
        "PASSWORD": place.get("password", ""),
    }
    given = {"default": {}, "shop": named}
    connections.settings["shop"] = connections.configure_settings(given)["shop"]
    try:
        yield "shop"
    finally:
        connections["shop"].close()
        del connections["shop"]
        del connections.settings["shop"]


@asynccontextmanager
async def by_django(url: str) -> AsyncIterator[Buyer]:
    """Django, inside `atomic`."""
    with django_alias(url) as alias:
        block = transaction.atomic(using=alias)
        block.__enter__()
        buyer = Djangonaut(connections[alias], block)
        yield buyer
        if connections[alias].in_atomic_block:
            await buyer.rollback()


BUYERS: dict[str, Callable[[str], Any]] = {
    "psycopg": plain,
    "psycopg by hand": by_hand,
    "psycopg async": awaited,
    "asyncpg": by_asyncpg,
    "asyncpg pool": from_a_pool,
    "sqlalchemy": alchemy,
    "sqlalchemy session": alchemy_session,
    "sqlalchemy async psycopg": _async_alchemy("psycopg", session=False),
    "sqlalchemy async asyncpg": _async_alchemy("asyncpg", session=False),
    "sqlalchemy async session": _async_alchemy("asyncpg", session=True),
    "django": by_django,
}
