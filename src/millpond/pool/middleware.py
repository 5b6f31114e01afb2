"""Middleware: code around every handler of a Millpond.

    class Timing(Middleware):
        def after(self, ctx, result):
            print(ctx.function, "took", time.time() - ctx.started_at)

    mp.add_middleware(Timing())

`before`, `after` and `failed` serve handlers of every kind. To replace a result or an error, or to
keep something open while the handler runs, override `around` and `around_async`. All of them run
where the handler runs: `around_async` on the event loop; `around` in the thread or the process. The
first middleware that was added is the outermost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.pool.context import Context, SyncContext


class Middleware:
    """Code around handlers. Override what you need; nothing is required."""

    def before(self, ctx: Context | SyncContext) -> None:
        """Called before the handler; an error here ends the attempt like one of the handler."""

    def after(self, ctx: Context | SyncContext, result: Any) -> None:  # noqa: ANN401 - of any type
        """Called with what the handler returned."""

    def failed(self, ctx: Context | SyncContext, error: BaseException) -> None:
        """Called with what the handler raised: also GiveUp, RetryLater and a cancellation."""

    def around(self, ctx: SyncContext, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call a plain handler, in its thread or process; return its result or another one."""
        self.before(ctx)
        try:
            result = call()
        except BaseException as error:
            self.failed(ctx, error)
            raise
        self.after(ctx, result)
        return result

    async def around_async(self, ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
        """Call an async handler, on the event loop; return its result or another one."""
        self.before(ctx)
        try:
            result = await call()
        except BaseException as error:
            self.failed(ctx, error)
            raise
        self.after(ctx, result)
        return result


class MiddlewareStack:
    """The middlewares of one Millpond, the outermost first."""

    __slots__ = ("installed",)

    def __init__(self) -> None:
        self.installed: tuple[Middleware, ...] = ()

    def add(self, middleware: Middleware) -> Callable[[], None]:
        """Add a middleware inside the others; return a function that removes it."""
        self.installed = (*self.installed, middleware)

        def remove() -> None:
            self.installed = tuple(one for one in self.installed if one is not middleware)

        return remove

    def call(self, ctx: SyncContext, handler: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call a plain handler inside all middlewares."""
        for middleware in reversed(self.installed):
            handler = _inside(middleware, ctx, handler)
        return handler()

    def call_async(self, ctx: Context, handler: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
        """Call an async handler inside all middlewares."""
        for middleware in reversed(self.installed):
            handler = _inside_async(middleware, ctx, handler)
        return handler()


def _inside(
    middleware: Middleware, ctx: SyncContext, handler: Callable[[], Any]
) -> Callable[[], Any]:
    return lambda: middleware.around(ctx, handler)


def _inside_async(
    middleware: Middleware, ctx: Context, handler: Callable[[], Awaitable[Any]]
) -> Callable[[], Awaitable[Any]]:
    return lambda: middleware.around_async(ctx, handler)
