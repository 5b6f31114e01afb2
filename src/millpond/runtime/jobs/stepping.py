"""Stepping: drive the coroutine of a handler step by step, each step in the job's own context."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from contextvars import Context
from inspect import iscoroutine
from types import CoroutineType, coroutine
from typing import Any, Protocol

from millpond.runtime.fork_safety import must_not_be_child


class Waker(Protocol):
    """The slots of a worker, as a handler that begins to wait needs them."""

    @property
    def process(self) -> int:
        """The process that the worker belongs to."""

    def job_waits(self) -> None:
        """Let ready jobs begin, and what has ended be settled, while a job waits."""


def as_coroutine(started: Any) -> Coroutine[Any, Any, Any]:  # noqa: ANN401 - what a handler gave
    """Return a coroutine for what the call of a handler returned."""
    # By type first: nearly all of them are plain coroutines, and asking an ABC takes far longer.
    if type(started) is CoroutineType or iscoroutine(started):
        return started
    return _awaited(started)


async def _awaited(started: Any) -> Any:  # noqa: ANN401 - any awaitable, or a plain value
    return await started if isinstance(started, Awaitable) else started


@coroutine
def stepped(
    coro: Coroutine[Any, Any, Any], context: Context, slots: Waker | None = None
) -> Generator[Any, Any, Any]:
    """Drive a coroutine to its end, each step inside `context`.

    A handler that is about to wait lets the next job begin in another slot: one slot runs jobs that
    never wait one after another, without a round of the loop for each.
    """
    run = context.run
    try:
        yielded = run(coro.send, None)
    except StopIteration as stop:
        return stop.value
    if slots is not None:
        slots.job_waits()
    while True:
        if slots is not None:
            must_not_be_child(slots.process)
        try:
            given = yield yielded
        except GeneratorExit:
            run(coro.close)
            raise
        except BaseException as error:  # noqa: BLE001 - it belongs to the handler
            thrown: BaseException | None = error
        else:
            thrown = None
        try:
            yielded = run(coro.send, given) if thrown is None else run(coro.throw, thrown)
        except StopIteration as stop:
            return stop.value
