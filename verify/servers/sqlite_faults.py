"""Faults of a database: connections on which a certain call fails, in the manner of SQLite's tests.

A `Plan` counts the calls of all connections made from it. The call it names fails: before it was
carried out, after it was, or in such a way that SQLite has undone the transaction by itself, as it
does when a disk is full. Raise the number until nothing fails any more, and every call was there.

    plan = Plan()
    store = SqliteStore(path, factory=plan.factory)
    plan.arm(7, how="after", code=sqlite3.SQLITE_IOERR)
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from millpond.store.sqlite.connect import Connection

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")

How: TypeAlias = Literal["before", "after", "undone"]
HOWS: tuple[How, ...] = ("before", "after", "undone")

CODES: dict[str, int] = {
    "SQLITE_IOERR": sqlite3.SQLITE_IOERR,
    "SQLITE_FULL": sqlite3.SQLITE_FULL,
    "SQLITE_BUSY": sqlite3.SQLITE_BUSY,
    "SQLITE_NOMEM": sqlite3.SQLITE_NOMEM,
    "SQLITE_CORRUPT": sqlite3.SQLITE_CORRUPT,
}


def may_have_happened(statement: str, name: str) -> bool:
    """Return whether SQLite might say this of a statement that it has carried out.

    A COMMIT is refused for a full disk before anything of it counts, and whatever was busy was
    not begun.
    """
    return name != "SQLITE_BUSY" and (statement, name) != ("COMMIT", "SQLITE_FULL")


def error_named(name: str) -> Exception:
    """Return the error that Python raises for a code of SQLite."""
    if name == "SQLITE_NOMEM":
        return MemoryError()
    kind = sqlite3.DatabaseError if name == "SQLITE_CORRUPT" else sqlite3.OperationalError
    error = kind("made to fail")
    error.sqlite_errorcode = CODES[name]
    error.sqlite_errorname = name
    return error


class Plan:
    """Which call fails, how, and how many in a row; it counts from when it was armed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed = False
        self._at, self._times = 0, 0
        self._how: How = "before"
        self._name = "SQLITE_IOERR"
        self._only: str | None = None
        self._chance, self._dice = 0.0, random.Random(0)
        self._names: Sequence[str] = ()
        self.calls = 0
        """How many there were since it was armed."""
        self.failed: list[str] = []
        """The statements that were made to fail."""
        self.factory = factory_of(self)
        """What `connect` makes connections of."""

    def arm(
        self,
        at: int = 1,
        *,
        how: How = "before",
        name: str = "SQLITE_IOERR",
        times: int = 1,
        only: str | None = None,
    ) -> None:
        """Let the call number `at` from now fail, and as many behind it; `only` one statement's."""
        with self._lock:
            self.disarm()
            self._armed, self._only = True, only
            self._at, self._times, self._how, self._name = at, times, how, name

    def arm_at_random(self, chance: float, seed: int, names: Sequence[str] = tuple(CODES)) -> None:
        """Let calls fail with a chance, each in any way."""
        with self._lock:
            self.disarm()
            self._at, self._times, self._only = 0, 0, None
            self._armed, self._chance, self._names = True, chance, names
            self._dice = random.Random(seed)

    def disarm(self) -> None:
        """Let everything succeed."""
        self._armed, self._chance, self.calls, self.failed = False, 0.0, 0, []

    def call(self, connection: sqlite3.Connection, what: str, carry_out: Callable[[], T]) -> T:
        """Carry out a call, unless it is the one."""
        with self._lock:
            counts = self._only in (None, what)
            self.calls += counts
            fails = counts and self._armed and self._at <= self.calls < self._at + self._times
            how, name = self._how, self._name
            if self._chance and self._dice.random() < self._chance:
                fails, how, name = True, self._dice.choice(HOWS), self._dice.choice(self._names)
            if fails:
                self.failed.append(what)
        if not fails or what == "ROLLBACK":
            # In WAL mode SQLite undoes a transaction without asking the disk.
            return carry_out()
        if how == "after" and may_have_happened(what, name):
            carry_out()
        elif how == "undone" and connection.in_transaction and name != "SQLITE_BUSY":
            sqlite3.Cursor(connection).execute("ROLLBACK")
        raise error_named(name)


def factory_of(plan: Plan) -> type[Connection]:
    """Return a kind of connection whose calls a plan hears of."""

    class FaultyCursor(sqlite3.Cursor):
        """A cursor whose calls may fail."""

        _what = ""

        def execute(self, statement: str, *args: Any) -> Self:  # noqa: ANN401 - as sqlite3's
            self._what = statement
            perform = super().execute
            return plan.call(self.connection, statement, lambda: perform(statement, *args))

        def executemany(self, statement: str, rows: Iterable[Any], /) -> Self:
            self._what = statement
            perform = super().executemany
            return plan.call(self.connection, statement, lambda: perform(statement, rows))

        def fetchone(self) -> Any:  # noqa: ANN401 - as sqlite3's
            if self.description is None:
                return None  # a statement without rows: SQLite is not asked
            return plan.call(self.connection, f"fetch of {self._what}", super().fetchone)

        def fetchall(self) -> list[Any]:
            return plan.call(self.connection, f"fetch of {self._what}", super().fetchall)

        def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
            return iter(self.fetchall())

    class FaultyConnection(Connection):
        """A connection whose calls may fail."""

        def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:  # noqa: ANN401
            return self.cursor(FaultyCursor).execute(statement, *args)

        def executemany(self, statement: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
            return self.cursor(FaultyCursor).executemany(statement, rows)

    return FaultyConnection
