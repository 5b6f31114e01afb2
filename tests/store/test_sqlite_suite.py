"""The SQLite store passes the suite that every store must pass, as it is."""

from pathlib import Path
from tempfile import mkdtemp

from millpond.store.protocol import Store
from millpond.store.sqlite import SqliteStore
from millpond.store.sqlite.connect import connect
from millpond.store.sqlite.consistency import check_tables
from millpond.testing.conformance import StoreConformance


class Recounted(SqliteStore):
    """Whatever a scenario did to it, what its tables say of each other must fit in the end."""

    async def close(self) -> None:
        """Close it and count everything again."""
        await super().close()
        connection = connect(self._path)
        try:
            assert [] == check_tables(connection)
        finally:
            connection.close()


class TestSqliteStore(StoreConformance):
    """Held to the same word as the memory store."""

    async def make_store(self) -> Store:
        """Return a store on a fresh file."""
        return Recounted(Path(mkdtemp()) / "work.db", durability="normal", inline=True)
