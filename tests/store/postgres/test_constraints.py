"""Guards of every row: the tables of tests refuse to break them, and the doctor finds it."""

from collections.abc import Iterator

import psycopg
import pytest
from verify.servers.schemas import Schemas

from millpond.store.postgres.connect import Connection, connect
from millpond.store.postgres.constraints import GUARDS
from millpond.store.postgres.dialect import dialect_of
from millpond.store.postgres.migrate import migrate
from millpond.store.postgres.url import Address, address_of

LIVE = (
    "INSERT INTO {schema}.millpond_live (place, id, pool, rank, sequence, submitted_at, due, "
    "cancel_requested, running, attempt, runs, fresh, listed, token, worker) "
    "VALUES (1, 1, 1, 0, 1, 0.0, 0.0, 0, %s, 1, 1, 0, 1, 0, %s)"
)
WRONG = [(1, None), (2, "w1"), (0, "w1")]
"""Values of `running` and `worker` that break a guard."""


@pytest.fixture
def address(postgres_url: str) -> Address:
    """Give an empty database."""
    return address_of(postgres_url)


@pytest.fixture
def connection(address: Address) -> Iterator[Connection]:
    """Give a connection to it, with the tables of a store."""
    with connect(address) as opened:
        migrate(opened, address)
        yield opened


@pytest.mark.parametrize("wrong", WRONG)
def test_tables_of_tests_refuse_a_row_that_breaks_a_guard(
    postgres_schemas: Schemas, wrong: tuple[int, str | None]
) -> None:
    """A running task has a holder: no verb under test may store anything else."""
    schema = postgres_schemas.take()
    lent = schema.connection()
    try:
        insert = LIVE.format(schema=schema.address.schema)
        with pytest.raises(psycopg.errors.CheckViolation):
            lent.driver.execute(insert.encode(), wrong)
    finally:
        lent.close()
        postgres_schemas.give_back(schema)


@pytest.mark.parametrize("wrong", WRONG)
def test_the_doctor_reports_a_row_that_breaks_a_guard(
    connection: Connection, address: Address, wrong: tuple[int, str | None]
) -> None:
    """It finds such rows where the tables do not refuse them."""
    query = dialect_of(address.schema).sql["check_guards"].encode()
    connection.execute(LIVE.format(schema=address.schema).encode(), (1, "w1"))
    assert [] == connection.execute(query).fetchall()
    connection.execute(b"DELETE FROM millpond.millpond_live")
    connection.execute(LIVE.format(schema=address.schema).encode(), wrong)
    reports = [text for (text,) in connection.execute(query).fetchall()]
    assert reports
    assert all("1 row(s) of live are not as they must be: " in text for text in reports)


def test_rows_of_a_new_store_are_as_they_must_be(connection: Connection, address: Address) -> None:
    """One query checks every guard of every table."""
    query = dialect_of(address.schema).sql["check_guards"]
    assert query.count("GROUP BY") == len(GUARDS)
    assert [] == connection.execute(query.encode()).fetchall()
