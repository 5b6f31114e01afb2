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
