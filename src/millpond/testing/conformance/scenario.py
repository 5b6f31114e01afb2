"""What every part of the suite stands on: a fresh store, a lab around it, and a way to run it.

Tests are written as coroutines that are given a lab, and collected as plain functions, so the suite
needs no plugin and no particular event loop: `StoreSuite.run` is the only place that knows how a
coroutine runs.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from millpond.testing.conformance.lab import Lab

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from millpond.store.protocol import Store

P = ParamSpec("P")
T = TypeVar("T")
Suite = TypeVar("Suite", bound="StoreSuite")
Test = TypeVar("Test")


class StoreSuite:
    """The base of every part of the suite: a backend says how to make one of its stores."""

    def __init_subclass__(cls) -> None:
        """Make each coroutine that is a test and takes a lab a scenario."""
        super().__init_subclass__()
        for name, test in list(vars(cls).items()):
            is_test = name.startswith("test") and inspect.iscoroutinefunction(test)
            if is_test and "lab" in inspect.signature(test).parameters:
                setattr(cls, name, scenario(test))

    async def make_store(self) -> Store:
        """Return a store that is open, empty and keeps its whole audit; the suite closes it."""
        message = f"{type(self).__name__} must say how to make a store: define make_store"
        raise NotImplementedError(message)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run one scenario to its end; override it where stores need a loop of their own."""
        return asyncio.run(main)

    async def fresh(self, test: Callable[[Lab], Awaitable[None]]) -> None:
        """Let one scenario happen in a lab around a fresh store, and close the store."""
        store = await self.make_store()
        try:
            await test(await Lab.around(store))
        finally:
            await store.close()


def scenario(
    test: Callable[Concatenate[Suite, Lab, P], Awaitable[None]],
) -> Callable[Concatenate[Suite, P], None]:
    """Make a test of a coroutine that is given a lab around a fresh store."""

    def collected(self: Suite, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.run(self.fresh(lambda lab: test(self, lab, *args, **kwargs)))

    functools.update_wrapper(collected, test)
    # pytest fills parameters by name; the lab is made here and is not one of them.
    answer = inspect.signature(test)
    rest = [each for name, each in answer.parameters.items() if name != "lab"]
    vars(collected)["__signature__"] = answer.replace(parameters=rest)
    return collected


class mark:  # noqa: N801 - reads as pytest's own `mark`, of which it needs nothing registered
    """Which promises of the conformance page a test shows."""

    @staticmethod
    def rows(*ids: str) -> Callable[[Test], Test]:
        """Name the rows a test shows; read from the source, and kept on the test."""

        def name(test: Test) -> Test:
            vars(test)["rows"] = ids
            return test

        return name
