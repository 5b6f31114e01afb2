"""Reads the results of awaited tasks together: one read for all that were asked for meanwhile.

A task that a worker of this process settles needs no read. A wait asks the store once whether its
task has ended already, and the ends of tasks that other processes settle are read when a hint or a
poll reports them. Thousands of waits that begin together cost a few reads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from millpond.core.service import Service

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from millpond.runtime.environment import Environment

AT_ONCE = 1_000
"""How many results one read fetches at most."""


class ResultReader(Service):
    """Collects the tasks whose results are wanted, and reads them one batch after another."""

    _env: Environment
    _is_awaited: Callable[[int], bool]
    _check: Callable[[Sequence[int]], Awaitable[object]]
    _end_waits: Callable[[int, Exception], None]
    _until_heard: Callable[[], Awaitable[None]]
    _wanted: dict[int, list[asyncio.Future[Any]]] = {}
    """By task: the waits that get the error if the read fails."""
    _reading: asyncio.Task[None] | None = None

    def ask(self, task: int, waiter: asyncio.Future[Any] | None = None) -> None:
        """Read the result of a task soon; a failing read is an error of this waiter.

        Without a waiter the task is known to have ended.
        """
        waiters = self._wanted.get(task)
        if waiters is None:
            waiters = self._wanted[task] = []
        if waiter is not None:
            waiters.append(waiter)
        if self._reading is None:
            self._reading = self._env.spawn(self._read())

    async def _read(self) -> None:
        """Read batches until no result is wanted."""
        try:
            while self._wanted:
                await self._until_heard()
                batch = self._next_batch()
                if batch:
                    await self._read_batch(batch)
        finally:
            self._reading = None

    def _next_batch(self) -> dict[int, list[asyncio.Future[Any]]]:
        """Take the next tasks; those that were settled here meanwhile need no read."""
        wanted, is_awaited = self._wanted, self._is_awaited
        batch = {}
        for task in list(wanted):
            waiters = wanted.pop(task)
            if is_awaited(task):
                batch[task] = waiters
                if len(batch) == AT_ONCE:
                    break
        return batch

    async def _read_batch(self, batch: dict[int, list[asyncio.Future[Any]]]) -> None:
        try:
            await self._check(tuple(batch))
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait
            for task, waiters in batch.items():
                if not waiters:
                    # The task has ended: all who wait for it wait for this read.
                    self._end_waits(task, error)
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_exception(error)


def in_batches(tasks: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield tasks in portions of one read each."""
    for first in range(0, len(tasks), AT_ONCE):
        yield tasks[first : first + AT_ONCE]
