"""Open a store for an operator: create nothing, migrate nothing, declare no pools, run no tasks."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, closing
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
    from millpond.store.protocol import PoolView
    from millpond.store.view import View


class OpenStore:
    """An open store."""

    def __init__(self, mp: Millpond, url: str) -> None:
        self._mp = mp
        self.url = url
        self.shown = shown(url)
        """The URL without its password."""

    @property
    def runtime(self) -> Runtime:
        """The runtime, which carries out operator commands."""
        return internals_of(self._mp).runtime

    @property
    def view(self) -> View:
        """The read side of the store."""
        return internals_of(self._mp).runtime.view

    def now(self) -> float:
        """Return the time of the store."""
        return internals_of(self._mp).runtime.clock()

    async def why(self, task: int) -> str:
        """Return in words why a task is not running."""
        return await self._mp.why(task)

    @property
    def millpond(self) -> Millpond:
        """The Millpond that opened the store."""
        return self._mp

    async def pools(self, options: Sequence[str] = (), *, system: bool = False) -> list[str]:
        """Return the named pools, or all, by their stored names.

        System pools (events and triggers) are left out unless named, or with `system`.
        """
        known = await self.view.names()
        for name in options:
            if name not in known:
                # Raises if the pool was declared by a newer release.
                await self.view.pool(name, measured=False)
        if options:
            return [_stored(name, known) for name in options]
        return [name for name in known if system or not name.startswith(SYSTEM)]

    async def pool(self, options: str) -> PoolView:
        """Return one pool by its name."""
        (name,) = await self.pools([options])
        found = await self.view.pool(name, now=self.now())
        if found is None:
            raise unknown(options, ())
        return found


def _stored(options: str, known: Iterable[str]) -> str:
    """Return the stored name of a pool, given its name or its id."""
    plain = options.removeprefix("app::")
    if plain in known:
        return plain
    if (own := SYSTEM + plain) in known:
        return own
    matching = [name for name in known if name.endswith(f":{options}")]
    if len(matching) == 1:
        return matching[0]
    shown = [name for name in known if not name.startswith(SYSTEM)]
    raise unknown(options, matching or shown)


def unknown(options: str, known: Iterable[str]) -> UnknownPool:
    """Return the error for a name that no pool has."""
    names = list(known)
    there = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return UnknownPool(f"no pool named {options!r} (there are: {there or 'none'})", pool=options)


@asynccontextmanager
async def open_store(store: str | None, app: str | None) -> AsyncIterator[OpenStore]:
    """Open the chosen store, and close it on exit."""
    url = url_of(store, app)
    if not logging.getLogger().handlers:
        logs.set_up("warning")
    mp = Millpond(url, work=False, migrate=False)
    await asyncio.get_running_loop().run_in_executor(None, check_file, url)
    try:
        await mp.__aenter__()
    except MigrationNeeded as needed:
        raise not_migrated(url, needed) from needed
    try:
        yield OpenStore(mp, url)
    finally:
        await mp.__aexit__(None, None, None)


def check_file(url: str) -> None:
    """Refuse a file that does not exist or is not a Millpond store, without changing it."""
    place = place_of(url)
    if not isinstance(place, Path):
        return
    from millpond.store.sqlite.connect import connect_to_look
    from millpond.store.sqlite.migrate import migrate

    path = place.absolute()
    with closing(connect_to_look(path)) as connection:
        try:
            migrate(connection, path, allowed=False)
        except MigrationNeeded as needed:
            raise not_migrated(url, needed) from needed


def not_migrated(url: str, needed: MigrationNeeded) -> Refusal:
    """Return the refusal of a store whose schema version is not the one of this release."""
    if not needed.found:
        message = f"{needed.path} has no Millpond tables: no Millpond has opened it yet"
    else:
        message = f"{needed.path} has schema {needed.found}, and this release needs {needed.needed}"
    return Refusal(Exit.STORE, f"{message}; run `millpond migrate --store {shown(url)}`")


def complete_pool_names(store: str | None, app: str | None, begins: str) -> list[str]:
    """Return the pools whose names begin with `begins`, for shell completion."""

    async def read() -> list[str]:
        async with open_store(store, app) as opened:
            plain = await opened.view.names(begins)
            own = [name.removeprefix(SYSTEM) for name in await opened.view.names(SYSTEM + begins)]
            return [name for name in plain if not name.startswith(SYSTEM)] + own

    return asyncio.run(read())
