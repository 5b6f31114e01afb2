"""LISTEN: the connection of a process that receives the notifications of other processes.

A thread opens it, since that may take long, and the loop reads from it. When it is lost, the
listener opens another, with growing pauses. Its callers need not know, and it raises nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import weakref
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import ExecStatus

from millpond.core.log_fields import about
from millpond.store.postgres.connect import connect, is_pooled
from millpond.store.postgres.quoting import quoted

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from millpond.store.postgres.connect import Connection
    from millpond.store.postgres.url import Address

log = logging.getLogger("millpond.postgres")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
"""Seconds before the listener connects again, doubling. Half of each pause is random, so that not
all processes connect at once when a server comes back."""


class Listener:
    """A listening connection; only for the loop's thread.

    It calls `heard` with the payloads of notifications. It calls `back` whenever it begins to
    listen (`restarted`), and when it gets the lock of `hold`: it missed earlier notifications.
    """

    def __init__(
        self,
        address: Address,
        channel: str,
        loop: asyncio.AbstractEventLoop,
        *,
        heard: Callable[[list[str]], None],
        back: Callable[..., None],
    ) -> None:
        self._address = address
        self._channel = channel
        self._loop = loop
        self._heard = heard
        self._back = back
        self._connection: Connection | None = None
        self._socket = -1
        """Its file descriptor while the loop watches it."""
        self._timer: asyncio.TimerHandle | None = None
        self._connected_at = 0.0
        self._pause = FIRST_PAUSE
        self._missed = False
        """Whether the failure was logged."""
        self._over = False
        self._wanted: int | None = None
        self._held: int | None = None
        """The advisory lock to hold, and the one that it holds."""
        self._requested: int | None = None
        """The lock that it has asked for, or asked to be rid of."""
        self._settled: asyncio.Future[None] | None = None
        """Set when it holds the lock, or cannot."""
        _LISTENING.add(self)
        self._open()

    @property
    def connected(self) -> bool:
        """Whether the connection listens, as far as known."""
        return self._connection is not None

    def reopen(self) -> None:
        """Listen over a new connection: the old one is silent."""
        if self._connection is not None:
            self._hang_up()
            self._failed(
                psycopg.OperationalError("a notification of this process does not come back")
            )

    def hold(self, lock: int | None) -> asyncio.Future[None] | None:
        """Hold an advisory lock, shared with others, as long as it listens; None = no longer.

        Return a future that is set when it holds the lock, or cannot; None if it does, or listens
        to nothing. When it begins to listen and gets the lock, it calls `back`.
        """
        self._wanted = lock
        try:
            self._request()
        except psycopg.Error as error:
            self._hang_up()
            self._failed(error)
        if lock is not None and self._requested is not None and self._settled is None:
            self._settled = self._loop.create_future()
        return self._settled

    def _settle(self) -> bool:
        """Let those go on who wait for the lock; return whether anyone could."""
        settled, self._settled = self._settled, None
        if settled is not None and not settled.done():
            settled.set_result(None)
        return settled is not None

    def close(self) -> None:
        """Stop listening; safe twice."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._hang_up()

    def _open(self) -> None:
        # A daemon: a server that does not answer must not keep a program from ending.
        threading.Thread(target=self._connect, name="millpond-listener", daemon=True).start()

    def _connect(self) -> None:
        """Connect and listen; in a thread of its own, which then ends."""
        try:
            connection = connect(self._address, name="millpond listener")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            self._post(self._failed, error)
            return
        if self._address.pooler is None and is_pooled(connection):
            connection.close()
            self._post(self._deaf)
            return
        try:
            # It says nothing for hours, and that is no reason to end it.
            connection.execute("SET idle_session_timeout = 0")
            connection.execute(f"LISTEN {quoted(self._channel)}".encode())
        except psycopg.Error as error:
            connection.close()
            self._post(self._failed, error)
            return
        if not self._post(self._connected, connection):
            connection.close()

    def _post(self, callback: Callable[..., None], *arguments: object) -> bool:
        """Call back on the loop; False = the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)
            return True
        return False

    # --- on the loop ------------------------------------------------------------------------------

    def _connected(self, connection: Connection) -> None:
        if self._over:
            connection.close()
            return
        self._socket = connection.fileno()
        try:
            self._loop.add_reader(self._socket, self._readable)
        except NotImplementedError:
            log.warning(
                "this event loop cannot watch the socket of %s; polling every second",
                self._address,
                extra=about("listen.unsupported"),
            )
            connection.close()
            return
        self._connection = connection
        self._connected_at = self._loop.time()
        if self._missed:
            log.info(
                "LISTEN on %s is back",
                self._address,
                extra=about("listen.reconnected"),
            )
        self._missed = False
        self._back(restarted=True)
        self._request()
        # What came together with the answer to LISTEN makes nothing readable any more.
        self._readable()

    def _readable(self) -> None:
        """Read what has arrived."""
        if self._connection is None:
            return
        texts: list[str] = []
        try:
            channel = self._connection.pgconn
            channel.consume_input()
            while (notified := channel.notifies()) is not None:
                texts.append(notified.extra.decode(errors="replace"))
            self._hear_answer()
        except psycopg.Error as error:
            self._hang_up()
            self._failed(error)
        if texts:
            self._heard(texts)

    def _request(self) -> bool:
        """Take the lock that is wanted, or let go of the one that is not; False = all is well."""
        if self._connection is None or self._requested is not None or self._held == self._wanted:
            return False
        lock, word = (self._wanted, b"") if self._held is None else (self._held, b"un")
        self._requested = lock
        statement = b"SELECT pg_catalog.pg_advisory_%block_shared($1)" % word
        channel = self._connection.pgconn
        channel.send_query_params(statement, [str(lock).encode()])
        channel.flush()
        return True

    def _hear_answer(self) -> None:
        """Read whether the lock was taken; the loop waits for more if that is not said yet."""
        if self._connection is None or self._requested is None:
            return
        channel, failed = self._connection.pgconn, False
        while not channel.is_busy():
            result = channel.get_result()
            if result is None:
                lock, self._requested = self._requested, None
                took = self._held is None and not failed
                self._held = lock if took else None
                requested = not failed and self._request()
                if not requested and not self._settle() and took:
                    self._back(restarted=False)
                return
            failed = failed or result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)

    def _hang_up(self) -> None:
        self._held = self._requested = None
        self._settle()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._loop.remove_reader(self._socket)
            connection.close()

    def _failed(self, error: Exception) -> None:
        """Retry with a growing pause; a connection that lasted resets the pause."""
        if self._over:
            return
        if not self._missed:
            reason = " ".join(str(error).split())
            # No warning: the store itself logs that the server is unreachable.
            log.info(
                "LISTEN on %s failed (%s); retrying, polling every second meanwhile",
                self._address,
                reason,
                extra=about("listen.failed", reason=reason),
            )
        self._missed = True
        if self._connected_at and self._loop.time() - self._connected_at > LONGEST_PAUSE:
            self._pause = FIRST_PAUSE
        self._connected_at = 0.0
        delay = self._pause * (0.5 + random.random() / 2)  # noqa: S311 - no secret
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._timer = self._loop.call_later(delay, self._open)

    def _deaf(self) -> None:
        """Do not listen: a transaction pooler accepts LISTEN and never delivers."""
        log.warning(
            "LISTEN is not available through the pooler at %s; polling every second. Put the "
            "server's own address into the URL as listen=..., or listen=0 to keep polling without "
            "this warning, or pooler=0 if the pooler gives each client a session of its own",
            self._address,
            extra=about("listen.pooler"),
        )

    def _let_go_after_fork(self) -> None:
        """Leave the connection to the parent: a child must not keep it open."""
        connection, self._connection = self._connection, None
        self._over = True
        if connection is not None:
            # Not closed in good order, which would end it for the parent, too.
            os.close(self._socket)
            _LEFT_TO_PARENT.append(connection)


_LISTENING: weakref.WeakSet[Listener] = weakref.WeakSet()
_LEFT_TO_PARENT: list[Connection] = []


def _let_go_after_fork() -> None:
    for listener in list(_LISTENING):
        listener._let_go_after_fork()  # noqa: SLF001 - our own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_after_fork)
