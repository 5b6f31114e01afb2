"""The SQLite store passes the conformance suite of all stores."""

from pathlib import Path
from tempfile import mkdtemp

from verify.servers.consistency import must_be_consistent

from millpond.store.protocol import Store
from millpond.store.sqlite import SqliteStore
from millpond.store.sqlite.connect import connect
from millpond.store.sqlite.consistency import check_tables
from millpond.testing.conformance import StoreConformance


class RecountedSqliteStore(SqliteStore):
    """A store that recounts its rows when it is closed, and raises InconsistentRows."""

    async def close(self) -> None:
        """Close the store and recount its rows."""
        await super().close()
        connection = connect(self._path)
        try:
            must_be_consistent(str(self._path), check_tables(connection))
        finally:
            connection.close()


class TestSqliteStore(StoreConformance):
    """The conformance suite on SQLite."""

    async def make_store(self) -> Store:
        """Return a store on a fresh file."""
        return RecountedSqliteStore(Path(mkdtemp()) / "work.db", durability="normal", inline=True)
