"""The environment of one open Millpond: its store, clocks, loop and identity, for all services."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from millpond.core.log_fields import about
from millpond.errors import NotOpen
from millpond.runtime.fork_safety import used_by_millpond
from millpond.runtime.identity import Identity
from millpond.store.clock import kernel_times, steady
from millpond.store.shared import SharedMembers

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine

    from millpond.store.protocol import Store
    from millpond.store.view import View

log = logging.getLogger("millpond.runtime")


def wall_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the wall clock that goes with a loop: a virtual loop has its own."""
    return getattr(loop, "wall_time", time.time)


def steady_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return a monotonic clock; any thread may read it."""
    return loop.time if hasattr(loop, "wall_time") else time.monotonic


def lasting_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return a monotonic clock that goes on while the machine is suspended."""
    return loop.time if hasattr(loop, "wall_time") else steady


def evidence_of(loop: asyncio.AbstractEventLoop) -> Callable[[], list[float]] | None:
    """Return what shows the time if the wall clock is in doubt; None in virtual time."""
    return None if hasattr(loop, "wall_time") else kernel_times


class Environment:
    """What every service of one open Millpond shares. It has no service in it."""

    def __init__(
        self,
        store: Store,
        *,
        shared: bool,
        identity: Identity | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.store = store
        self.view: View = store.view
        self.shared = shared
        """Whether other processes may use the store: then silence here proves nothing."""
        self.shared_store = SharedMembers(store, shared=shared)
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.process = os.getpid()
        used_by_millpond(self.loop)
        self.context = contextvars.copy_context()
        self.clock = clock or wall_clock(self.loop)
        """The wall clock: the store's moments are in its time."""
        self.steady = steady_clock(self.loop)
        """A monotonic clock: for how long something took, or may take."""
        identity = identity or Identity()
        self.random = identity.dice.random
        self.owner = identity.owner
        self.new_id = identity.new_id
        self.closed = False
        self.inline = False
        """Whether the submit under way also runs the turns that it makes necessary."""
        self.background: dict[asyncio.Task[Any], None] = {}
        """Tasks that run beside everything else, until they end."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something in the background, in the context of the Millpond, and log its error."""
        task = self.new_task(work)
        self.background[task] = None
        task.add_done_callback(self._background_ended)
        return task

    def new_task(
        self, work: Coroutine[Any, Any, Any], *, name: str | None = None
    ) -> asyncio.Task[Any]:
        """Return a task that runs in a copy of the Millpond's context."""
        return self.loop.create_task(work, name=name, context=self.context.copy())

    def _background_ended(self, task: asyncio.Task[Any]) -> None:
        del self.background[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning(
                "background task failed: %s",
                error,
                extra=about("background.failed", reason=str(error)),
            )

    async def cancel_background(self, but: Container[asyncio.Task[Any]]) -> None:
        """Cancel the background tasks, but for some, and wait for their end."""
        tasks = [task for task in self.background if task not in but]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def must_be_open(self) -> None:
        """Raise NotOpen if the Millpond is closed."""
        if self.closed:
            raise NotOpen("the Millpond was closed while this waited")
