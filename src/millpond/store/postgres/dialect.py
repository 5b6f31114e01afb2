"""The statements in the dialect of PostgreSQL."""

from __future__ import annotations

import re
from functools import cache
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from millpond.store.postgres.constraints import COUNTING, breaches
from millpond.store.postgres.encoding import listed
from millpond.store.postgres.lock import to_read
from millpond.store.postgres.quoting import qualified
from millpond.store.sql.database import Dialect
from millpond.store.sql.load_queries import in_dialect, load_statements

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGE = "millpond.store.postgres"
_OWN = ("own.sql", "inbox.sql")

_PHRASES = {
    "IN ids(?)": "= ANY(?::bigint[])",
    "IN names(?)": "= ANY(?::text[])",
    "numbered(?)": (
        "(SELECT u.value, u.key - 1 AS key"
        " FROM unnest(?::bigint[]) WITH ORDINALITY AS u(value, key))"
    ),
    "sentence(": "format(",
    "removed_ids()": (
        "(SELECT DISTINCT unnest(coalesce(ids, ARRAY[id])) AS id FROM millpond_removed) AS removed"
    ),
}


class PostgresDialect(Dialect, frozen=True):
    """The statements for one schema."""

    many: Mapping[str, str]
    """The statement for many rows, by the statement for one row."""
    schema: str


@cache
def dialect_of(schema: str) -> PostgresDialect:
    """Return the dialect of a store in this schema."""
    said = {name: _in(schema, text) for name, text in in_dialect(_say, _PACKAGE, *_OWN).items()}
    said["miscounted"] = _in(schema, breaches(COUNTING))
    said["check_guards"] = _in(schema, breaches())
    said |= {name: _with_folded(schema, said[name]) for name in said if name.startswith("check_")}
    for_many = load_statements(_PACKAGE, "many.sql")
    return PostgresDialect(
        sql=said,
        listed=listed,
        begin_reading=("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", to_read(schema)),
        many={said[name]: _in(schema, text) for name, text in for_many.items()},
        schema=schema,
    )


@cache
def reading_of(schema: str) -> PostgresDialect:
    """Return the dialect for readers: folded tasks are found like all others."""
    said = dialect_of(schema)
    reading = {
        name: _with_folded(schema, text)
        for name, text in said.sql.items()
        if text.startswith("SELECT ")
    }
    return msgspec.structs.replace(said, sql=reading)


def _with_folded(schema: str, statement: str) -> str:
    """Return a statement that finds all live tasks, folded or not."""
    live, alive = (qualified(name, schema) for name in ("millpond_live", "millpond_alive"))
    return re.sub(rf"{re.escape(live)}\b", lambda _: alive, statement)


def _say(statement: str) -> str:
    for phrase, ours in _PHRASES.items():
        statement = statement.replace(phrase, ours)
    return statement


def _in(schema: str, statement: str) -> str:
    """Return a statement for the tables of a schema, with its arguments numbered."""
    numbers = count(1)
    return qualified(re.sub(r"\?", lambda _: f"${next(numbers)}", statement), schema)
