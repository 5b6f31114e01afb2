"""Threads beside the loop: for slow work, and for what ends a store."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run a function in a daemon thread; neither loop nor process waits for it at their end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def deliver(answer: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(cast("T", answer))
        else:
            done.set_exception(error)

    def run() -> None:
        answer: T | None = None
        error: BaseException | None = None
        try:
            answer = work()
        except BaseException as raised:  # noqa: BLE001 - raised where it is awaited
            error = raised
        # The loop may be closed by now: then no task awaits it.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, answer, error)

    threading.Thread(target=run, name="millpond-aside", daemon=True).start()
    return await done


async def off_the_loop(threads: ThreadPoolExecutor | None, fn: Callable[[], object]) -> None:
    """Call a function in another thread; here where the interpreter ends and allows none."""
    try:
        waiting = asyncio.get_running_loop().run_in_executor(threads, fn)
    except RuntimeError:
        fn()
    else:
        await waiting
