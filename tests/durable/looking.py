"""A look at the tables of a store by hand, whatever database they are in."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millpond.store.postgres.connect import connect as connect_server
from millpond.store.postgres.dialect import dialect_of
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.quoting import qualified
from millpond.store.postgres.url import address_of, is_postgres
from millpond.store.sql.consistency import check_rows
from millpond.store.sqlite.connect import connect as connect_file
from millpond.store.sqlite.consistency import check_tables

Look = Callable[[str], list[Any]]


@contextmanager
def looked_at(url: str) -> Iterator[Look]:
    """Give a function that queries the tables of a store, once they are consistent."""
    with (_on_a_server if is_postgres(url) else _on_a_file)(url) as look:
        yield look


@contextmanager
def _on_a_file(url: str) -> Iterator[Look]:
    file = connect_file(Path(url.removeprefix("sqlite:///")))
    try:
        assert [] == check_tables(file)
        yield lambda query: file.execute(query).fetchall()
    finally:
        file.close()


@contextmanager
def _on_a_server(url: str) -> Iterator[Look]:
    address = address_of(url)
    dialect = dialect_of(address.schema)
    connection = PostgresConnection(connect_server(address), dialect.many)
    try:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        assert [] == check_rows(connection, dialect)
        yield lambda query: connection.execute(qualified(query, address.schema)).fetchall()
    finally:
        connection.close()
