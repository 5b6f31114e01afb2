"""The session of this process: other processes see by it that this one is alive.

A thread keeps the session, and asks for an answer once a second while handlers run. So two things
are known at any time: up to which moment the server surely had the session, and, in the process
that watches, which workers of other processes have none.

How the times fit together: a watching process declares a worker dead when it has seen no session
of it for `GRACE` seconds and the worker has not renewed meanwhile. The session was gone no earlier
than the last question that was answered over it. The worker stops its handlers `STOP_AFTER` seconds
after it sent that question. So its handlers have `GRACE - STOP_AFTER` seconds to end before another
worker can get their tasks.

A new session counts for a worker only once the worker has renewed its lease after the session
began: a watching process that missed the session then sees the renewal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import selectors
import socket
import threading
import time
from math import inf
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.runtime.fleet.dead_workers import Absences

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.runtime.environment import Environment
    from millpond.runtime.jobs.job import WorkerProtocol
    from millpond.store.shared import WorkerSession

log = logging.getLogger("millpond.session")

ASK_EVERY, ASK_IDLE_EVERY = 1.0, 3.0
"""Seconds between two questions of a process that runs handlers or watches, and of an idle one."""

WATCH_EVERY, WATCH_CLOSELY = 0.5, 0.25
"""The same for one that watches and runs handlers, and while another has no session."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds before the session is opened again, doubling."""

READY_WITHIN = 5.0
"""Seconds for which the first worker waits for the session."""

GIVE_UP_AFTER = 2.0
"""Seconds for which closing waits for a question that is on its way."""


class SessionKeeper(Service):
    """Keeps the session of this process, in a thread, from its first worker on."""

    _env: Environment
    _workers: Sequence[WorkerProtocol]
    _leads: Callable[[], bool]
    _renew_all: Callable[[], None]
    _found_dead: Callable[[Sequence[tuple[str, float]]], None]
    answered: float = -inf
    """When the last question was sent that the session answered."""
    _interval: float = ASK_EVERY
    _over: bool = False
    _wake: socket.socket | None = None
    """The end of a pair that wakes the thread."""
    _thread: threading.Thread | None = None
    _ready: asyncio.Future[None] | None = None
    _ended: asyncio.Future[None] | None = None
    _pause: float = FIRST_PAUSE
    _missed: bool = False
    _waits_badly: bool = False
    """Whether the last wait failed, which was logged."""

    def __post_init__(self) -> None:
        make = self._env.shared_store.session
        self._session: WorkerSession | None = None if make is None else make(self._env.owner)
        self.mark = "" if self._session is None else self._session.mark
        self.begun_at = inf
        """When the session began, by the monotonic clock; inf = there is none."""
        self._absences = Absences()

    @property
    def is_open(self) -> bool:
        """Whether the server has the session, as far as known."""
        return self.begun_at < inf

    # On the loop

    async def ready(self) -> None:
        """Start the thread, and wait for the session; without one, leases alone count."""
        if self._session is None:
            return
        if self._thread is None:
            loop = self._env.loop
            self._ready, self._ended = loop.create_future(), loop.create_future()
            self._wake, woken = socket.socketpair()
            name = f"millpond-session-{self._env.owner}"
            self._thread = threading.Thread(
                target=self._main, args=(self._session, woken), name=name, daemon=True
            )
            self._thread.start()
        assert self._ready is not None  # noqa: S101 - made with the thread
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_WITHIN):
                await asyncio.shield(self._ready)

    def mark_of(self) -> str:
        """Return what the name of a worker has that is registered now."""
        return self.mark if self.is_open else ""

    def ask(self) -> None:
        """Ask the session at once."""
        if self._wake is not None:
            with contextlib.suppress(OSError):
                self._wake.send(b"!")

    async def stop(self) -> None:
        """End the session; do not wait longer for a server that does not answer."""
        self._over = True
        self.ask()
        if self._ended is not None and self._thread is not None:
            done, _ = await asyncio.wait((self._ended,), timeout=GIVE_UP_AFTER)
            if done:
                self._thread.join()
        if self._wake is not None:
            self._wake.close()

    # In the thread

    def _main(self, session: WorkerSession, woken: socket.socket) -> None:
        try:
            while not self._over and not self._env.loop.is_closed():
                if self.is_open:
                    self._confirm(session)
                elif not self._open(session):
                    return
                self._post(_resolve, self._ready)
                self._pass_time(session, woken, self._interval if self.is_open else self._pause)
        finally:
            self.begun_at = inf
            session.close()
            woken.close()
            self._post(_resolve, self._ready)
            self._post(_resolve, self._ended)

    def _pass_time(self, session: WorkerSession, woken: socket.socket, seconds: float) -> None:
        """Wait for the next question; without a file descriptor for that, sleep.

        A thread that ended here would stop all handlers of this process for good.
        """
        try:
            self._wait(session, woken, seconds)
        except Exception as error:  # noqa: BLE001 - the next question finds what is wrong
            if not self._waits_badly:
                log.warning(
                    "cannot watch the session of this process (%s); asking at intervals",
                    error,
                    extra=about("session.unwatched", reason=type(error).__name__),
                )
            self._waits_badly = True
            time.sleep(min(seconds, LONGEST_PAUSE))
            return
        self._waits_badly = False

    def _wait(self, session: WorkerSession, woken: socket.socket, seconds: float) -> None:
        """Wait for the next question; a session that the server ends is noticed at once."""
        with selectors.DefaultSelector() as ready:
            ready.register(woken, selectors.EVENT_READ)
            if self.is_open:
                ready.register(session.fileno(), selectors.EVENT_READ)
            for key, _ in ready.select(seconds):
                if key.fileobj is woken:
                    woken.recv(4096)

    def _usual_interval(self, session: WorkerSession) -> float:
        """Return the seconds until the next question, while no other process is missing."""
        if any(worker.jobs for worker in list(self._workers)):
            return WATCH_EVERY if session.watches else ASK_EVERY
        return ASK_EVERY if session.watches else ASK_IDLE_EVERY

    def _open(self, session: WorkerSession) -> bool:
        """Open the session; return whether to go on: behind a pooler there is none."""
        sent = time.monotonic()
        try:
            session.open()
        except Exception as error:  # noqa: BLE001 - the server may come back
            if session.is_impossible(error):
                log.info(
                    "no session for this process (%s): leases alone show whether it is alive",
                    error,
                    extra=about("session.unavailable", reason=type(error).__name__),
                )
                return False
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._log_lost(error)
            return True
        if self._missed:
            log.info("the session of this process is back", extra=about("session.back"))
        self._missed, self._pause = False, FIRST_PAUSE
        self._absences.forget()
        self.answered, self.begun_at = sent, time.monotonic()
        self._post(self._renew_all)
        return True

    def _confirm(self, session: WorkerSession) -> None:
        sent = time.monotonic()
        try:
            missing = session.confirm(watch=self._leads())
        except Exception as error:  # noqa: BLE001 - it is opened again
            self.begun_at = inf
            session.close()
            self._log_lost(error)
            return
        self.answered = sent
        self._interval = self._usual_interval(session)
        dead = self._absences.seen(missing or (), time.monotonic())
        if self._absences:
            self._interval = WATCH_CLOSELY
        if dead:
            self._post(self._found_dead, dead)

    def _log_lost(self, error: Exception) -> None:
        if not self._missed:
            log.info(
                "the session of this process is lost (%s); opening it again",
                error,
                extra=about("session.lost", reason=type(error).__name__),
            )
        self._missed = True

    def _post(self, call: Callable[..., None], *args: object) -> None:
        """Call something on the loop, unless the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._env.loop.call_soon_threadsafe(call, *args)


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
