"""Log the pools and budgets that only a newer version understands, each once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millpond.core.control import DeclareBudget
from millpond.core.log_fields import about
from millpond.errors import NewerPool

if TYPE_CHECKING:
    from millpond.core.control import Declare
    from millpond.store.sql.unit_of_work import SqlTables

log = logging.getLogger("millpond.store")


class NewerLog:
    """What this process has logged already."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()
        """Names of pools and budgets, with the option that is not known here."""

    def add(self, error: NewerPool) -> None:
        """Log a pool or budget, unless it was logged."""
        if (error.pool, error.option) not in self._logged:
            self._logged.add((error.pool, error.option))
            log.error("%s", error, extra=about("pool.newer", pool=error.pool, reason=str(error)))

    def log_all(self, tables: SqlTables) -> None:
        """Log all such pools of a unit of work."""
        for error in tables.pools.newer.values():
            self.add(error)

    def is_newer(self, tables: SqlTables, pool: str) -> bool:
        """Return whether only a newer version understands a pool."""
        try:
            tables.pools.get(pool)
        except NewerPool as error:
            self.add(error)
            return True
        return False

    def declares_newer(self, tables: SqlTables, command: Declare | DeclareBudget) -> bool:
        """Return whether only a newer version understands the stored settings of this name."""
        try:
            if isinstance(command, DeclareBudget):
                tables.budgets.get(command.spec.name)
            else:
                tables.pools.get(command.spec.name)
                tables.budgets.must_know(command.spec)
        except NewerPool as error:
            self.add(error)
            return True
        return False
