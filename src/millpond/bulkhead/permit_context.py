"""A permit for the length of an `async with` block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from millpond.bulkhead.permit import Permit, is_failure
from millpond.bulkhead.reports import PermitRejection, as_error

if TYPE_CHECKING:
    from types import TracebackType


class PermitContext(AbstractAsyncContextManager[Permit]):
    """One `async with bulkhead.permit(...)`."""

    __slots__ = ("_acquire", "_permit", "_used")

    _permit: Permit

    def __init__(self, acquire: Callable[[], Awaitable[Permit | PermitRejection]]) -> None:
        self._acquire = acquire
        self._used = False

    async def __aenter__(self) -> Permit:
        if self._used:
            raise RuntimeError("permit() is for one `async with`; call it again for another")
        self._used = True
        permit = await self._acquire()
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
