"""A pipelined connection over psycopg: statements are sent together.

The cost of a statement is its round trip to the server. So `execute` only puts a statement into a
line. The connection sends the line when a caller wants the rows of one statement, or when the
transaction ends, and reads all answers together. An error of one surfaces then: the server has
skipped all statements behind it.

It speaks to the driver's library itself (libpq's pipeline mode): the driver's own cursors and
pipelines take ten times as long on this side, and longer than the server does.
"""

from __future__ import annotations

import contextlib
import select
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus

from millpond.errors import Miscounted
from millpond.store.postgres.connect import silent_for
from millpond.store.postgres.cursor import Cursor
from millpond.store.postgres.encoding import BINARY, columns, sent
from millpond.store.postgres.flush import NOTE_WRITES, Flush, Solitude, noting_writes
from millpond.store.postgres.pending_call import PendingServerCall
from millpond.store.sql.database import miscounted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from psycopg.pq.abc import PGresult

    from millpond.store.postgres.connect import Connection as DriverConnection
    from millpond.store.postgres.cursor import Row
    from millpond.store.postgres.encoding import Sent
    from millpond.store.postgres.pending_call import Steps

_Question = tuple[str, tuple[Any, ...]]

_SUCCEEDED = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_STOOD_IDLE = "25P03"

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Begins a transaction (READ COMMITTED)."""
_NO_ARGUMENTS: tuple[()] = ()
_THINKING = "SELECT set_config('idle_in_transaction_session_timeout', $1, true)"

_MOST_EXPECTED = 8
"""The most questions of read-ahead."""


def _waiting(socket: int) -> Callable[[bool, float | None], object]:
    """Return a function that waits until a socket is readable (or writable), with a timeout."""
    if not hasattr(select, "poll"):
        return lambda write, limit: any(
            select.select([socket], [socket] if write else [], [], limit)
        )
    reading, both = select.poll(), select.poll()
    reading.register(socket, select.POLLIN)
    both.register(socket, select.POLLIN | select.POLLOUT)

    def wait(write: bool, limit: float | None) -> object:
        return (both if write else reading).poll(None if limit is None else limit * 1000)

    return wait


class Begun(NamedTuple):
    """The state of the store when a transaction has the write lock."""

    now: float
    """The server's clock."""
    version: int | None
    """The version of the store; None if its row is missing."""
    folds: bool
    """Whether folded tasks exist."""
    inbox: bool
    """Whether the inbox has tasks."""
    meta: Row | None
    """The row of the statement `meta`."""


class _Plan:
    """A statement, and whether it is prepared."""

    __slots__ = ("changes_rows", "name", "prepared", "text")

    def __init__(self, statement: str, name: bytes) -> None:
        self.text = statement.encode()
        self.name = name
        self.prepared = False
        self.changes_rows = (
            statement.startswith("INSERT ")
            and ("VALUES" in statement or "unnest(" in statement)
            and "DO NOTHING" not in statement
        )
        """Whether it always changes a row."""


class _InLine(NamedTuple):
    """A sent statement, and the cursor for its answer."""

    plan: _Plan
    cursor: Cursor | None
    """None = it is only being prepared."""
    is_flush: bool = False
    """Whether it only waits for the disk, after the commit."""


_BOUNDARY = None
"""In a line: what stands before it is committed, whatever happens behind it."""

_Line: TypeAlias = "list[_InLine | None]"


class PostgresConnection:
    """The connection of the SQL stores; for one thread at a time."""

    def __init__(
        self,
        driver: DriverConnection,
        many: Mapping[str, str],
        *,
        settings: Mapping[str, str] | None = None,
        silence: float | None = None,
        flushes: bool = False,
    ) -> None:
        """`flushes`: transactions commit without waiting for the disk; the connection does then."""
        self._driver = driver
        self._library = driver.pgconn
        self._many = many
        """The statement for many rows, by the statement for one row."""
        if settings is None and driver.prepare_threshold is None:
            settings = {}
        self._settings = settings
        """The settings with which each transaction begins, where a pooler lends the session; None =
        the session is ours."""
        self._flushes = flushes
        self._solitude = Solitude()
        self._silence = silence
        self._limit = silence
        """Seconds of silence after which it gives up."""
        self._wait_for = _waiting(self._library.socket)
        self._rows = Transformer(driver)
        self._plans: dict[str, _Plan] = {}
        self._line: _Line = []
        self._owed: _Line = []
        """Sent statements whose answers were not read yet."""
        self._lines_out = 0
        """How many lines were sent whose answers were not all read."""
        self._reads_only = False
        self._read: dict[_Question, Cursor] | None = None
        """Questions of this transaction before its first write, while they are noted."""
        self._read_before: set[_Question] = set()
        self._expected: list[_Question] = []
        self._foreseen: dict[_Question, Cursor] = {}
        """Read-ahead: answers to questions that this transaction will probably ask."""
        self._changes = 0
        self._certainly_changed = False
        self.begun: Begun | None = None
        """The state at the beginning of the transaction."""
        self.is_sent = True
        """Whether everything was handed to the network."""
        self.in_doubt = False
        """Whether the outcome of the last commit is unknown."""
        self.unflushed = False
        """Whether the last commit is visible to others, and perhaps not on disk."""
        self.miscounted: tuple[str, int, int] | None = None
        """A write with an unexpected count: its name, expected and actual rows."""

    # What rows ask for

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open; queued statements are part of one."""
        if self._line or self._owed:
            return bool(self._line)
        status = self._library.transaction_status
        return status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    @property
    def total_changes(self) -> int:
        """A number that grows with every changed row of this connection."""
        if self._certainly_changed:
            return self._changes + 1
        self.sync()
        return self._changes

    def execute(self, statement: str, parameters: Sequence[Any] = _NO_ARGUMENTS, /) -> Cursor:
        """Queue a statement; wait if it ends a transaction."""
        if statement.startswith("SELECT "):
            return self._ask(statement, parameters)
        if statement == "ROLLBACK":
            return self._roll_back()
        cursor = self._send(statement, [sent(value) for value in parameters])
        if statement.startswith("BEGIN "):
            self._reads_only = statement.endswith(" READ ONLY")
            self._set()
        else:
            self.foresee_nothing()
        return cursor

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> list[Cursor]:
        """Queue a statement for each row, or one statement for all rows."""
        self.foresee_nothing()
        for_all = self._many.get(statement)
        if for_all is not None:
            arguments = columns(rows)
            return [self._send(for_all, arguments)] if arguments else []
        return [self._send(statement, [sent(value) for value in row]) for row in rows]

    # Transactions

    def begin(self, lock: str, look: str) -> Begun:
        """Begin a write transaction, take the write lock, and read the state.

        All in one go. `lock` waits, so that `look`, which comes after it, sees whatever was
        committed by those before. What another one commits meanwhile must be seen: hence the level.
        """
        expected, self._expected, self._read = self._expected, [], None
        self.execute(BEGIN)
        return self.take_turn(lock, look, expected)

    def take_turn(self, lock: str, look: str, expected: Sequence[_Question] = ()) -> Begun:
        """Take the write lock in the open transaction, and read the state."""
        self._send(lock, [])
        looked = self._send(look, [])
        self._foreseen = {
            question: self._send(question[0], [sent(value) for value in question[1]])
            for question in expected
        }
        now, version, folds, inbox, *meta = looked.fetchone() or (0.0, None, True, False)
        known = None if version is None else tuple(meta)
        self.begun = Begun(now, version, folds, inbox, known)
        return self.begun

    def may_think(self, seconds: float) -> None:
        """Set the idle timeout of this transaction."""
        self._send(_THINKING, [sent(str(round(seconds * 1000)))])
        self.sync()

    def call(
        self, statement: str, arguments: list[Sent], flush: Flush = Flush.SEEN
    ) -> tuple[str, Row | None]:
        """Do one statement in a transaction of its own; return the outcome and its row."""
        return self.start(statement, arguments, flush).finish()

    def start(
        self, statement: str, arguments: list[Sent], flush: Flush = Flush.SEEN
    ) -> PendingServerCall:
        """Send one statement as a transaction of its own, without waiting.

        Before the answer is read, only more such statements may be sent; their answers are read in
        their order.
        """
        flushes = self._flushes and flush is not Flush.NOTHING
        alone = flushes and self._solitude.is_known
        then = None if alone or not flushes else flush.after(statement)
        if self._settings is not None:
            self.execute(BEGIN)
        self._begin_commit()
        first = self._solitude.sent(1 if then is None else 2)
        if flushes:
            statement = flush.within(statement) if alone else noting_writes(statement)
        cursor = self._send(statement, arguments)
        if self._settings is not None:
            self._send("COMMIT", [])
        elif then is not None:
            # Without BEGIN the transaction ends here.
            self._library.pipeline_sync()
            self._line.append(_BOUNDARY)
        if then is not None:
            self._send(then, [], is_flush=True)
        numbered = partial(self._solitude.numbered, at=first) if flushes else None
        return PendingServerCall(self, cursor, numbered)

    def commit(self) -> str:
        """Commit, with all queued statements, and wait for the disk; return the server's status."""
        self._begin_commit()
        self._solitude.sent(2)
        if self._flushes:
            self._send(NOTE_WRITES, [])
        self._send("COMMIT", [])
        if self._flushes:
            self._send(Flush.SEEN.value, [], is_flush=True)
        return self.sync()

    def _begin_commit(self) -> None:
        self.in_doubt, self.unflushed, self.begun = True, False, None
        self.foresee_nothing()

    def _roll_back(self) -> Cursor:
        self.begun = None
        self.foresee_nothing()
        with contextlib.suppress(psycopg.Error, Miscounted):
            # What stands in line was sent already; if it fails, so much the better.
            self.sync()
        cursor = self._send("ROLLBACK", [])
        if self._reads_only and not self.closed:
            # There is nothing to know about it.
            self._owed, self._line = self._line, []
            self._dispatch()
        else:
            self.sync()
        return cursor

    def _set(self) -> None:
        if not self._settings:
            return
        last = 2 * len(self._settings)
        calls = ", ".join(f"set_config(${n}, ${n + 1}, true)" for n in range(1, last, 2))
        values = [sent(text) for pair in self._settings.items() for text in pair]
        self._send(f"SELECT {calls}", values)

    # Foresight

    def note_reads(self) -> None:
        """Note the reads of this transaction for the read-ahead of the next one.

        Who shares a store with others reads the same few rows at the beginning of every
        transaction, as those may have changed them. Asked for at once they cost one way to the
        server, and not one each.
        """
        self._read = {}

    def _ask(self, statement: str, parameters: Sequence[Any]) -> Cursor:
        if self._read is None and not self._foreseen:
            return self._send(statement, [sent(value) for value in parameters])
        question = (statement, tuple(parameters))
        cursor = self._foreseen.pop(question, None)
        if cursor is None:
            cursor = self._send(statement, [sent(value) for value in parameters])
        if self._read is not None and len(self._read) < _MOST_EXPECTED:
            self._read[question] = cursor
        return cursor

    def foresee_nothing(self) -> None:
        """Drop the read-ahead: it may be stale."""
        if self._foreseen:
            self._foreseen = {}
        if self._read is not None:
            # What is asked twice in a row will be asked again.
            before, self._read_before = self._read_before, set(self._read)
            self._expected = [
                question
                for question, cursor in self._read.items()
                if question in before and cursor.is_small()
            ]
            self._read = None

    # The line

    def _send(self, statement: str, arguments: list[Sent], *, is_flush: bool = False) -> Cursor:
        library = self._library
        if self._owed:
            self._collect_owed()
        if not self._line:
            if self.closed:
                raise psycopg.OperationalError("the connection is closed")
            library.enter_pipeline_mode()
        cursor = Cursor(self)
        plan = self._plans.get(statement)
        values = [value for value, _ in arguments]
        formats = [form for _, form in arguments]
        if self._settings is not None:
            # A pooler may give the next transaction to a session without our prepared statements.
            plan = plan or self._planned(statement)
            library.send_query_params(plan.text, values, None, formats, BINARY)
        else:
            if plan is None or not plan.prepared:
                plan = plan or self._planned(statement)
                library.send_prepare(plan.name, plan.text)
                # Behind others that fail it is not done: the answer will say so.
                plan.prepared = True
                self._line.append(_InLine(plan, None, is_flush))
            library.send_query_prepared(plan.name, values, formats, BINARY)
        self._line.append(_InLine(plan, cursor, is_flush))
        self._certainly_changed |= plan.changes_rows
        return cursor

    def _planned(self, statement: str) -> _Plan:
        plan = self._plans[statement] = _Plan(statement, b"millpond_%d" % len(self._plans))
        return plan

    def sync(self) -> str:
        """Send the queued statements and read the answers; return the last status.

        The first error is raised when all answers are there.
        """
        if self._owed:
            self._collect_owed()
        if not self._line:
            return ""
        return self.waited_for(self.send_off())

    def send_off(self) -> Steps:
        """Send the queued statements; return the generator that reads the answers."""
        self._certainly_changed = False
        line, self._line = self._line, []
        self._lines_out += 1
        try:
            self._library.pipeline_sync()
            self.is_sent = not self._library.flush()
        except BaseException:
            self.close()
            raise
        return self._collecting(line, in_doubt=self.in_doubt)

    def _dispatch(self) -> None:
        """Send the queued statements."""
        self._lines_out += 1
        try:
            self._library.pipeline_sync()
            self._flush()
        except BaseException:
            self.close()
            raise

    def _collect_owed(self) -> None:
        owed, self._owed = self._owed, []
        self.waited_for(self._collecting(owed, in_doubt=self.in_doubt))

    def waited_for(self, steps: Steps) -> str:
        """Wait for all answers; return the last status."""
        try:
            while True:
                next(steps)
                try:
                    self._await_more()
                except BaseException as error:  # noqa: BLE001 - raised there, and so here
                    steps.throw(error)
        except StopIteration as over:
            status: str = over.value
            return status

    def _collecting(self, line: _Line, *, in_doubt: bool) -> Steps:
        """Read the answers of sent statements; return the last status.

        Step by step: each ends where more must have been taken in before the next one. `in_doubt`:
        whether one of them commits. It is noted at the end, for other lines may be sent meanwhile.
        """
        failed: psycopg.Error | None = None
        status, unflushed = "", False
        last = next((one for one in reversed(line) if one is not None and not one.is_flush), None)
        try:
            for one in line:
                if one is _BOUNDARY:
                    failed = (yield from self._boundary()) or failed
                    continue
                result = yield from self._answer()
                if failed is None and result.status not in _SUCCEEDED:
                    failed = _error(result)
                    unflushed = one.is_flush
                    in_doubt = in_doubt and not _undid(failed, one, last=one is last)
                command = self._take_in(one, result)
                status = status if one.is_flush else command
            failed = (yield from self._boundary()) or failed
            self._lines_out -= 1
            if not self._lines_out:
                self._library.exit_pipeline_mode()
        except BaseException as broken:
            self.in_doubt, self.unflushed = in_doubt, unflushed
            # The answers that are left would be taken for those of others.
            self.close()
            if failed is not None and isinstance(broken, psycopg.Error):
                raise failed from None  # the server said why before it hung up
            raise
        self.in_doubt, self.unflushed = in_doubt and failed is not None, unflushed
        if failed is not None:
            raise failed
        if self.miscounted is not None and status != "COMMIT":
            found, self.miscounted = self.miscounted, None
            raise miscounted(*found)
        return status

    def _take_in(self, one: _InLine, result: PGresult) -> str:
        """Give an answer to its cursor; return its status."""
        succeeded = result.status in _SUCCEEDED
        if one.cursor is None:
            one.plan.prepared = succeeded
            return ""
        if not succeeded:
            return ""
        if result.status == ExecStatus.TUPLES_OK:
            self._rows.set_pgresult(result)
            one.cursor.take_in(self._rows.load_rows(0, result.ntuples, tuple))
            return ""
        one.cursor.take_in([])
        touched = result.command_tuples or 0
        self._changes += touched
        must = one.cursor.must_touch
        if must is not None and touched != must[1]:
            self.miscounted = (*must, touched)
        return (result.command_status or b"").decode()

    def _answer(self) -> Generator[None, None, PGresult]:
        """Return the answer to one statement."""
        library = self._library
        while library.is_busy():
            yield
        result = library.get_result()
        if result is not None:
            while library.is_busy():
                yield
            if library.get_result() is None:
                return result
        raise psycopg.OperationalError("the server's answers do not match what it was sent")

    def _boundary(self) -> Generator[None, None, psycopg.Error | None]:
        """Read the end of a line, or of its first transaction; return why that did not commit."""
        result = yield from self._result()
        if result is None or result.status == ExecStatus.PIPELINE_SYNC:
            return None
        failed = _error(result)
        for _ in range(2):
            result = yield from self._result()
            if result is not None and result.status == ExecStatus.PIPELINE_SYNC:
                return failed
        raise failed

    def _result(self) -> Generator[None, None, PGresult | None]:
        while self._library.is_busy():
            yield
        return self._library.get_result()

    def _await_more(self) -> None:
        if self._library.flush():
            # What is still to be sent goes first, and is answered meanwhile.
            self._flush()
        else:
            self._wait()
            self.take_in()

    def take_in(self) -> None:
        """Read what has arrived."""
        self._library.consume_input()

    def _flush(self) -> None:
        while self._library.flush():
            # While we send much the server may have much to say, and waits for us to listen.
            self._wait(write=True)
            self._library.consume_input()

    def _wait(self, *, write: bool = False) -> None:
        if not self._wait_for(write, self._limit):
            raise psycopg.OperationalError(silent_for(self._limit or 0.0))

    # The driver

    @property
    def driver(self) -> DriverConnection:
        """The driver's connection, with no queued statements."""
        self.sync()
        return self._driver

    @property
    def socket(self) -> int:
        """Its file descriptor; -1 if it is closed."""
        return -1 if self.closed else self._library.socket

    @property
    def may_send_behind(self) -> bool:
        """Whether a statement may be sent before the answer to the last one was read.

        Not where a pooler lends the session: it may give the next transaction to another one.
        """
        return self._settings is None and not self.closed

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._library.status != ConnStatus.OK

    def is_over(self) -> bool:
        """Return whether it is closed, also by the server.

        A server that says something without being asked mostly says goodbye.
        """
        idle = not self._line and not self._owed
        return self.closed or (idle and bool(self._wait_for(False, 0.0)))

    def hurry(self, seconds: float | None = None) -> None:
        """Set the timeout for silence from now on; None = the usual one."""
        usual = self._silence
        self._limit = usual if seconds is None else min(seconds, usual or seconds)

    def cancel(self) -> None:
        """Cancel the running statement; from another thread."""
        self._driver.cancel_safe(timeout=5.0)

    def close(self) -> None:
        """Close it; safe twice."""
        self._line, self._owed, self._lines_out = [], [], 0
        self.begun = None
        self._driver.close()


def _undid(error: psycopg.Error, failed: _InLine, *, last: bool) -> bool:
    """Return whether a commit did not happen, because the server failed a statement before it."""
    if failed.is_flush or error.sqlstate is None:
        return False
    return not last or error.sqlstate == _STOOD_IDLE


def _error(result: PGresult) -> psycopg.Error:
    error = error_from_result(result)
    if error.sqlstate is None and not isinstance(error, psycopg.OperationalError):
        # The library says so itself: the connection is over.
        return psycopg.OperationalError(str(error))
    return error
