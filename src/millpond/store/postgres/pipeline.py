"""A connection of rows over one of psycopg: statements are sent together, and waited for seldom.

What a statement costs is the way to the server and back. So a statement is only put in line when it
is executed; all that stand there are sent when somebody wants the rows of one of them, or when the
transaction ends, and the server's answers are read together. An error of one surfaces then: nothing
behind it in the line was done.

It speaks to the driver's library itself (libpq's pipeline mode): the driver's own cursors and
pipelines take ten times as long on this side, and longer than the server does.
"""

from __future__ import annotations

import contextlib
import select
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus

from millpond.errors import Miscounted
from millpond.store.postgres.connect import silent_for
from millpond.store.postgres.encoding import BINARY, columns, sent
from millpond.store.postgres.pending_call import PendingServerCall
from millpond.store.sql.database import miscounted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from psycopg.pq.abc import PGresult

    from millpond.store.postgres.connect import Connection as DriverConnection
    from millpond.store.postgres.encoding import Sent
    from millpond.store.postgres.pending_call import Steps

Row = tuple[Any, ...]
_Question = tuple[str, tuple[Any, ...]]

_SUCCEEDED = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_STOOD_IDLE = "25P03"

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Begins a transaction that sees each commit of others as it happens."""
_NO_ARGUMENTS: tuple[()] = ()
_THINKING = "SELECT set_config('idle_in_transaction_session_timeout', $1, true)"

_MOST_EXPECTED, _FEW, _SMALL = 8, 200, 4096
"""How many questions a transaction begins with at most, of how many rows and bytes of a body."""


def _waiting(socket: int) -> Callable[[bool, float | None], object]:
    """Return what waits until a socket can be read (or written to), for some seconds at most."""
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


class Cursor:
    """The rows of a statement; they are waited for when they are first asked for."""

    __slots__ = ("_connection", "_next", "_rows", "must_touch")

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection
        self._rows: list[Row] | None = None
        self._next = 0
        self.must_touch: tuple[str, int] | None = None
        """What it is called and how many rows it must change; None = any number."""

    def fetchone(self) -> Row | None:
        """Return the next row, or None."""
        rows = self._there()
        if self._next >= len(rows):
            return None
        self._next += 1
        return rows[self._next - 1]

    def fetchall(self) -> list[Row]:
        """Return all rows that are left."""
        rows = self._there()
        first, self._next = self._next, len(rows)
        return rows[first:] if first else rows

    def __iter__(self) -> Iterator[Row]:
        return iter(self.fetchall())

    def _there(self) -> list[Row]:
        if self._rows is None:
            self._connection.sync()
        if self._rows is None:
            raise psycopg.InterfaceError("a statement was not executed: one before it had failed")
        return self._rows

    def is_small(self) -> bool:
        """Return whether its rows are here, and to read them again would cost little."""
        rows = self._rows
        if not rows:
            return rows is not None
        last = rows[0][-1]
        return len(rows) <= _FEW and not (isinstance(last, bytes) and len(last) > _SMALL)

    def take_in(self, rows: list[Row]) -> None:
        """Take in what the server found."""
        self._rows = rows


class Begun(NamedTuple):
    """What is known of the store when a transaction has got its turn."""

    now: float
    """The server's clock."""
    version: int | None
    """How often the store was written; None if the row is gone that counts it."""
    folds: bool
    """Whether there are tasks that are folded into their lease."""
    inbox: bool
    """Whether others have submitted something in transactions of their own."""
    meta: Row | None
    """What the statement `meta` says."""


class _Plan:
    """A statement, and what is known of it."""

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
        """Whether it changes a row whatever is there."""


class _InLine(NamedTuple):
    """A statement that was sent, and what to do with its answer."""

    plan: _Plan
    cursor: Cursor | None
    """None: it is only prepared."""


class PostgresConnection:
    """What rows ask of a connection; for one thread at a time."""

    def __init__(
        self,
        driver: DriverConnection,
        many: Mapping[str, str],
        *,
        settings: Mapping[str, str] | None = None,
        silence: float | None = None,
    ) -> None:
        self._driver = driver
        self._library = driver.pgconn
        self._many = many
        """What says a statement for many rows at once, by the statement for one."""
        if settings is None and driver.prepare_threshold is None:
            settings = {}
        self._settings = settings
        """What every transaction must set anew, where the session is lent by a pooler; None = the
        session is ours."""
        self._silence = silence
        self._limit = silence
        """Seconds without a sign of life after which it is given up."""
        self._wait_for = _waiting(self._library.socket)
        self._rows = Transformer(driver)
        self._plans: dict[str, _Plan] = {}
        self._line: list[_InLine] = []
        self._owed: list[_InLine] = []
        """What was sent to its end, and whose answers nobody has waited for."""
        self._reads_only = False
        self._read: dict[_Question, Cursor] | None = None
        """What was asked in this transaction before it wrote, while that is noted."""
        self._read_before: set[_Question] = set()
        self._expected: list[_Question] = []
        self._foreseen: dict[_Question, Cursor] = {}
        """Answers to questions of which we think that they will be asked in this transaction."""
        self._changes = 0
        self._certainly_changed = False
        self.begun: Begun | None = None
        """What was known at the beginning of the transaction, while it lasts."""
        self.is_sent = True
        """Whether nothing is left of what was last sent off."""
        self.in_doubt = False
        """Whether the last commit failed in a way that it may yet have happened."""
        self.miscounted: tuple[str, int, int] | None = None
        """A write that touched other rows than it must: its name, how many it must, and did."""

    # What rows ask for

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open: what stands in line is part of one."""
        if self._line or self._owed:
            return bool(self._line)
        status = self._library.transaction_status
        return status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    @property
    def total_changes(self) -> int:
        """A number that has grown whenever a row was changed over this connection."""
        if self._certainly_changed:
            return self._changes + 1
        self.sync()
        return self._changes

    def execute(self, statement: str, parameters: Sequence[Any] = _NO_ARGUMENTS, /) -> Cursor:
        """Put a statement in line; what ends a transaction is waited for."""
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
        """Put a statement in line for each row, or one for all rows where there is such a one."""
        self.foresee_nothing()
        for_all = self._many.get(statement)
        if for_all is not None:
            arguments = columns(rows)
            return [self._send(for_all, arguments)] if arguments else []
        return [self._send(statement, [sent(value) for value in row]) for row in rows]

    # Transactions

    def begin(self, lock: str, look: str) -> Begun:
        """Begin a transaction that may write, wait for its turn, and look how things are.

        All in one go. `lock` waits, so that `look`, which comes after it, sees whatever was
        committed by those before. What another one commits meanwhile must be seen: hence the level.
        """
        expected, self._expected, self._read = self._expected, [], None
        self.execute(BEGIN)
        return self.take_turn(lock, look, expected)

    def take_turn(self, lock: str, look: str, expected: Sequence[_Question] = ()) -> Begun:
        """Wait for one's turn in the transaction that is open, and look how things are."""
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
        """Let the server wait so long for the next statement, from now to the end."""
        self._send(_THINKING, [sent(str(round(seconds * 1000)))])
        self.sync()

    def call(self, statement: str, arguments: list[Sent]) -> tuple[str, Row | None]:
        """Do one statement in a transaction of its own, in one go; return the end and its row."""
        return self.start(statement, arguments).finish()

    def start(self, statement: str, arguments: list[Sent]) -> PendingServerCall:
        """Send one statement, a transaction of its own, and do not wait for its answer.

        Whoever does it sees to the answer before anything else is asked.
        """
        if self._settings is not None:
            self.execute(BEGIN)
        self.in_doubt, self.begun = True, None
        self.foresee_nothing()
        # By itself it ends with what is sent together, and that is this statement.
        cursor = self._send(statement, arguments)
        if self._settings is not None:
            self._send("COMMIT", [])
        return PendingServerCall(self, cursor)

    def commit(self) -> str:
        """Commit, together with what stands in line; return what the server says it did."""
        self.in_doubt, self.begun = True, None
        self.foresee_nothing()
        self._send("COMMIT", [])
        return self.sync()

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
        """Note what this transaction reads: the next one may well begin with the same questions.

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
        """Forget what was read ahead: from now on it may be otherwise."""
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

    def _send(self, statement: str, arguments: list[Sent]) -> Cursor:
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
            # A pooler may give the next transaction to a session that was told nothing.
            plan = plan or self._planned(statement)
            library.send_query_params(plan.text, values, None, formats, BINARY)
        else:
            if plan is None or not plan.prepared:
                plan = plan or self._planned(statement)
                library.send_prepare(plan.name, plan.text)
                # Behind others that fail it is not done: the answer will say so.
                plan.prepared = True
                self._line.append(_InLine(plan, None))
            library.send_query_prepared(plan.name, values, formats, BINARY)
        self._line.append(_InLine(plan, cursor))
        self._certainly_changed |= plan.changes_rows
        return cursor

    def _planned(self, statement: str) -> _Plan:
        plan = self._plans[statement] = _Plan(statement, b"millpond_%d" % len(self._plans))
        return plan

    def sync(self) -> str:
        """Send what stands in line and take in the answers; return the status of the last.

        The first error is raised when all answers are there.
        """
        if self._owed:
            self._collect_owed()
        if not self._line:
            return ""
        return self.waited_for(self.send_off())

    def send_off(self) -> Steps:
        """Send what stands in line; return what takes in the answers, see `_collecting`."""
        self._certainly_changed = False
        line, self._line = self._line, []
        try:
            self._library.pipeline_sync()
            self.is_sent = not self._library.flush()
        except BaseException:
            self.close()
            raise
        return self._collecting(line)

    def _dispatch(self) -> None:
        """Send what stands in line."""
        try:
            self._library.pipeline_sync()
            self._flush()
        except BaseException:
            self.close()
            raise

    def _collect_owed(self) -> None:
        owed, self._owed = self._owed, []
        self.waited_for(self._collecting(owed))

    def waited_for(self, steps: Steps) -> str:
        """Wait until all answers are taken in; return the status of the last."""
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

    def _collecting(self, line: list[_InLine]) -> Steps:
        """Take in the answers to what was sent; return the status of the last.

        Step by step: each ends where more must have been taken in before the next one.
        """
        failed: psycopg.Error | None = None
        status = ""
        try:
            for one in line:
                result = yield from self._answer()
                if failed is None and result.status not in _SUCCEEDED:
                    failed = _error(result)
                    self._know_doubt(failed, last=one is line[-1])
                status = self._take_in(one, result)
            yield from self._result()  # the end of the line
            self._library.exit_pipeline_mode()
        except BaseException as broken:
            # The answers that are left would be taken for those of others.
            self.close()
            if failed is not None and isinstance(broken, psycopg.Error):
                raise failed from None  # the server said why before it hung up
            raise
        if failed is not None:
            raise failed
        self.in_doubt = False
        if self.miscounted is not None and status != "COMMIT":
            found, self.miscounted = self.miscounted, None
            raise miscounted(*found)
        return status

    def _take_in(self, one: _InLine, result: PGresult) -> str:
        """Hand over an answer; return its status."""
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

    def _know_doubt(self, error: psycopg.Error, *, last: bool) -> None:
        """Note that a commit did not happen if the server gave up on something before it."""
        if error.sqlstate is not None and (not last or error.sqlstate == _STOOD_IDLE):
            self.in_doubt = False

    def _answer(self) -> Generator[None, None, PGresult]:
        """Return the answer to one statement: each is followed by nothing."""
        result = yield from self._result()
        if result is None or (yield from self._result()) is not None:
            raise psycopg.OperationalError("the server's answers do not match what it was sent")
        return result

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
        """Take in what has arrived."""
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
        """The driver's connection, with nothing left in line."""
        self.sync()
        return self._driver

    @property
    def socket(self) -> int:
        """The number by which the system knows it; -1 if it is closed."""
        return -1 if self.closed else self._library.socket

    @property
    def closed(self) -> bool:
        """Whether it is of no use any more."""
        return self._library.status != ConnStatus.OK

    def is_over(self) -> bool:
        """Return whether it is of no use any more, also if the server has ended it meanwhile.

        A server that says something without being asked mostly says goodbye.
        """
        idle = not self._line and not self._owed
        return self.closed or (idle and bool(self._wait_for(False, 0.0)))

    def hurry(self, seconds: float | None = None) -> None:
        """Wait only so long for the server from now on; None = as long as usual."""
        usual = self._silence
        self._limit = usual if seconds is None else min(seconds, usual or seconds)

    def cancel(self) -> None:
        """Stop the statement that is at work; from another thread."""
        self._driver.cancel_safe(timeout=5.0)

    def close(self) -> None:
        """Let it go; safe twice."""
        self._line, self._owed = [], []
        self.begun = None
        self._driver.close()


def _error(result: PGresult) -> psycopg.Error:
    error = error_from_result(result)
    if error.sqlstate is None and not isinstance(error, psycopg.OperationalError):
        # The library says so itself: the connection is over.
        return psycopg.OperationalError(str(error))
    return error
