"""The writer of a process: a thread, and the event loop for single server calls.

A thread costs two context switches per answer, as much as the server needs for a plain submit. So a
server call (`server_call.py`) that finds no job before it is sent from the event loop itself, and
the loop reads its answer: a pending call. The loop and the thread share one connection and use it
in turn, so jobs keep their order; jobs that come while a call is pending gather.

The loop never blocks: the thread opens connections, handles errors and large calls, and finishes
calls that take longer than a moment.

A worker may send a call behind one whose answer the loop waits for (`follow`). Their answers are
read in their order. If the thread finishes one of them, it finishes all behind it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from millpond.core.log_fields import about
from millpond.store.postgres.server_call import PreparedCall, ServerCall
from millpond.store.sql.unit_of_work import SqlTables
from millpond.store.sql.writer import (
    WriteJob,
    Writer,
    answer_caller,
    must_not_be_forked,
    nothing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.store.postgres.cursor import Row
    from millpond.store.postgres.pending_call import PendingServerCall
    from millpond.store.postgres.pipeline import PostgresConnection
    from millpond.store.postgres.transactions import PostgresTransactor

log = logging.getLogger("millpond.postgres")

_A_MOMENT = 0.5
"""Seconds after which the thread takes over a pending call, and waits as long as it takes."""

_LONG = 0.1
"""Seconds for which a notification of other processes waits for a busy event loop."""

_MOST_BEHIND = 2
"""How many calls are sent behind one whose answer is on its way: a step, and a notification."""

_Jobs: TypeAlias = "list[WriteJob[SqlTables]]"


class PendingCall:
    """A server call that the event loop has sent or will send."""

    __slots__ = (
        "awaited_elsewhere",
        "call",
        "error",
        "in_flight",
        "is_behind",
        "jobs",
        "left_to_thread",
        "loop",
        "prepared",
        "since",
    )

    def __init__(self, jobs: _Jobs, loop: asyncio.AbstractEventLoop) -> None:
        self.jobs = jobs
        self.loop = loop
        self.since = time.monotonic()
        self.prepared: PreparedCall | None = None
        self.call: PendingServerCall | None = None
        self.error: BaseException | None = None
        self.in_flight = False
        """It was sent, and the loop reads its answer."""
        self.is_behind = False
        """It was sent before the answer to another one was read."""
        self.left_to_thread = False
        """The thread finishes it."""
        self.awaited_elsewhere = False
        """A job of another event loop waits behind it."""

    @property
    def is_sent(self) -> bool:
        """Whether all of it was sent, and only the answer is missing."""
        return self.call is not None and self.call.is_sent

    @property
    def keeps_waiting(self) -> bool:
        """Whether it has waited long for a busy event loop."""
        return self.in_flight and time.monotonic() - self.since >= _LONG


class SocketReader:
    """Watches the socket of a connection on an event loop.

    It has a file descriptor of its own: the thread may close the connection at any moment, and the
    loop must not confuse it with another one that gets the same number.
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
    def is_open(self) -> bool:
        """Whether it is not closed."""
        return self.number >= 0

    def close(self) -> None:
        """Stop watching; safe twice; only on the loop."""
        number, self.number = self.number, -1
        if number >= 0:
            if not self.loop.is_closed():
                self.loop.remove_reader(number)
            os.close(number)

    def close_from_thread(self) -> None:
        """Stop watching; from any thread."""
        try:
            self.loop.call_soon_threadsafe(self.close)
        except RuntimeError:  # the loop is closed
            self.close()


class PostgresWriter(Writer[SqlTables]):
    """Does single server calls on the event loop, everything else in its thread.

    `announce` is `committed` for the loop: it may also return a call that notifies other processes.
    """

    _transactor: PostgresTransactor[SqlTables]

    def __init__(
        self,
        transactor: PostgresTransactor[SqlTables],
        *,
        committed: Callable[[Sequence[Any]], float | None],
        announce: Callable[[Sequence[Any]], PreparedCall | float | None],
    ) -> None:
        self._announce = announce
        self._pending: PendingCall | None = None
        self._behind: deque[PendingCall] = deque()
        """Calls that were sent behind it, in their order."""
        self._unannounced: list[Any] = []
        """Answers of which the thread notifies others when it has finished all calls."""
        self._thread_writes = True
        """Whether the thread uses the connection."""
        self._resting = False
        """Whether the thread waits without a timeout."""
        self._reader: SocketReader | None = None
        self._no_reader = False
        """Whether event loops of this process cannot watch sockets."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_loop: asyncio.AbstractEventLoop | None = None
        super().__init__(transactor, committed=committed)

    def _taken_in(self, job: WriteJob[SqlTables]) -> Callable[[], None] | None:
        if self._thread_writes:
            return None  # it checks for jobs before it waits
        pending = self._pending
        if pending is None:
            following = self._next_pending(job.loop)
            if following is not None:
                return partial(self._send_on_loop, following)
            self._news.notify()
        elif job.loop is not pending.loop:
            # The loop of the pending call may be blocked by a wait for this job.
            pending.awaited_elsewhere = True
            self._news.notify()
        return None

    # --- on the loop ------------------------------------------------------------------------------

    def follow(self, call: ServerCall, argument: object) -> asyncio.Future[Any] | None:
        """Send a call behind those whose answers are on their way; None if that cannot be done now.

        Only on an event loop. It overtakes no job: none may wait.
        """
        must_not_be_forked(self._process, self._where)
        loop = asyncio.get_running_loop()
        with self._news:
            pending = self._pending
            if pending is None or not self._may_follow(pending, loop):
                return None
            future: asyncio.Future[Any] = loop.create_future()
            job = WriteJob[SqlTables](nothing, future, loop, call, argument)
            # Until it is sent, the thread must not take the connection.
            pending.in_flight = False
        self._send_behind(pending, PendingCall([job], loop))
        return future

    def _may_follow(self, pending: PendingCall, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the loop may send one more call now; under the lock."""
        return (
            pending.in_flight
            and pending.loop is loop
            and not (self._jobs or self._closing)
            and len(self._behind) < _MOST_BEHIND
            and all(one.is_sent for one in self._behind)
            and self._transactor.may_send_behind
        )

    def _send_behind(self, pending: PendingCall, following: PendingCall) -> None:
        """Send a call behind those under way, of which `pending` is the first."""
        following.is_behind = True
        self._behind.append(following)
        self._send(following)
        # If it cannot be sent, the connection may be closed, which the loop would not notice.
        self._sent(pending, in_flight=following.error is None)

    def _next_pending(self, loop: asyncio.AbstractEventLoop | None) -> PendingCall | None:
        """Return the next call that the loop may send, or None; under the lock."""
        first = self._jobs[0]
        if (
            self._no_reader
            or self._closing
            or loop is None
            or first.loop is not loop
            or not isinstance(first.batch_work, ServerCall)
        ):
            return None
        return self._new_pending(self._first_apart(), loop)

    def _new_pending(self, jobs: _Jobs, loop: asyncio.AbstractEventLoop) -> PendingCall:
        pending = self._pending = PendingCall(jobs, loop)
        pending.awaited_elsewhere = any(job.loop is not loop for job in self._jobs)
        return pending

    def _send_on_loop(self, pending: PendingCall) -> None:
        """Send a call; leave it to the thread if it cannot be sent at once."""
        self._send(pending)
        in_flight = pending.is_sent and self._watch_socket(pending.loop)
        self._sent(pending, in_flight=in_flight)
        if in_flight and self._timer_loop is not pending.loop:
            self._set_timer(pending.loop)

    def _send(self, pending: PendingCall) -> None:
        try:
            if pending.prepared is None:
                call = pending.jobs[0].batch_work
                assert isinstance(call, ServerCall)  # noqa: S101 - `_next_pending` checked
                pending.prepared = call.prepare([job.argument for job in pending.jobs])
            if not pending.prepared.is_large:
                prepared, transactor = pending.prepared, self._transactor
                start = transactor.start_behind if pending.is_behind else transactor.start
                pending.call = start(prepared.statement, prepared.arguments, prepared.flush)
        except BaseException as error:  # noqa: BLE001 - the thread raises it again
            pending.error = error

    def _sent(self, pending: PendingCall, *, in_flight: bool) -> None:
        """Let the loop read its answer, or leave it to the thread."""
        with self._news:
            pending.in_flight, pending.left_to_thread = in_flight, not in_flight
            if self._thread_must_finish(pending):
                self._news.notify()

    def _watch_socket(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Make the loop watch the socket; False if it cannot."""
        reader, connection = self._reader, self._transactor.connection
        if (
            reader is not None
            and reader.loop is loop
            and reader.connection is connection
            and reader.is_open
        ):
            return True
        if reader is not None:
            reader.close_from_thread()
        try:
            self._reader = SocketReader(loop, connection, self._on_readable)
        except (NotImplementedError, OSError, RuntimeError) as error:
            log.debug(
                "the event loop cannot watch the socket of %s: %r",
                self._where,
                error,
                extra=about("socket.unwatched", reason=repr(error)),
            )
            self._reader, self._no_reader = None, isinstance(error, NotImplementedError)
            return False
        return True

    def _watch_sent(self, pending: PendingCall) -> None:
        """Watch the socket for a call that the thread sent, unless it has finished it meanwhile."""
        with self._news:
            if self._pending is not pending or not pending.in_flight:
                return
            if not self._watch_socket(pending.loop):
                pending.in_flight, pending.left_to_thread = False, True
                self._news.notify()
                return
        if self._timer_loop is not pending.loop:
            self._set_timer(pending.loop)

    def _on_readable(self, reader: SocketReader) -> None:
        """Read what has arrived."""
        with self._news:
            pending = self._pending
            mine = pending is not None and pending.in_flight and reader is self._reader
            if pending is None or not mine:
                reader.close()  # the thread reads it, or the server closed the connection
                return
            pending.in_flight = False
        following: PendingCall | None = pending
        while following is not None:
            # The answer to the next may have come with this one.
            following = self._read(following)

    def _read(self, pending: PendingCall) -> PendingCall | None:
        """Read what has arrived for a call; return the one behind it if that is to be read."""
        call = pending.call
        assert call is not None  # noqa: S101 - it was sent
        ended: tuple[str, Row | None] | None = None
        try:
            ended = call.proceed()
        except BaseException as error:
            pending.error = error
            self._sent(pending, in_flight=False)  # the thread handles the error
            if not isinstance(error, Exception):
                raise
            return None
        if ended is None:
            self._sent(pending, in_flight=True)
            return None
        return self._complete(pending, ended)

    def _complete(self, pending: PendingCall, ended: tuple[str, Row | None]) -> PendingCall | None:
        """Deliver the answers, notify other processes, and send the next call.

        Return the call behind it, if the loop is to read that.
        """
        status, row = ended
        self._give_answers(pending, row if status == "COMMIT" else None)
        answer_caller([job for job in pending.jobs if job.loop is pending.loop])
        self._answer([job for job in pending.jobs if job.loop is not pending.loop])
        answers = [job.answer for job in pending.jobs if job.error is None]
        if self._behind:
            return self._completed_before(answers)
        notice = self._announced(answers)
        following: PendingCall | None = None
        with self._news:
            self._pending = None
            self._hook_again = notice if isinstance(notice, float) else None
            if notice is not None and not isinstance(notice, float):
                following = self._new_pending([], pending.loop)
                following.prepared = notice
            elif self._jobs:
                following = self._next_pending(pending.loop)
            if following is None and (
                self._jobs or self._closing or (self._hook_again is not None and self._resting)
            ):
                self._news.notify()
        if following is not None:
            self._send_on_loop(following)
        return None

    def _completed_before(self, answers: list[Any]) -> PendingCall | None:
        """Turn to the call behind a complete one; return it if the loop is to read its answer."""
        sent = all(one.is_sent for one in self._behind)
        notice: PreparedCall | float | None = None
        if sent:
            notice = self._announced(answers)
        else:
            self._unannounced += answers
        with self._news:
            pending = self._pending = self._behind.popleft()
            pending.left_to_thread = not sent
            pending.awaited_elsewhere = any(job.loop is not pending.loop for job in self._jobs)
            self._hook_again = notice if isinstance(notice, float) else None
            if not sent:
                self._news.notify()
        if isinstance(notice, PreparedCall):
            word = PendingCall([], pending.loop)
            word.prepared = notice
            self._send_behind(pending, word)
        return self._claimed(pending)

    def _claimed(self, pending: PendingCall) -> PendingCall | None:
        """Keep the thread from a call that the loop is about to read; None if it has it already."""
        with self._news:
            if self._pending is not pending or self._thread_must_finish(pending):
                return None
            pending.in_flight = False
        return pending

    def _announced(self, answers: list[Any]) -> PreparedCall | float | None:
        """Notify other processes of a commit; return a call that does it, or when to try again."""
        try:
            return self._announce(answers)
        except Exception:
            log.exception(
                "a hook after the commit to %s failed; the commit is stored",
                self._where,
                extra=about("commit.hook_failed"),
            )
        return None

    def _give_answers(self, pending: PendingCall, row: Row | None) -> None:
        assert pending.prepared is not None  # noqa: S101 - it was called
        try:
            for job, answer in zip(pending.jobs, pending.prepared.answers(row), strict=True):
                job.answer = answer
        except BaseException as error:  # noqa: BLE001 - the callers get it
            self._failed(pending.jobs, error)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if (
            self._timer is not None
            and self._timer_loop is not None
            and not self._timer_loop.is_closed()
        ):
            self._timer_loop.call_soon_threadsafe(self._timer.cancel)
        self._timer_loop = loop
        self._timer = loop.call_later(_A_MOMENT, self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave a call that takes long to the thread."""
        self._timer = self._timer_loop = None
        with self._news:
            pending = self._pending
            if pending is None or pending.loop is not loop:
                return
            if pending.in_flight and time.monotonic() - pending.since >= _A_MOMENT:
                pending.in_flight, pending.left_to_thread = False, True
                self._news.notify()
                return
        self._set_timer(loop)

    # --- the thread -------------------------------------------------------------------------------

    def _wait(self) -> bool:
        """Wait for something to do; False = the writer is closed, and all is done."""
        while True:
            with self._news:
                self._thread_writes = False
                if self._closing and not (self._pending or self._jobs or self._last_words):
                    return False
                work = self._thread_work(woken=self._has_thread_work() or self._wait_for_news())
                if work is None and self._thread_writes:
                    return True
            if work is not None:
                work()

    def _has_thread_work(self) -> bool:
        return (
            bool(self._jobs) if self._pending is None else self._thread_must_finish(self._pending)
        )

    def _wait_for_news(self) -> bool:
        """Wait to be woken; False = it is time to notify other processes."""
        self._resting = self._hook_again is None
        woken = self._news.wait(self._hook_again)
        self._resting = False
        return woken

    def _thread_work(self, *, woken: bool) -> Callable[[], None] | None:
        """Return what the thread does besides jobs; under the lock."""
        pending = self._pending
        if pending is not None:
            if self._thread_must_finish(pending) or (not woken and pending.keeps_waiting):
                pending.in_flight, self._pending, self._thread_writes = False, None, True
                if self._behind:
                    self._pending = self._behind.popleft()
                    self._pending.left_to_thread = True
                return partial(self._finish, pending)
            return None
        if self._jobs:
            following = self._next_pending(self._jobs[0].loop)
            self._thread_writes = following is None
            return None if following is None else partial(self._send_for_loop, following)
        if not woken and self._hook_again is not None:
            self._thread_writes = True
            return partial(self._after_commit, ())
        return None

    def _send_for_loop(self, pending: PendingCall) -> None:
        """Send a call and let the loop read its answer; the loop sends the next ones."""
        self._send(pending)
        self._sent(pending, in_flight=pending.is_sent)
        if pending.is_sent:
            try:
                pending.loop.call_soon_threadsafe(self._watch_sent, pending)
            except RuntimeError:  # it is closed
                self._sent(pending, in_flight=False)

    def _thread_must_finish(self, pending: PendingCall) -> bool:
        """Return whether the thread must finish a pending call; under the lock."""
        return pending.left_to_thread or (
            pending.in_flight and (self._closing or pending.awaited_elsewhere)
        )

    def _finish(self, pending: PendingCall) -> None:
        """Finish a pending call in the thread."""
        try:
            self._give_answers(pending, self._row(pending))
        except BaseException as error:  # noqa: BLE001 - the callers get it
            self._apart_failed(pending.jobs, error)
            if not pending.jobs and pending.prepared is not None:
                pending.prepared.answers(None)
        self._answer(pending.jobs)
        self._unannounced += [job.answer for job in pending.jobs if job.error is None]
        if self._pending is None:
            # Not before the answers of all that was sent are read.
            answers, self._unannounced = self._unannounced, []
            self._after_commit(answers)

    def _row(self, pending: PendingCall) -> Row | None:
        transactor, prepared = self._transactor, pending.prepared
        if pending.error is not None:
            if not isinstance(pending.error, transactor.errors):
                transactor.discard_connection()
                raise pending.error
            if pending.is_behind and pending.call is None:
                # What is known of the connection is about the call before it.
                transactor.lost(pending.error)
            transactor.call_failed(pending.error)
            return None
        if pending.call is not None:
            return transactor.finish(pending.call)
        assert prepared is not None  # noqa: S101 - it is prepared before it is sent
        return transactor.call(prepared.statement, prepared.arguments, prepared.flush)

    def _end(self) -> None:
        super()._end()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close_from_thread()
