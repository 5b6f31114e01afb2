"""Handlers in child processes: decode, call, encode, and what an error means for the attempt."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.handler_signals import Cancelled, GiveUp, RetryLater, Throttled
from millpond.core.type_names import qualified_name
from millpond.pool.context import ChildJob, SyncContext
from millpond.runtime.executors.processes.briefing import Brief, Verdict
from millpond.runtime.jobs.outcome import BadResult, Misfit, Unreadable

if TYPE_CHECKING:
    from millpond.pool.middleware_stack import MiddlewareStack
    from millpond.pool.registered import Registered
    from millpond.runtime.executors.processes.child import Channel
    from millpond.runtime.observe.hooks import Hooks


def run_encoded(
    registered: Registered,
    hooks: Hooks,
    middlewares: MiddlewareStack,
    payload: bytes,
    context: bytes,
    channel: Channel,
) -> bytes:
    """Run a registered function in a child process; an error carries its verdict."""
    try:
        brief = msgspec.msgpack.decode(context, type=Brief)
        return _run(registered, hooks, middlewares, payload, brief, channel)
    except BaseException as error:
        verdict = msgspec.msgpack.encode(_verdict(error))
        error.__millpond_wish__ = lambda: verdict  # type: ignore[attr-defined]
        raise


def _run(
    registered: Registered,
    hooks: Hooks,
    middlewares: MiddlewareStack,
    payload: bytes,
    brief: Brief,
    channel: Channel,
) -> bytes:
    signature = registered.signature
    args, kwargs = signature.decode(payload)
    ctx = SyncContext(ChildJob(brief, channel))
    given = [ctx, *args] if signature.wants_context else args

    def call() -> Any:  # noqa: ANN401 - whatever the function returns
        result = registered.fn(*given, **kwargs)
        return asyncio.run(result) if inspect.iscoroutine(result) else result

    probes = hooks.probes
    with contextlib.nullcontext() if probes is None else probes.inside(brief.trace):
        result = middlewares.call(ctx, call)
    return b"" if registered.ignore_result else signature.encode_result(result)


def _verdict(error: BaseException) -> Verdict:
    """Return the meaning of an exception in a child process for its attempt."""
    return Verdict(
        kinds=tuple(qualified_name(kind) for kind in type(error).__mro__),
        give_up=isinstance(error, GiveUp),
        cancelled=isinstance(error, Cancelled),
        retry_in=_retry_in(error),
        spend=getattr(error, "spend", True),
        hold=error.scope if isinstance(error, Throttled) else None,
        bad_result=isinstance(error, BadResult),
        unreadable=isinstance(error, Unreadable),
        misfit=error.field if isinstance(error, Misfit) else None,
    )


def _retry_in(error: BaseException) -> float | None:
    if isinstance(error, Throttled):
        return error.retry_after
    return error.seconds if isinstance(error, RetryLater) else None
