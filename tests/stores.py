"""The store that tests of pools run on: in memory, or with MILLPOND_STORE=sqlite on a file each.

With MILLPOND_STORE=postgres each has tables of its own on a server. All tests on a server reach it
through PgBouncer with MILLPOND_TEST_POOLER=1, and hear nothing of each other with
MILLPOND_TEST_LISTEN=0.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from verify.servers.schemas import InlinePostgresStore, Schema, Schemas
from verify.servers.sqlite_files import InlineStore

from millpond.runtime.environment import wall_clock
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Store

KIND = os.environ.get("MILLPOND_STORE", "memory")
ON_FILES, ON_SERVER = KIND == "sqlite", KIND == "postgres"
DURABLE = ON_FILES or ON_SERVER
POOLED = os.environ.get("MILLPOND_TEST_POOLER") == "1"
DEAF = os.environ.get("MILLPOND_TEST_LISTEN") == "0"


class Places(Protocol):
    """Where the stores of one test are."""

    def fresh(self, clock: Callable[[], float]) -> Store:
        """Return an empty store."""
        ...

    def close(self) -> None:
        """Close what the test left open."""
        ...


class Files:
    """The files of one test, and the stores that were opened on them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: list[InlineStore] = []

    def fresh(self, clock: Callable[[], float]) -> InlineStore:
        """Return a store on a new file."""
        path = Path(tempfile.mkdtemp(dir=self._folder)) / "work.db"
        self._opened.append(InlineStore(path, clock))
        return self._opened[-1]

    def close(self) -> None:
        """Close what the test left open."""
        for store in self._opened:
            asyncio.run(store.close())


class Servers:
    """The tables of one test on a server, and the stores that were opened on them."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._opened: list[tuple[InlinePostgresStore, Schema]] = []

    def fresh(self, clock: Callable[[], float]) -> InlinePostgresStore:
        """Return a store on empty tables."""
        schema = self._schemas.take()
        self._opened.append((InlinePostgresStore(schema, clock), schema))
        return self._opened[-1][0]

    def close(self) -> None:
        """Close what the test left open; the tables are for the next one."""
        for store, schema in self._opened:
            asyncio.run(store.close())
            self._schemas.give_back(schema)


places: list[Places] = []
"""Those of the test that runs; none where stores are in memory."""


def fresh_store(*, clock: Callable[[], float] | None = None, **options: Any) -> Store:
    """Return an empty store of the kind that is tested, which follows the clock of the loop."""
    follow = clock or wall_clock(asyncio.get_running_loop())
    if places:
        return places[-1].fresh(follow)
    return MemoryStore(clock=follow, **options)
