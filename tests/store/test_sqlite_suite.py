"""The SQLite store passes the suite that every store must pass, as it is."""

from pathlib import Path
from tempfile import mkdtemp

from millpond.store.protocol import Store
from millpond.store.sqlite import SqliteStore
from millpond.testing.conformance import StoreConformance


class TestSqliteStore(StoreConformance):
    """Held to the same word as the memory store."""

    async def make_store(self) -> Store:
        """Return a store on a fresh file."""
        return SqliteStore(Path(mkdtemp()) / "work.db", durability="normal", inline=True)
