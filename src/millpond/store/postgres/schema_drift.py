"""Schema drift: compare the schema with the migrations and the functions.

An administrator may drop an index that seems useless, edit a function by hand, or switch off the
vacuum of a table. Millpond then works on, slower or wrong. So `drifted` compares the schema with
the one that the migrations make.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from millpond.store.postgres.migrate import known_migrations
from millpond.store.postgres.quoting import quoted
from millpond.store.postgres.server_functions import installed_texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.store.postgres.connect import Connection
    from millpond.store.postgres.url import Address

_MADE = re.compile(
    r"^(CREATE|DROP)(?: OR REPLACE)? (?:UNIQUE )?(TABLE|VIEW|INDEX)(?: IF EXISTS)? (\w+)",
    re.MULTILINE,
)
_BODY = re.compile(
    r"^CREATE(?: OR REPLACE)? FUNCTION (\w+)\(.*?\bAS (\$\w*\$)(.*?)\2", re.MULTILINE | re.DOTALL
)

_RELATIONS = """\
SELECT c.relname::text, coalesce(i.indisvalid, true),
       coalesce((SELECT o.option_value::boolean FROM pg_options_to_table(c.reloptions) AS o
                  WHERE o.option_name = 'autovacuum_enabled'), true)
  FROM pg_class AS c LEFT JOIN pg_index AS i ON i.indexrelid = c.oid
 WHERE c.relnamespace = %s::regnamespace"""

_FUNCTIONS = "SELECT proname::text, prosrc FROM pg_proc WHERE pronamespace = %s::regnamespace"

_TRIGGERS = """\
SELECT c.relname::text, t.tgname::text FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
 WHERE c.relnamespace = %s::regnamespace AND NOT t.tgisinternal
   AND t.tgname NOT LIKE 'millpond\\_%%'
 ORDER BY 1, 2"""


class Expected(NamedTuple):
    """The schema that the migrations make."""

    relations: dict[str, str]
    """The kind of each relation: a table, view or index."""
    bodies: dict[str, str]
    """The body of each function."""


def expected() -> Expected:
    """Read it from the migrations and the functions; the last definition counts."""
    relations: dict[str, str] = {}
    bodies: dict[str, str] = {}
    for migration in known_migrations():
        for verb, kind, name in _MADE.findall(migration.text):
            if verb == "CREATE":
                relations[name] = kind.lower()
            else:
                relations.pop(name, None)
        bodies |= {name: body for name, _, body in _BODY.findall(migration.text)}
    for text in installed_texts().values():
        bodies |= {name: body for name, _, body in _BODY.findall(text)}
    return Expected(relations, bodies)


def drifted(connection: Connection, address: Address) -> Iterator[str]:
    """Yield every difference, each with what to do."""
    schema, wanted = quoted(address.schema), expected()
    found = {name: state for name, *state in connection.execute(_RELATIONS, [schema])}
    for name, kind in wanted.relations.items():
        if name not in found:
            yield f"the {kind} {name} is missing: {_again(kind)}"
    for name, (valid, vacuumed) in found.items():
        if not valid:
            yield f"the index {name} is not valid: REINDEX INDEX CONCURRENTLY {schema}.{name}"
        if not vacuumed:
            yield (
                f"autovacuum is off for {name}, where rows die all the time: "
                f"ALTER TABLE {schema}.{name} RESET (autovacuum_enabled)"
            )
    there: dict[str, set[str]] = {}
    for name, body in connection.execute(_FUNCTIONS, [schema]):
        there.setdefault(name, set()).add(body)
    for name, body in wanted.bodies.items():
        if body not in there.get(name, ()):
            what = "is not what this release has made" if name in there else "is missing"
            yield f"the function {name} {what}: {_again('function')}"
    for table, trigger in connection.execute(_TRIGGERS, [schema]):
        yield (
            f"the trigger {trigger} is not Millpond's. It runs with every write to {table}, inside "
            f"the lock that all writers wait for: DROP TRIGGER {trigger} ON {schema}.{table}"
        )


def _again(kind: str) -> str:
    return f"make the {kind} again as the migrations of this release have it, or restore the schema"
