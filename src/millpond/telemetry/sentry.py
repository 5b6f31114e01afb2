"""Sentry: errors of handlers, each in a scope and a transaction of its own.

    import sentry_sdk

    from millpond.telemetry.sentry import SentryMiddleware

    sentry_sdk.init(dsn=...)
    mp.add_middleware(SentryMiddleware())

An event has the task as context and pool, function and attempt as tags. Arguments are not sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from millpond.core.handler_signals import Cancelled, GiveUp, RetryLater, Throttled
from millpond.errors import DriverMissing
from millpond.pool.middleware import Middleware

try:
    import sentry_sdk
except ImportError as missing:
    raise DriverMissing(
        "sentry-sdk is not installed: pip install 'millpond[sentry]'", extra="sentry"
    ) from missing

if TYPE_CHECKING:
    from millpond.pool.context import Context, SyncContext

NO_FAILURES = (RetryLater, Throttled, Cancelled, asyncio.CancelledError)
"""What a handler raises to control its attempt, and what stops it."""


class SentryMiddleware(Middleware):
    """Sends errors of handlers to Sentry, and a transaction for each attempt."""

    def __init__(self, *, last_attempt_only: bool = False) -> None:
        self._last_only = last_attempt_only
        """Whether an error that is followed by another attempt is left out."""

    def around(self, ctx: SyncContext, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call a handler in a thread or process."""
        with self._watched(ctx):
            return call()

    async def around_async(self, ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
        """Call a handler on the event loop."""
        with self._watched(ctx):
            return await call()

    @contextlib.contextmanager
    def _watched(self, ctx: Context | SyncContext) -> Iterator[None]:
        with sentry_sdk.isolation_scope() as scope:
            scope.set_tag("millpond.pool", ctx.pool)
            scope.set_tag("millpond.function", ctx.function)
            scope.set_tag("millpond.attempt", ctx.attempt)
            scope.set_context("millpond", _facts(ctx))
            with sentry_sdk.start_transaction(
                op="queue.process", name=ctx.function, source="task", origin="auto.queue.millpond"
            ) as transaction:
                transaction.set_data("messaging.message.id", str(ctx.task_id))
                transaction.set_data("messaging.destination.name", ctx.pool)
                transaction.set_data("messaging.message.retry.count", ctx.attempt - 1)
                try:
                    yield
                except NO_FAILURES:
                    transaction.set_status("aborted")
                    raise
                except BaseException as error:
                    transaction.set_status("internal_error")
                    self._capture(ctx, error)
                    raise
                transaction.set_status("ok")

    def _capture(self, ctx: Context | SyncContext, error: BaseException) -> None:
        is_last = isinstance(error, GiveUp) or ctx.attempt >= ctx.max_attempts
        if self._last_only and not is_last:
            return
        cause = error.__cause__ if isinstance(error, GiveUp) else None
        sentry_sdk.capture_exception(cause or error)


def _facts(ctx: Context | SyncContext) -> dict[str, Any]:
    return {
        "task_id": str(ctx.task_id),
        "pool": ctx.pool,
        "function": ctx.function,
        "attempt": ctx.attempt,
        "max_attempts": ctx.max_attempts,
        "key": ctx.key,
        "labels": ctx.labels,
        "submitted_at": ctx.submitted_at,
    }
