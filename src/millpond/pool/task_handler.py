"""Handlers: how workers and child processes call a registered function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.settle import Ending, RunEnding
from millpond.core.task import CALLBACKS
from millpond.errors import ResultUnreadable
from millpond.pool.context import Context, SyncContext
from millpond.pool.middleware_stack import MiddlewareStack
from millpond.pool.outcome import outcome_of
from millpond.runtime.jobs.job import BatchShape, Handler, Job, Where
from millpond.runtime.jobs.outcome import Misfit, Unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millpond.pool.outcome import DecoderOf
    from millpond.pool.registered import Registered
    from millpond.runtime.executors.processes.child import Channel
    from millpond.runtime.observe.hooks import Hooks


class TaskHandler:
    """Calls one registered function: decodes its arguments, gives it its context."""

    def __init__(
        self,
        registered: Registered,
        decoder_of: DecoderOf,
        hooks: Hooks,
        middlewares: MiddlewareStack | None = None,
    ) -> None:
        self._registered = registered
        self._fn = registered.fn
        self._signature = registered.signature
        self._decoder_of = decoder_of
        self._hooks = hooks
        # Millpond's own functions have none.
        self._middlewares = MiddlewareStack() if middlewares is None else middlewares

    def handler(self) -> Handler:
        """Return the function as workers know it."""
        registered, shape = self._registered, None
        if registered.batch is not None:
            shape = BatchShape(*registered.batch, self._read_item, self._call_batch)
        process = None
        if registered.where is Where.PROCESS:
            process = (self._fn.__module__, self._fn.__qualname__)
        return Handler(
            registered.name,
            registered.where,
            self._invoke,
            self._encode,
            registered.defaults.get("retry"),
            shape,
            process,
            self._signature.decode,
            self._signature,
        )

    def _encode(self, value: object) -> bytes | None:
        """Return a result as it is stored; None = it is not stored."""
        return None if self._registered.ignore_result else self._signature.encode_result(value)

    def _invoke(self, job: Job) -> Any:  # noqa: ANN401 - whatever the function returns
        if job.leased.pool.endswith(CALLBACKS):
            return self._call_back(job)
        args, kwargs = self._signature.decode(job.leased.call.payload)
        if self._middlewares.installed:
            return self._call_inside(job, args, kwargs)
        if self._signature.wants_context:
            return self._fn(self._context(job), *args, **kwargs)
        return self._fn(*args, **kwargs)

    def _call_inside(self, job: Job, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Call the function inside the middlewares, where it runs: on the loop, or in a thread."""
        ctx = self._context(job)
        given = [ctx, *args] if self._signature.wants_context else args
        if isinstance(ctx, Context):
            return self._middlewares.call_async(ctx, lambda: self._fn(*given, **kwargs))
        return self._middlewares.call(ctx, lambda: self._fn(*given, **kwargs))

    def _call_back(self, job: Job) -> Any:  # noqa: ANN401
        args, kwargs = self._registered.callback_signature.decode(job.leased.call.payload)
        try:
            outcome = outcome_of(_ending(job.leased.options), self._decoder_of)
        except ResultUnreadable as error:
            # Another worker may have the release of the function that stored the result.
            raise Misfit(error.message, "outcome") from error
        if self._middlewares.installed:
            return self._call_inside(job, [outcome, *args], kwargs)
        if self._signature.wants_context:
            return self._fn(self._context(job), outcome, *args, **kwargs)
        return self._fn(outcome, *args, **kwargs)

    def _read_item(self, job: Job) -> Any:  # noqa: ANN401 - an item of any type
        return self._signature.decode(job.leased.call.payload)[0][0]

    def _call_batch(self, jobs: list[Job], items: list[Any]) -> Any:  # noqa: ANN401
        if self._middlewares.installed:
            return self._call_inside(jobs[0], [items], {})
        if self._signature.wants_context:
            return self._fn(self._context(jobs[0]), items)
        return self._fn(items)

    def _context(self, job: Job) -> Context | SyncContext:
        on_loop = self._registered.where is Where.LOOP
        return Context(job) if on_loop else SyncContext(job)

    def run_encoded(self, payload: bytes, context: bytes, channel: Channel) -> bytes:
        """Run in a child process: decode, call, encode. An error carries its verdict."""
        from millpond.pool.handler_in_child import run_encoded  # noqa: PLC0415 - children alone

        return run_encoded(
            self._registered, self._hooks, self._middlewares, payload, context, channel
        )


def _ending(stored: bytes) -> Ending | RunEnding:
    """Return how the task or run of a callback ended."""
    try:
        return msgspec.msgpack.decode(stored, type=Ending | RunEnding)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"the outcome stored for a callback: {error}") from error
