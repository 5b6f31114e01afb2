"""Process life: one Millpond is opened and closed from any task, thread or forked child.

    async with mp:      one block opens it; a second one at the same time raises AlreadyOpen
    await mp.open()     opens it unless it is open; nothing counts the calls
    await mp.close()    closes it, whatever opened it; nothing happens if it is closed
    mp.sync.open()      the same from a thread, on a loop in a thread of its own
    mp.sync.close()     the same from a thread, whichever loop it is open on

A forked child never uses what its parent opened. `open()` there opens the child's own, and every
other call raises NotOpen. At the end of the process `mp.sync.open()` closes what it opened.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakSet

from millpond.core.log_fields import about
from millpond.errors import AlreadyOpen, NotOpen
from millpond.pool.loop_bridge import OwnedLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from millpond.pool.services import Services

log = logging.getLogger("millpond")

EXIT_PATIENCE = 10.0
"""Seconds that the end of a process waits for a Millpond to close."""


class _Opening(Future[None]):
    """Done when a task has opened the Millpond, or could not."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()
        # A task that is cancelled while it waits must not cancel the future for all.
        self.set_running_or_notify_cancel()


class ProcessLife:
    """Whether one Millpond is open, and on which loop; safe with threads and forks."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._owner = services.owner
        self._reset_locks()
        self._closing = 0
        self._owned: OwnedLoop[None] | None = None
        self._closes_at_exit = False
        _Lives.all.add(self)

    def _reset_locks(self) -> None:
        self._guard = threading.Lock()
        """Held for a moment, to read and set the fields here."""
        self._in_thread = threading.Lock()
        """Held by a thread while it opens or closes: the others wait for it."""
        self._opening: _Opening | None = None

    # On an event loop

    async def enter(self) -> None:
        """Open; AlreadyOpen if it is open or a task or thread is opening it."""
        self._owner.forget_parent()
        self._owner.must_be_closed()
        if self._begin_opening() is not None:
            raise AlreadyOpen("this Millpond is being opened already; use it, or make another one")
        try:
            await self._services.open()
        finally:
            self._end_opening()

    async def open(self) -> None:
        """Open unless it is open; wait for another task or thread that opens or closes it."""
        while not await self._is_open_here():
            other = self._begin_opening()
            if other is not None:
                await asyncio.wrap_future(other)
                continue
            try:
                if not self._owner.is_open:
                    await self._services.open()
            finally:
                self._end_opening()

    async def close(self, *, warn: bool = True) -> None:
        """Close it, if it is open; on the loop of another thread if it is open there.

        `warn` logs how many tasks a store in memory loses.
        """
        if not self._owner.is_open:
            return
        if self._owner.runtime.loop is not asyncio.get_running_loop():
            await asyncio.to_thread(self.close_in_thread)
            return
        self._closing += 1
        try:
            await self._services.close(warn=warn)
        finally:
            self._closing -= 1

    async def _is_open_here(self) -> bool:
        """Return whether it is open on this loop; AlreadyOpen if on another one."""
        self._owner.forget_parent()
        if not self._owner.is_open:
            return False
        if self._closes():
            await self.close()
            return False
        loop = self._owner.runtime.loop
        if loop is asyncio.get_running_loop():
            return True
        raise AlreadyOpen(_LOOP_OVER if loop.is_closed() else _OTHER_LOOP)

    def _closes(self) -> bool:
        return self._closing > 0 or self._owner.runtime.closed

    def _begin_opening(self) -> _Opening | None:
        """Begin to open; return the future of another that does so already."""
        with self._guard:
            if self._opening is not None:
                return self._opening
            self._opening = _Opening()
            return None

    def _end_opening(self) -> None:
        with self._guard:
            opening, self._opening = self._opening, None
        if opening is not None:
            opening.set_result(None)

    # From threads

    def enter_in_thread(self) -> None:
        """Open on a loop of its own; AlreadyOpen if it is open or being opened."""
        owned = OwnedLoop(self._entered)
        with self._guard:
            if self._owned is not None:
                raise AlreadyOpen("this Millpond is open already; use it, or make another one")
            self._owned = owned
        try:
            owned.__enter__()
        except BaseException:
            self._owned = None
            raise

    def leave_in_thread(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """Close what `enter_in_thread` opened, if it is still open."""
        owned = self._owned
        if owned is None:
            return
        try:
            owned.__exit__(kind, error, trace)
        finally:
            if self._owned is owned:
                self._owned = None

    def open_in_thread(self) -> None:
        """Open on a loop of its own, unless it is open on any loop of this process."""
        self._must_not_be_stranded()
        if self._is_usable():
            return
        with self._in_thread:
            while not self._is_usable():
                try:
                    self.enter_in_thread()
                except AlreadyOpen:
                    if not self._wait_for_other():
                        raise
                else:
                    self._close_at_exit()

    def close_in_thread(self) -> None:
        """Close it, if it is open, on whichever loop that is; wait for the end."""
        with self._in_thread:
            if not self._owner.is_open:
                return
            self._must_not_be_stranded()
            with contextlib.suppress(NotOpen):  # it closed in the meantime
                self._owner.bridge.check_thread()
                if self._owned is not None:
                    self.leave_in_thread()
                else:
                    self._owner.bridge.call(self.close)

    def _must_not_be_stranded(self) -> None:
        """Raise AlreadyOpen if it was left open on a loop that has ended: nothing answers there."""
        if self._owner.is_open and self._owner.runtime.loop.is_closed():
            raise AlreadyOpen(_LOOP_OVER)

    def _is_usable(self) -> bool:
        """Return whether threads can use it: open in this process, and not closing."""
        return self._owner.is_open and self._opening is None and not self._closes()

    def _wait_for_other(self) -> bool:
        """Wait for the task or thread that opens or closes it; return whether there is one."""
        opening = self._opening
        if opening is not None:
            if opening.thread == threading.get_ident():
                raise RuntimeError(
                    "a task of this very thread is opening the Millpond, and mp.sync.open() would "
                    "wait for it without end: use `await mp.open()` here"
                )
            opening.result()
        elif self._owner.is_open and self._closes():
            with contextlib.suppress(NotOpen):
                self._owner.bridge.call(self.close)
        else:
            # If it is closed again by now, the caller tries once more.
            return not self._owner.is_open or self._is_usable()
        return True

    @contextlib.asynccontextmanager
    async def _entered(self) -> AsyncIterator[None]:
        await self.enter()
        try:
            yield
        finally:
            await self.close()

    # The end of the process

    def _close_at_exit(self) -> None:
        if not self._closes_at_exit:
            self._closes_at_exit = True
            _Lives.close_at_exit()

    def at_exit(self) -> None:
        """Close what `open_in_thread` opened and this process did not close."""
        owned = self._owned
        if owned is None or not self._closes_at_exit:
            return
        try:
            owned.end(EXIT_PATIENCE)
        except Exception as error:  # noqa: BLE001 - the process ends, and with it what failed
            log.warning(
                "could not close the Millpond at the end of the process: %s",
                str(error) or type(error).__name__,
                extra=about("millpond.not_closed_at_exit", reason=str(error)),
            )

    def after_fork(self) -> None:
        """Forget, in the child, the parent's locks: a thread of the parent may have held one."""
        self._reset_locks()
        self._closing = 0
        self._owner.opening = False
        if self._owned is not None:
            _Lives.of_parent.append(self._owned)
            self._owned = None


_OTHER_LOOP = (
    "this Millpond is open on the event loop of another thread: use it there, or call mp.sync from "
    "here; `await mp.close()` closes it, and you can open it here then"
)
_LOOP_OVER = (
    "this Millpond is still open on an event loop that has ended: end that loop with `await "
    "mp.close()`, or use `async with mp:` there; make another Millpond for this loop"
)


class _Lives:
    """The Millponds of this process, for the hooks of fork and exit."""

    all: ClassVar[WeakSet[ProcessLife]] = WeakSet()
    of_parent: ClassVar[list[object]] = []
    """Kept in a forked child, so that nothing of the parent's is closed there."""
    closed_at_exit = False

    @classmethod
    def close_at_exit(cls) -> None:
        """Have the end of this process close what `mp.sync.open()` opened."""
        if not cls.closed_at_exit:
            cls.closed_at_exit = True
            atexit.register(_at_exit)
            early = getattr(threading, "_register_atexit", None)
            if early is not None:
                early(_when_main_ends)


def _when_main_ends() -> None:
    """Close before the interpreter ends its thread pools, unless threads may still use it."""
    pooled = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", {})
    main = threading.main_thread()
    if all(one is main or one.daemon or one in pooled for one in threading.enumerate()):
        _at_exit()


def _at_exit() -> None:
    for life in list(_Lives.all):
        life.at_exit()


def _after_fork() -> None:
    for life in list(_Lives.all):
        life.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
