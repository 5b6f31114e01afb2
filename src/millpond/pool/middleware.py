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

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from millpond.core.handler_signals import Cancelled, GiveUp, RetryLater, Throttled
from millpond.core.log_fields import about

if TYPE_CHECKING:
    from millpond.pool.context import Context, SyncContext

log = logging.getLogger("millpond.worker")


class Middleware:
    """Code around handlers. Override what you need; nothing is required."""

    def before(self, ctx: Context | SyncContext) -> None:
        """Called before the handler; an error here ends the attempt like one of the handler."""

    def after(self, ctx: Context | SyncContext, result: Any) -> None:  # noqa: ANN401 - of any type
        """Called with what the handler returned."""

    def failed(self, ctx: Context | SyncContext, error: BaseException) -> None:
        """Called with what the handler raised: also GiveUp, RetryLater and a cancellation.

        It may raise GiveUp, RetryLater, Throttled or Cancelled, which then count instead. Any other
        error of its own is logged, and what the handler raised counts.
        """

    def around(self, ctx: SyncContext, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call a plain handler, in its thread or process; return its result or another one."""
        self.before(ctx)
        try:
            result = call()
        except BaseException as error:
            _after_failure(self, ctx, error)
            raise
        self.after(ctx, result)
        return result

    async def around_async(self, ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
        """Call an async handler, on the event loop; return its result or another one."""
        self.before(ctx)
        try:
            result = await call()
        except BaseException as error:
            _after_failure(self, ctx, error)
            raise
        self.after(ctx, result)
        return result


def _after_failure(
    middleware: Middleware, ctx: Context | SyncContext, error: BaseException
) -> None:
    """Call `failed`; an error in it must not hide what the handler raised, such as GiveUp."""
    try:
        middleware.failed(ctx, error)
    except Exception as broken:
        # Nothing replaces a cancellation: the attempt must stop.
        is_signal = isinstance(broken, (Cancelled, GiveUp, RetryLater, Throttled))
        if is_signal and isinstance(error, Exception):
            raise
        name, reason = type(middleware).__name__, type(broken).__name__
        log.exception(
            "%s.failed raised; the error of the handler counts",
            name,
            extra=about("middleware.failed", pool=ctx.pool, task=ctx.task_id, reason=reason),
        )
