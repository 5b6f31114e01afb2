"""Eager mode: what code submits through `mp.sync` has run when the submit returns.

    with eager(mp) as bench:
        response = app.test_client().post("/signup")    # a view that calls send.sync.submit(...)
        assert mailbox == ["welcome"]

It is a lab: nothing leaves the process, time is virtual, and `bench.advance(60)` runs what is due a
minute later, such as a retry. It serves calls of the thread that made it, which are those of the
test clients of Flask and Django.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from millpond.errors import NotSupported
from millpond.pool.internals import internals_of
from millpond.pool.loop_bridge import LoopBridge
from millpond.testing.lab import Lab, lab

if TYPE_CHECKING:
    from datetime import datetime

    from millpond.pool.loop_bridge import Feed
    from millpond.pool.millpond import Millpond
    from millpond.runtime.runtime import Runtime


@contextlib.contextmanager
def eager(
    mp: Millpond,
    *,
    seed: int | None = None,
    start: float | datetime = 0.0,
    durable: bool = False,
    patience: float = 10.0,
) -> Iterator[Lab]:
    """Open a Millpond in a lab, and let `mp.sync` work in this thread; options as for `lab`."""
    made = lab(mp, seed=seed, start=start, durable=durable, patience=patience)
    with made as bench, _served_by(bench):
        yield bench


@contextlib.contextmanager
def _served_by(bench: Lab) -> Iterator[None]:
    """Have the bridge of the Millpond run the lab's loop, where this thread calls it."""
    calls = _Calls(bench)
    with contextlib.ExitStack() as stack:
        for name in ("call", "within", "fed", "iterate"):
            stack.enter_context(mock.patch.object(LoopBridge, name, calls.method(name)))
        stack.enter_context(mock.patch.object(LoopBridge, "runtime", calls.runtime()))
        yield


class _Calls:
    """The calls of a bridge, on the lab's loop and in the lab's thread."""

    def __init__(self, bench: Lab) -> None:
        self._bench = bench
        self._owner = internals_of(bench.mp).owner
        self._thread = threading.get_ident()

    def _is_ours(self, bridge: LoopBridge) -> bool:
        """Return whether this thread calls the Millpond under test, and the loop does not run."""
        mine = bridge is self._owner.bridge and threading.get_ident() == self._thread
        return mine and self._owner.is_open and not self._owner.runtime.loop.is_running()

    def method(self, name: str) -> Callable[..., Any]:
        """Return a method of the bridge that runs the loop where it can."""
        original, ours = getattr(LoopBridge, name), getattr(self, f"_{name}")

        def call(bridge: LoopBridge, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            return (ours if self._is_ours(bridge) else original.__get__(bridge))(*args, **kwargs)

        return call

    def runtime(self) -> property:
        """Return the property that a call in this thread would be refused by."""
        original = LoopBridge.runtime

        def runtime(bridge: LoopBridge) -> Runtime:
            if self._is_ours(bridge):
                return self._owner.runtime
            found: Runtime = original.__get__(bridge)
            return found

        return property(runtime)

    def _call(self, fn: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        answer = self._bench.sync(fn(*args, **kwargs))
        self._bench.run_until_idle()
        return answer

    def _within(
        self,
        _seconds: float | None,
        fn: Callable[..., Coroutine[Any, Any, Any]],
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        return self._call(fn, *args, **kwargs)

    def _fed(self, _feed: Feed[Any], _fn: Any) -> Any:  # noqa: ANN401
        raise NotSupported(
            "eager mode maps over a list, not over an iterator: pass list(items)", feature="eager"
        )

    def _iterate(
        self, make: Callable[[], AsyncIterator[Any]], feed: Feed[Any] | None = None
    ) -> Generator[Any, None, None]:
        if feed is not None:
            self._fed(feed, None)

        async def collect() -> list[Any]:
            return [item async for item in make()]

        yield from self._call(collect)
