"""Parts: a class made of smaller ones says the arguments of their methods only once.

    class Millpond:
        emit = of_part(Channels.emit, "_channels")      # mp.emit(...) is mp._channels.emit(...)

    class SyncPools:
        @like(Pools.pool)                               # with the very arguments of the other
        def pool(self, *given: Any, **named: Any) -> SyncPool: ...

Both keep the types that a checker sees and the signature that `help` shows.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def of_part(method: Callable[Concatenate[S, P], R], part: str) -> Callable[Concatenate[Any, P], R]:
    """Return the method of a part as one of the whole, which has that part as an attribute."""

    @functools.wraps(method)
    def passed_on(whole: object, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(getattr(whole, part), *args, **kwargs)

    return passed_on


def like(
    other: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Give a method the arguments of another; what it returns it says itself."""

    def given(method: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        returns = inspect.signature(method).return_annotation
        signature = inspect.signature(other).replace(return_annotation=returns)
        method.__signature__ = signature  # type: ignore[attr-defined]
        return method

    return given


def on_loop(one: Any) -> Any:  # noqa: ANN401 - of any kind
    """Return what a thread holds (a pool, a budget) as the loop has it; anything else as it is."""
    return getattr(one, "twin", one)
