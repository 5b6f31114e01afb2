"""The reading side on a server: what an idle fleet asks all the time is one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.store.sql.view import SqlView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from millpond.store.sql.unit_of_work import SqlTables


class PostgresView(SqlView):
    """Looks first whether anything is queued at all; mostly that is all there is to know."""

    def __init__(
        self,
        read: Callable[..., Awaitable[object]],
        clock: Callable[[], float],
        log_newer: Callable[[SqlTables], None],
        anything_queued: Callable[[], Awaitable[bool]],
    ) -> None:
        super().__init__(read, clock, log_newer)
        self._anything_queued = anything_queued

    async def due(self, *, now: float) -> tuple[str, ...]:
        """Return the pools in which something due waits and starts are allowed at all."""
        return await super().due(now=now) if await self._anything_queued() else ()
