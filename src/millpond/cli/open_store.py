"""Reaching a store: which one is meant, and opening it as an operator does.

An operator makes no store and migrates none, declares no pools and runs no tasks.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.cli import logs
from millpond.cli.choose_store import url_of
from millpond.cli.exits import Exit, Refusal
from millpond.core.event import SYSTEM
from millpond.errors import MigrationNeeded, UnknownPool
from millpond.pool.internals import internals_of
from millpond.pool.millpond import Millpond
from millpond.pool.store_url import place_of
from millpond.store.url_redaction import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from millpond.runtime.runtime import Runtime
    from millpond.store.protocol import PoolView, View


class Reached:
    """An open store."""

    def __init__(self, mp: Millpond, url: str) -> None:
        self._mp = mp
        self.url = url
        self.shown = shown(url)
        """Where it is, as people may see it."""

    @property
    def runtime(self) -> Runtime:
        """What carries out orders."""
        return internals_of(self._mp).runtime

    @property
    def view(self) -> View:
        """The reading side."""
        return internals_of(self._mp).runtime.view

    def now(self) -> float:
        """Return the time of the store."""
        return internals_of(self._mp).runtime.clock()

    async def why(self, task: int) -> str:
        """Return in words why a task is not running."""
        return await self._mp.why(task)

    @property
    def millpond(self) -> Millpond:
        """The Millpond that it was opened with."""
        return self._mp

    async def pools(self, asked: Sequence[str] = (), *, system: bool = False) -> list[str]:
        """Return the pools that were named, or all, as the store calls them.

        Those of the system, for events and triggers, are named or asked for.
        """
        known = await self.view.names()
        for name in asked:
            if name not in known:
                # One that only a newer version understands says so by itself.
                await self.view.pool(name, measured=False)
        if asked:
            return [_stored(name, known) for name in asked]
        return [name for name in known if system or not name.startswith(SYSTEM)]

    async def pool(self, asked: str) -> PoolView:
        """Return a pool that was named."""
        (name,) = await self.pools([asked])
        found = await self.view.pool(name, now=self.now())
        if found is None:
            raise unknown(asked, ())
        return found


def _stored(asked: str, known: Iterable[str]) -> str:
    """Return what the store calls a pool, given its name or its id."""
    plain = asked.removeprefix("app::")
    if plain in known:
        return plain
    if (own := SYSTEM + plain) in known:
        return own
    meant = [name for name in known if name.endswith(f":{asked}")]
    if len(meant) == 1:
        return meant[0]
    shown = [name for name in known if not name.startswith(SYSTEM)]
    raise unknown(asked, meant or shown)


def unknown(asked: str, known: Iterable[str]) -> UnknownPool:
    """Return the error for a name that no pool has."""
    names = list(known)
    there = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return UnknownPool(f"no pool named {asked!r} (there are: {there or 'none'})", pool=asked)


@asynccontextmanager
async def reached(store: str | None, app: str | None) -> AsyncIterator[Reached]:
    """Open the store that is meant, and close it again."""
    url = url_of(store, app)
    if not logging.getLogger().handlers:
        logs.set_up("warning")
    mp = Millpond(url, work=False, migrate=False)
    await asyncio.get_running_loop().run_in_executor(None, look, url)
    try:
        await mp.__aenter__()
    except MigrationNeeded as needed:
        raise not_migrated(url, needed) from needed
    try:
        yield Reached(mp, url)
    finally:
        await mp.__aexit__(None, None, None)


def look(url: str) -> None:
    """Refuse a file that is not there, or is none of ours, and leave it as it is."""
    place = place_of(url)
    if not isinstance(place, Path):
        return
    from millpond.store.sqlite.connect import connect_to_look
    from millpond.store.sqlite.migrate import migrate

    path = place.absolute()
    connection = connect_to_look(path)
    try:
        migrate(connection, path, allowed=False)
    except MigrationNeeded as needed:
        raise not_migrated(url, needed) from needed
    finally:
        connection.close()


def not_migrated(url: str, needed: MigrationNeeded) -> Refusal:
    """Return the refusal of a store whose tables are not those of this release."""
    if not needed.found:
        message = f"{needed.path} has no tables of Millpond: no Millpond has opened it yet"
    else:
        message = f"{needed.path} has schema {needed.found}, and this release needs {needed.needed}"
    return Refusal(Exit.STORE, f"{message}; `millpond migrate --store {shown(url)}` makes them")


def names_for_a_shell(store: str | None, app: str | None, begins: str) -> list[str]:
    """Return the pools whose names begin so."""

    async def asked() -> list[str]:
        async with reached(store, app) as here:
            plain = await here.view.names(begins)
            own = [name.removeprefix(SYSTEM) for name in await here.view.names(SYSTEM + begins)]
            return [name for name in plain if not name.startswith(SYSTEM)] + own

    return asyncio.run(asked())
