"""The middlewares of one Millpond, in order, and calls inside them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol


class Around(Protocol):
    """A middleware, as the calls of handlers see it."""

    def around(self, ctx: Any, call: Callable[[], Any], /) -> Any:  # noqa: ANN401
        """Call a plain handler."""
        ...

    async def around_async(self, ctx: Any, call: Callable[[], Awaitable[Any]], /) -> Any:  # noqa: ANN401
        """Call an async handler."""
        ...


class MiddlewareStack:
    """The middlewares of one Millpond, the outermost first."""

    __slots__ = ("installed",)

    def __init__(self) -> None:
        self.installed: tuple[Around, ...] = ()

    def add(self, middleware: Around) -> Callable[[], None]:
        """Add a middleware inside the others; return a function that removes it."""
        self.installed = (*self.installed, middleware)

        def remove() -> None:
            self.installed = tuple(one for one in self.installed if one is not middleware)

        return remove

    def call(self, ctx: object, handler: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call a plain handler inside all middlewares."""
        for middleware in reversed(self.installed):
            handler = partial(middleware.around, ctx, handler)
        return handler()

    def call_async(self, ctx: object, handler: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
        """Call an async handler inside all middlewares."""
        for middleware in reversed(self.installed):
            handler = partial(middleware.around_async, ctx, handler)
        return handler()
