"""The statements in the dialect of SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.store.sql.database import Dialect
from millpond.store.sql.load_queries import in_dialect

if TYPE_CHECKING:
    from collections.abc import Sequence

_PHRASES = {
    # Lists travel as JSON: one prepared statement serves every size.
    "IN ids(?)": "IN (SELECT value FROM json_each(?))",
    "IN names(?)": "IN (SELECT value FROM json_each(?))",
    "numbered(?)": "json_each(?)",
    "sentence(": "printf(",
    "removed_ids()": "millpond_removed",
}


def _say(statement: str) -> str:
    for phrase, ours in _PHRASES.items():
        statement = statement.replace(phrase, ours)
    return statement


def _listed(values: Sequence[int] | Sequence[str]) -> str:
    return msgspec.json.encode(values).decode()


SQLITE = Dialect(
    sql=in_dialect(_say, "millpond.store.sqlite"), listed=_listed, begin_reading=("BEGIN",)
)
