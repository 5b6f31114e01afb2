"""One stay inside a bulkhead, as an `async with` block."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from millpond.bulkhead.permit import Permit, is_failure
from millpond.bulkhead.reports import as_error

if TYPE_CHECKING:
    import asyncio
    from datetime import timedelta
    from types import TracebackType

    from millpond.bulkhead.bulkhead import Bulkhead


class Stay(AbstractAsyncContextManager[Permit]):
    """One `async with bulkhead.permit(...)`."""

    __slots__ = ("_bulkhead", "_permit", "_signal", "_timeout", "_used", "_weight")

    _permit: Permit

    def __init__(
        self,
        bulkhead: Bulkhead,
        weight: int,
        timeout: float | timedelta | None,
        signal: asyncio.Event | None,
    ) -> None:
        self._bulkhead = bulkhead
        self._weight = weight
        self._timeout = timeout
        self._signal = signal
        self._used = False

    async def __aenter__(self) -> Permit:
        if self._used:
            raise RuntimeError("permit() is for one `async with`; call it again for another")
        self._used = True
        permit = await self._bulkhead.acquire(self._timeout, self._signal, self._weight)
        if not permit:
            raise as_error(permit)
        self._permit = permit
        return permit

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._permit.release(is_failure(kind))
