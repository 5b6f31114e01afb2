"""SQLAlchemy's connections and sessions, over whatever driver they have."""

from __future__ import annotations

from typing import Any

from millpond.store.postgres.caller_transaction.driver_adapter import DriverAdapter, Statement


class SqlAlchemyAdapter(DriverAdapter):
    """SQLAlchemy's Connection or Session; whatever driver it has."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, as far as SQLAlchemy knows."""
        return bool(self.given.in_transaction())

    def state(self) -> str:
        """Return what can be done with it."""
        if getattr(self.given, "closed", False):
            return "closed"
        own = self.given.connection
        pooled = own().connection if callable(own) else own
        self.driver = pooled.driver_connection
        return _state_of_dbapi(pooled)

    def ask(self, statement: Statement, argument: str) -> Any:  # noqa: ANN401 - a text
        """Ask."""
        query, arguments = _bound_text(statement, argument)
        return self.given.execute(query, arguments).scalar_one()


class AsyncSqlAlchemyAdapter(DriverAdapter):
    """SQLAlchemy's AsyncConnection or AsyncSession."""

    waits = True

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, as far as SQLAlchemy knows."""
        return bool(self.given.in_transaction())

    async def state(self) -> str:  # type: ignore[override]
        """Return what can be done with it."""
        if getattr(self.given, "closed", False):
            return "closed"
        # A session has a connection when it is asked for one; a connection is one.
        own = self.given if hasattr(self.given, "sync_connection") else None
        if own is None:
            own = await self.given.connection()
        pooled = own.sync_connection.connection
        self.driver = pooled.driver_connection
        return _state_of_dbapi(pooled)

    async def ask(self, statement: Statement, argument: str) -> Any:  # noqa: ANN401 - a text
        """Ask."""
        query, arguments = _bound_text(statement, argument)
        return (await self.given.execute(query, arguments)).scalar_one()


def _state_of_dbapi(pooled: Any) -> str:  # noqa: ANN401 - SQLAlchemy's, around one of any driver
    return "none" if getattr(pooled.dbapi_connection, "autocommit", False) is True else "open"


def _bound_text(statement: Statement, argument: str) -> tuple[Any, dict[str, str]]:
    """Return a statement as SQLAlchemy wants it: there a : begins the name of an argument."""
    from sqlalchemy import text  # noqa: PLC0415 - who gave us its connection has loaded it

    before, after = (part.replace(":", "\\:") for part in statement)
    return text(Statement(before, after).with_placeholder(":given")), {"given": argument}
