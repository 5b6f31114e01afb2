"""The writer of a process: a thread, and the event loop where one call is all there is to do.

A thread costs two changes of hands for each answer, which is as much as the server takes for a
plain submit. So a call (see `errand`) that finds nobody before it is sent from the event loop
itself, and the loop hears its answer: a flight. One connection, and one at a time uses it, the loop
or the thread, so the order of jobs is as it was; what comes while a flight is under way gathers.

The loop never waits: a connection that must be opened, an error, a large call and whatever takes
longer than a moment are left to the thread, which finishes what the loop has begun.
"""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from millpond.core.log_fields import about
from millpond.store.postgres.server_call import ServerCall
from millpond.store.sql.unit_of_work import SqlTables
from millpond.store.sql.writer import WriteJob, Writer, answer_caller

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from millpond.store.postgres.pending_call import PendingServerCall
    from millpond.store.postgres.pipeline import PostgresConnection, Row
    from millpond.store.postgres.server_call import ServerCallResult
    from millpond.store.postgres.transactions import PostgresTransactor

log = logging.getLogger("millpond.postgres")

_A_MOMENT = 0.5
"""Seconds after which a flight is left to the thread, which waits as long as it may take."""

_LONG = 0.1
"""Seconds for which a message to other processes waits for a loop that is busy elsewhere."""

_Jobs: TypeAlias = "list[WriteJob[SqlTables]]"


class PendingCall:
    """A call that the loop sees to."""

    __slots__ = ("call", "calling", "error", "flying", "jobs", "left", "loop", "since", "wanted")

    def __init__(self, jobs: _Jobs, loop: asyncio.AbstractEventLoop) -> None:
        self.jobs = jobs
        self.loop = loop
        self.since = time.monotonic()
        self.calling: ServerCallResult | None = None
        self.call: PendingServerCall | None = None
        self.error: BaseException | None = None
        self.flying = False
        """It was sent, and whoever hears the answer may take it in."""
        self.left = False
        """It is left to the thread."""
        self.wanted = False
        """Somebody waits for its end who does not live on this loop."""

    @property
    def is_sent(self) -> bool:
        """Whether there is only the answer to wait for."""
        return self.call is not None and self.call.is_sent

    @property
    def keeps_waiting(self) -> bool:
        """Whether what is to be told to others has waited long for somebody to hear it."""
        return self.flying and time.monotonic() - self.since >= _LONG


class SocketReader:
    """What an event loop hears a connection by.

    A number of its own for the socket: the thread may close the connection at any moment, and the
    loop must not take another one of the same number for it.
    """

    __slots__ = ("connection", "loop", "number")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: PostgresConnection,
        heard: Callable[[SocketReader], None],
    ) -> None:
        self.loop = loop
        self.connection = connection
        self.number = os.dup(connection.socket)
        try:
            loop.add_reader(self.number, heard, self)
        except BaseException:
            os.close(self.number)
            raise

    @property
    def hears(self) -> bool:
        """Whether it is not closed."""
        return self.number >= 0

    def close(self) -> None:
        """Hear no more; safe twice, and on the loop only."""
        number, self.number = self.number, -1
        if number >= 0:
            if not self.loop.is_closed():
                self.loop.remove_reader(number)
            os.close(number)

    def close_from_afar(self) -> None:
        """Hear no more; from any thread."""
        try:
            self.loop.call_soon_threadsafe(self.close)
        except RuntimeError:  # it is closed, and hears nothing anyway
            self.close()


class PostgresWriter(Writer[SqlTables]):
    """Does calls on the loop, everything else in its thread.

    `announce` is `committed` for the loop: it may also answer with a call that tells the others.
    """

    _transactor: PostgresTransactor[SqlTables]

    def __init__(
        self,
        transactor: PostgresTransactor[SqlTables],
        *,
        committed: Callable[[Sequence[Any]], float | None],
        announce: Callable[[Sequence[Any]], ServerCallResult | float | None],
    ) -> None:
        self._announce = announce
        self._flight: PendingCall | None = None
        self._at_work = True
        """Whether the thread has the connection."""
        self._resting = False
        """Whether the thread waits without an end."""
        self._ear: SocketReader | None = None
        self._deaf = False
        """Whether there are loops here that hear no sockets."""
        self._timer: asyncio.TimerHandle | None = None
        self._timed: asyncio.AbstractEventLoop | None = None
        super().__init__(transactor, committed=committed)

    def _taken_in(self, job: WriteJob[SqlTables]) -> Callable[[], None] | None:
        if self._at_work:
            return None  # it looks again before it rests
        flight = self._flight
        if flight is None:
            following = self._next_flight(job.loop)
            if following is not None:
                return partial(self._take_off, following)
            self._news.notify()
        elif job.loop is not flight.loop:
            # Whoever should hear the flight's answer may be waiting for this.
            flight.wanted = True
            self._news.notify()
        return None

    # --- on the loop ------------------------------------------------------------------------------

    def _next_flight(self, loop: asyncio.AbstractEventLoop | None) -> PendingCall | None:
        """Return what the loop may do next of what stands in line; under the lock."""
        first = self._jobs[0]
        if (
            self._deaf
            or self._closing
            or loop is None
            or first.loop is not loop
            or not isinstance(first.alone, ServerCall)
        ):
            return None
        return self._new_flight(self._first_apart(), loop)

    def _new_flight(self, jobs: _Jobs, loop: asyncio.AbstractEventLoop) -> PendingCall:
        flight = self._flight = PendingCall(jobs, loop)
        flight.wanted = any(job.loop is not loop for job in self._jobs)
        return flight

    def _take_off(self, flight: PendingCall) -> None:
        """Send a call; leave it to the thread if that cannot be done at once."""
        self._send(flight)
        flying = flight.is_sent and self._hears(flight.loop)
        self._sent(flight, flying=flying)
        if flying and self._timed is not flight.loop:
            self._look_later(flight.loop)

    def _send(self, flight: PendingCall) -> None:
        try:
            if flight.calling is None:
                errand = flight.jobs[0].alone
                assert isinstance(errand, ServerCall)  # noqa: S101 - that is why it is one
                flight.calling = errand.prepare([job.told for job in flight.jobs])
            if not flight.calling.is_large:
                flight.call = self._transactor.start(
                    flight.calling.statement, flight.calling.arguments
                )
        except BaseException as error:  # noqa: BLE001 - the thread raises it again
            flight.error = error

    def _sent(self, flight: PendingCall, *, flying: bool) -> None:
        """Let whoever hears its answer take it in, or leave it to the thread."""
        with self._news:
            flight.flying, flight.left = flying, not flying
            if self._must_take_over(flight):
                self._news.notify()

    def _hears(self, loop: asyncio.AbstractEventLoop) -> bool:
        """See to it that the loop hears the connection; False if it cannot."""
        ear, connection = self._ear, self._transactor.connection
        if ear is not None and ear.loop is loop and ear.connection is connection and ear.hears:
            return True
        if ear is not None:
            ear.close_from_afar()
        try:
            self._ear = SocketReader(loop, connection, self._heard)
        except (NotImplementedError, OSError, RuntimeError) as error:
            log.debug(
                "the event loop cannot watch the socket of %s: %r",
                self._where,
                error,
                extra=about("socket.unwatched", reason=repr(error)),
            )
            self._ear, self._deaf = None, isinstance(error, NotImplementedError)
            return False
        return True

    def _lend_ear(self, flight: PendingCall) -> None:
        """Hear what the thread has sent, unless it has heard it itself meanwhile."""
        with self._news:
            if self._flight is not flight or not flight.flying:
                return
            if not self._hears(flight.loop):
                flight.flying, flight.left = False, True
                self._news.notify()
                return
        if self._timed is not flight.loop:
            self._look_later(flight.loop)

    def _heard(self, ear: SocketReader) -> None:
        """Take in what has arrived."""
        with self._news:
            flight = self._flight
            mine = flight is not None and flight.flying and ear is self._ear
            if flight is None or not mine:
                ear.close()  # it is the thread that is spoken to, or the server says goodbye
                return
            flight.flying = False
        call = flight.call
        assert call is not None  # noqa: S101 - it flew
        ended: tuple[str, Row | None] | None = None
        try:
            ended = call.proceed()
        except BaseException as error:
            flight.error = error
            self._sent(flight, flying=False)  # the thread sees to it
            if not isinstance(error, Exception):
                raise
            return
        if ended is None:
            self._sent(flight, flying=True)
        else:
            self._land(flight, ended)

    def _land(self, flight: PendingCall, ended: tuple[str, Row | None]) -> None:
        """Give the answers, tell the others, and go on with what stands in line."""
        status, row = ended
        self._give_answers(flight, row if status == "COMMIT" else None)
        answer_caller([job for job in flight.jobs if job.loop is flight.loop])
        self._answer([job for job in flight.jobs if job.loop is not flight.loop])
        told: ServerCallResult | float | None = None
        try:
            told = self._announce([job.answer for job in flight.jobs if job.error is None])
        except Exception:
            log.exception(
                "a hook after the commit to %s failed; the commit is stored",
                self._where,
                extra=about("commit.hook_failed"),
            )
        following: PendingCall | None = None
        with self._news:
            self._flight = None
            self._hook_again = told if isinstance(told, float) else None
            if told is not None and not isinstance(told, float):
                following = self._new_flight([], flight.loop)
                following.calling = told
            elif self._jobs:
                following = self._next_flight(flight.loop)
            if following is None and (
                self._jobs or self._closing or (self._hook_again is not None and self._resting)
            ):
                self._news.notify()
        if following is not None:
            self._take_off(following)

    def _give_answers(self, flight: PendingCall, row: Row | None) -> None:
        assert flight.calling is not None  # noqa: S101 - it was called
        try:
            for job, answer in zip(flight.jobs, flight.calling.answers(row), strict=True):
                job.answer = answer
        except BaseException as error:  # noqa: BLE001 - those who asked are told
            self._failed(flight.jobs, error)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None and self._timed is not None and not self._timed.is_closed():
            self._timed.call_soon_threadsafe(self._timer.cancel)
        self._timed = loop
        self._timer = loop.call_later(_A_MOMENT, self._look_after, loop)

    def _look_after(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave a flight that takes long to the thread."""
        self._timer = self._timed = None
        with self._news:
            flight = self._flight
            if flight is None or flight.loop is not loop:
                return
            if flight.flying and time.monotonic() - flight.since >= _A_MOMENT:
                flight.flying, flight.left = False, True
                self._news.notify()
                return
        self._look_later(loop)

    # --- the thread -------------------------------------------------------------------------------

    def _wait(self) -> bool:
        """Wait for something to do; False = there will be no more."""
        while True:
            with self._news:
                self._at_work = False
                if self._closing and not (self._flight or self._jobs or self._last_words):
                    return False
                duty = self._duty(woken=self._has_duty() or self._rest())
                if duty is None and self._at_work:
                    return True
            if duty is not None:
                duty()

    def _has_duty(self) -> bool:
        return bool(self._jobs) if self._flight is None else self._must_take_over(self._flight)

    def _rest(self) -> bool:
        """Wait to be woken; False = it is time to tell the others something."""
        self._resting = self._hook_again is None
        woken = self._news.wait(self._hook_again)
        self._resting = False
        return woken

    def _duty(self, *, woken: bool) -> Callable[[], None] | None:
        """Return what to do besides jobs; under the lock."""
        flight = self._flight
        if flight is not None:
            if self._must_take_over(flight) or (not woken and flight.keeps_waiting):
                flight.flying, self._flight, self._at_work = False, None, True
                return partial(self._finish, flight)
            return None
        if self._jobs:
            following = self._next_flight(self._jobs[0].loop)
            self._at_work = following is None
            return None if following is None else partial(self._hand_over, following)
        if not woken and self._hook_again is not None:
            self._at_work = True
            return partial(self._after_commit, ())
        return None

    def _hand_over(self, flight: PendingCall) -> None:
        """Send a call for the loop to hear, which will do the next ones by itself."""
        self._send(flight)
        self._sent(flight, flying=flight.is_sent)
        if flight.is_sent:
            try:
                flight.loop.call_soon_threadsafe(self._lend_ear, flight)
            except RuntimeError:  # it is closed
                self._sent(flight, flying=False)

    def _must_take_over(self, flight: PendingCall) -> bool:
        """Return whether the thread is to finish a flight; under the lock."""
        return flight.left or (flight.flying and (self._closing or flight.wanted))

    def _finish(self, flight: PendingCall) -> None:
        """Do what is left of a flight."""
        try:
            self._give_answers(flight, self._row(flight))
        except BaseException as error:  # noqa: BLE001 - those who asked are told
            self._apart_failed(flight.jobs, error)
            if not flight.jobs and flight.calling is not None:
                flight.calling.answers(None)
        self._answer(flight.jobs)
        self._after_commit([job.answer for job in flight.jobs if job.error is None])

    def _row(self, flight: PendingCall) -> Row | None:
        transactor, calling = self._transactor, flight.calling
        if flight.error is not None:
            if not isinstance(flight.error, transactor.errors):
                transactor.begin_anew()
                raise flight.error
            transactor.call_failed(flight.error)
            return None
        if flight.call is not None:
            return transactor.finish(flight.call)
        assert calling is not None  # noqa: S101 - it is made before anything is sent
        return transactor.call(calling.statement, calling.arguments)

    def _end(self) -> None:
        super()._end()
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.close_from_afar()
