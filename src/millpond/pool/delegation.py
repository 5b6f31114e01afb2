"""Delegation: a class of parts, whose methods have the types and signatures of the parts' methods.

    class Millpond:
        emit = delegated(Events.emit, "_events")        # mp.emit(...) is mp._events.emit(...)

    class SyncMillpond:
        why = on_loop(AllTasks.why, "_tasks")           # the same for threads, over self._bridge

        @signature_of(Pools.pool)                       # the arguments of Pools.pool
        def pool(self, *given: Any, **named: Any) -> SyncPool: ...

A type checker sees the types of the part's method, and `help` shows its signature.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def delegated(
    method: Callable[Concatenate[S, P], R], part: str
) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls `method` of the part in the attribute of that name."""

    @functools.wraps(method)
    def call_part(owner: object, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(getattr(owner, part), *args, **kwargs)

    return call_part


def on_loop(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]], part: str, *, writes: bool = False
) -> Callable[Concatenate[Any, P], R]:
    """Return a method for threads: it calls `method` of a part on the loop, and waits for it.

    One that `writes` raises if a transaction of the thread's own would block it.
    """

    @functools.wraps(method)
    def call_part(owner: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:  # noqa: ANN401
        bridge = owner._bridge  # noqa: SLF001 - of our own classes
        call = bridge.write if writes else bridge.call
        result: R = call(method, getattr(owner, part), *args, **kwargs)
        return result

    return call_part


def signature_of(
    other: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Give a method the arguments of another; its return type is its own."""

    def decorate(method: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        returns = inspect.signature(method).return_annotation
        signature = inspect.signature(other).replace(return_annotation=returns)
        method.__signature__ = signature  # type: ignore[attr-defined]
        return method

    return decorate
