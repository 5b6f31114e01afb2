"""Waiting for many handles: all waits begin together, so that their results are read together."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.pool.internals import internals_of
from millpond.runtime.jobs.job import current_job

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

    from millpond.pool.handle import Handle
    from millpond.runtime.waiting.task_result import TaskResult

T = TypeVar("T")
Wait = tuple["Handle[T]", "asyncio.Future[TaskResult] | None"]


async def wait_for_all(handles: Sequence[Handle[Any]]) -> None:
    """Wait until every task has ended, whatever way."""
    if current_job.get() is not None:
        # Each wait of a handler is checked for a deadlock.
        for handle in handles:
            await handle.wait()
        return
    with _begun(handles) as waits:
        for handle, ended in waits:
            if ended is not None:
                internals_of(handle).ended_with(await ended)


async def as_completed(handles: Sequence[Handle[T]]) -> AsyncGenerator[Handle[T], None]:
    """Yield each handle when its task has ended, in the order in which they end."""
    if current_job.get() is not None:
        async for handle in _one_by_one(handles):
            yield handle
        return
    arrived: deque[Wait[T]] = deque()
    more = asyncio.Event()
    with _begun(handles) as waits:
        for wait in waits:
            if wait[1] is None:
                arrived.append(wait)
            else:
                wait[1].add_done_callback(partial(_arrive, arrived, more, wait))
        for _ in waits:
            if not arrived:
                more.clear()
                await more.wait()
            handle, ended = arrived.popleft()
            if ended is not None:
                internals_of(handle).ended_with(ended.result())
            yield handle


def _arrive(arrived: deque[Wait[T]], more: asyncio.Event, wait: Wait[T], _: object) -> None:
    arrived.append(wait)
    more.set()


@contextmanager
def _begun(handles: Sequence[Handle[T]]) -> Iterator[list[Wait[T]]]:
    """Begin the wait for each handle whose end is not known yet; end all of them on the way out."""
    waits: list[Wait[T]] = []
    with ExitStack() as watched:
        _watch_pools(handles, watched)
        try:
            for handle in handles:
                waits.append((handle, internals_of(handle).begin_wait()))  # noqa: PERF401 - none is left begun
            yield waits
        finally:
            for handle, ended in waits:
                if ended is not None:
                    internals_of(handle).end_wait(ended)


def _watch_pools(handles: Sequence[Handle[Any]], until: ExitStack) -> None:
    """Warn about each pool of the handles that no worker serves, once."""
    for handle in {handle.pool_id: handle for handle in handles}.values():
        timer = internals_of(handle).watch_pool()
        if timer is not None:
            until.callback(timer.cancel)


async def _one_by_one(handles: Sequence[Handle[T]]) -> AsyncIterator[Handle[T]]:
    """Yield handles as they end, each awaited by a task that knows whose handler waits."""
    ended: asyncio.Queue[asyncio.Task[Handle[T]]] = asyncio.Queue()
    watchers = [asyncio.create_task(handle.wait()) for handle in handles]
    for watcher in watchers:
        watcher.add_done_callback(ended.put_nowait)
    try:
        for _ in watchers:
            yield (await ended.get()).result()
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
