"""Consistency of a file: integrity check, and agreement of the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.store.sql.consistency import check_rows
from millpond.store.sqlite.dialect import SQLITE

if TYPE_CHECKING:
    from sqlite3 import Connection


def check_tables(connection: Connection) -> list[str]:
    """Return every problem as one sentence; none = all is well."""
    found = connection.execute("PRAGMA integrity_check")
    return [*(said for (said,) in found if said != "ok"), *check_rows(connection, SQLITE)]
