"""asyncpg's connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.store.postgres.caller_transaction.driver_adapter import DriverAdapter

if TYPE_CHECKING:
    from millpond.store.postgres.caller_transaction.driver_adapter import Statement


class AsyncpgAdapter(DriverAdapter):
    """asyncpg's connection, or one lent by its pool."""

    waits = True

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return bool(self.given.is_in_transaction())

    def state(self) -> str:
        """Return what can be done with it."""
        if self.given.is_closed():
            return "closed"
        return "open" if self.given.is_in_transaction() else "none"

    async def ask(self, statement: Statement, argument: str) -> Any:  # noqa: ANN401 - a text
        """Ask."""
        return await self.given.fetchval(statement.with_placeholder("$1"), argument)
