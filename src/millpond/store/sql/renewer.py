"""Renew leases from a thread, over a connection of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.store.protocol import RenewAnswer
from millpond.store.sql.unit_of_work import SqlTables
from millpond.store.verbs import api as verbs

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.store.sql.transactions import Transactor


class SqlRenewer:
    """Renews leases from a thread, over a connection of its own."""

    def __init__(self, transactor: Transactor[SqlTables, Any], clock: Callable[[], float]) -> None:
        self._transactor = transactor
        self._clock = clock

    def renew(self, worker: str, lease: float) -> RenewAnswer:
        """Renew all leases of a worker for `lease` seconds."""
        return self._transactor.run(
            lambda tables: verbs.renew(tables, worker, lease, self._clock())
        )

    def close(self) -> None:
        """Close its connection."""
        self._transactor.close()
