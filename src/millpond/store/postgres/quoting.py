"""Quoting: names in SQL, qualified with their schema.

Statements also run on connections of others (`submit(connection=)`) and through poolers, where no
setting of a session can be relied on. So every statement says which schema it means.
"""

from __future__ import annotations

import re
from functools import lru_cache

from millpond.store.postgres.server_functions import installed_name

LONGEST = 63
"""The most bytes of a name: PostgreSQL truncates longer ones."""

_OURS = re.compile(r"\bmillpond_\w+")


def quoted(name: str) -> str:
    """Return a quoted name."""
    return '"' + name.replace('"', '""') + '"'


@lru_cache(maxsize=1024)
def qualified(statement: str, schema: str) -> str:
    """Return a statement with the schema before the name of each of our tables and functions.

    Functions get the names that they have on the server, with their version.

    They are known by how they begin; so neither columns nor literals may begin that way.
    """
    place = quoted(schema)
    return _OURS.sub(lambda found: f"{place}.{installed_name(found[0])}", statement)


def why_no_schema(name: str) -> str | None:
    """Return why a schema cannot have this name; None if it can."""
    if not name:
        return "is empty"
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "holds a control character"
    if "%" in name:
        return "holds a %, which drivers take for a parameter"
    if len(name.encode()) > LONGEST:
        return f"has {len(name.encode())} bytes, and PostgreSQL cuts off names after {LONGEST}"
    if name.startswith("pg_") or name == "information_schema":
        return "is one of PostgreSQL's own"
    return None
