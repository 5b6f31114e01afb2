"""A transaction of the calling thread's own on the store's file, which a write would wait for.

SQLite has one writer at a time. A thread that submits inside its own transaction waits for the
store's writer, and that one waits for the thread's transaction: until the patience of the store is
over. Django knows which transactions a thread has open, so Django's can be refused at once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from millpond.errors import StoreLocked

if TYPE_CHECKING:
    from pathlib import Path


def refuse_inside_own_transaction(path: Path) -> None:
    """Raise StoreLocked if this thread is inside `atomic()` of Django on this very file."""
    django: Any = sys.modules.get("django.db")
    if django is None or not sys.modules["django.conf"].settings.configured:
        return
    for connection in django.connections.all(initialized_only=True):
        if (
            connection.vendor == "sqlite"
            and connection.in_atomic_block
            and _is_on(connection, path)
        ):
            raise StoreLocked(
                f"this thread is inside its own transaction on {path} (Django's atomic(), "
                f"database {connection.alias!r}), and what it submits would wait for the end of "
                "that transaction: make it part of the transaction with "
                f"connection=connections[{connection.alias!r}], or submit after the commit with "
                "transaction.on_commit(...). Nothing was submitted",
                path=str(path),
                waited=0.0,
            )


def _is_on(connection: Any, path: Path) -> bool:  # noqa: ANN401 - Django has no types
    try:
        return path.samefile(connection.settings_dict["NAME"])
    except (OSError, TypeError, ValueError):  # a database in memory, or one that is not there
        return False
