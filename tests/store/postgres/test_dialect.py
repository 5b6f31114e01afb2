"""Every statement is said on PostgreSQL, too, and means what it means elsewhere."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from verify.servers.schemas import Schemas

from millpond.store import sql
from millpond.store.postgres.dialect import dialect_of
from millpond.store.postgres.encoding import BINARY, array, listed, sent
from millpond.store.sqlite.dialect import SQLITE

OWN = {
    "add_detours",
    *("anything_queued", "begun", "led", "renew", "step", "step_simple"),
    *("take", "take_one", "unfold", "version"),
    *("inbox_first", "inbox_drop", "inbox_span", "store_identity"),
    *("inbox_new", "inbox_seen", "inbox_foreign", "inbox_unseen", "lower", "raise", "lower_ring"),
    *("check_bands", "check_leases", "check_inbox", "check_guards", "mend_9_marks", "mend_9_inbox"),
    *("all_ways", "miscounted", "renewed_since", "compact", "turn_audit", "first_of_audit"),
}
"""What only PostgreSQL is asked."""

OWN_OF_SQLITE = {"check_kinds", "mend_0_kinds"}
"""A column of PostgreSQL takes values of one type, so only SQLite is asked for others."""

POSTGRES = dialect_of("some")


@pytest.fixture
def connection(postgres_schemas: Schemas) -> Iterator[psycopg.Connection]:
    """A connection to a server with the tables of a store."""
    schema = postgres_schemas.take()
    lent = schema.connection()
    yield lent.driver
    lent.close()
    postgres_schemas.give_back(schema)


def test_both_databases_have_the_same_statements() -> None:
    """A missing one would be found out only when it is first used."""
    assert set(SQLITE.sql) - OWN_OF_SQLITE == set(POSTGRES.sql) - OWN


def test_every_phrase_is_said_in_the_words_of_postgres() -> None:
    """What is left of one would be an error when the statement is first used."""
    phrases = re.compile(r"\b(ids|names|numbered|sentence)\(|\?|\bmillpond_\w+(?<!\"some\".)")
    said = [*POSTGRES.sql.items(), *((text, text) for text in POSTGRES.many.values())]
    left = [
        name for name, text in said if phrases.search(re.sub(r'"some"\.millpond_\w+', "", text))
    ]
    assert [] == left


def test_no_text_is_taken_for_the_name_of_a_table() -> None:
    """It would get the schema before it, with quotes in it."""
    texts = [
        text for statement in POSTGRES.sql.values() for text in re.findall(r"'[^']*'", statement)
    ]
    assert [] == [text for text in texts if "some" in text]


def test_the_server_understands_every_statement(postgres_schemas: Schemas) -> None:
    """Those of the checks and of mending, too, which are hardly ever used."""
    schema = postgres_schemas.take()
    dialect = dialect_of(schema.address.schema)
    connection = schema.connection()
    wrong = []
    for text in (*dialect.sql.values(), *dialect.many.values()):
        try:
            connection.driver.execute(f"PREPARE one AS {text}".encode())
            connection.driver.execute("DEALLOCATE one")
        except psycopg.Error as error:
            wrong.append(f"{error}: {text}")
    connection.close()
    postgres_schemas.give_back(schema)
    assert [] == wrong


def test_each_statement_for_many_rows_takes_them_at_once() -> None:
    """One by one it would still be right, and take far longer."""
    folder = Path(inspect.getfile(sql)).parent
    code = "".join(file.read_text("utf-8") for file in folder.rglob("*.py"))
    named = set(re.findall(r'\bsend\("(\w+)"', code))
    assert len(named) > 20
    assert [] == [name for name in sorted(named) if POSTGRES.sql[name] not in POSTGRES.many]


def test_a_statement_for_many_rows_takes_as_many_columns() -> None:
    """The columns are given in the order in which the values of a row are."""

    def arguments(text: str) -> int:
        return max(map(int, re.findall(r"\$(\d+)", text)))

    assert [] == [one for one, many in POSTGRES.many.items() if arguments(one) != arguments(many)]


TEXTS = ["", "a", 'b"c', "back\\slash", "{},", "NULL", "null", "ä\n\t", "'", "%s", "$1", " ", "🦆"]


def _back(connection: psycopg.Connection, kind: str, value: Any) -> Any:
    value, form = value
    library = connection.pgconn
    result = library.exec_params(f"SELECT $1::{kind}".encode(), [value], None, [form], BINARY)
    cursor = psycopg.adapt.Transformer(connection)
    cursor.set_pgresult(result)
    return cursor.load_rows(0, 1, tuple)[0][0]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text[]", TEXTS),
        ("text[]", [None, "x", None]),
        ("bigint[]", [0, -(2**63), 2**63 - 1]),
        ("bigint[]", [None, 1]),
        ("smallint[]", [True, False]),
        ("double precision[]", [0.1, 1e300, float("inf"), None, 3]),
        ("bytea[]", [b"", b"\0\xff", None, b"x" * 70_000]),
        ("bytea[]", [None, None]),
        ("bigint[]", []),
    ],
)
def test_arrays_arrive_as_they_were_sent(
    connection: psycopg.Connection, kind: str, values: list[Any]
) -> None:
    """Of any type, and of whatever texts."""
    assert values == _back(connection, kind, array(values))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("text", 'a"\\b\n'),
        ("bigint", -(2**63)),
        ("smallint", True),
        ("double precision", 0.1),
        ("double precision", float("inf")),
        ("bytea", b"\0\xff"),
        ("text", None),
    ],
)
def test_values_arrive_as_they_were_sent(
    connection: psycopg.Connection, kind: str, value: Any
) -> None:
    """Each in the form that its type is read in."""
    assert value == _back(connection, kind, sent(value))


def test_lists_arrive_as_they_were_sent(connection: psycopg.Connection) -> None:
    """They are one argument, of any length."""
    assert TEXTS == _back(connection, "text[]", sent(listed(TEXTS)))
    assert [3, 1, 2] == _back(connection, "bigint[]", sent(listed([3, 1, 2])))
    assert [] == _back(connection, "bigint[]", sent(listed([])))


@pytest.mark.parametrize(
    "send", [sent, lambda text: sent(listed([text])), lambda text: array([text])]
)
def test_a_text_with_a_nul_is_refused_and_not_cut_off(send: Any) -> None:
    """The driver's library would take it for the end of the text."""
    with pytest.raises(psycopg.DataError, match="NUL"):
        send("a\0b")
