"""The SQLite store: what differs from other SQL stores."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.store.clock import ForwardClock
from millpond.store.private_files import check_place_of
from millpond.store.shared import SharedStore
from millpond.store.sql.reader import ReadConnection
from millpond.store.sql.store import SqlStore
from millpond.store.sqlite.caller_transaction import driver_connection, joined
from millpond.store.sqlite.connect import Connection, connect, dispose, is_another
from millpond.store.sqlite.dialect import SQLITE
from millpond.store.sqlite.errors import DATABASE_ERRORS, is_poisonous, translated
from millpond.store.sqlite.handler_connection import SqliteHandlerConnection
from millpond.store.sqlite.migrate import migrate, must_be_there
from millpond.store.sqlite.own_transaction import refuse_inside_own_transaction
from millpond.store.sqlite.presence import AVAILABLE, Presence
from millpond.store.sqlite.transactions import SqliteTransactor
from millpond.store.sqlite.wake import SqliteHintChannel

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Self

    from millpond.core.spec import PoolSpec
    from millpond.store.protocol import Batch, SubmitAnswer
    from millpond.store.sql.unit_of_work import SqlTables
    from millpond.store.sqlite.connect import Durability


log = logging.getLogger("millpond.sqlite")

_OFF = (
    "the clock of this process (store %s) is %.0f s ahead of the kernel's clock; using the "
    "kernel's. Find what sets it (faketime, a patched time.time)"
)


_READ_ONLY = "PRAGMA query_only=ON"


class SqliteStore(SqlStore["sqlite3.Connection", SqliteHandlerConnection], SharedStore):
    """One file that many processes of one machine share.

    `inline=True` does every verb on the caller's thread: for tests whose time stands still while
    they wait.
    """

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = "full",
        may_migrate: bool = True,
        clock: Callable[[], float] = time.time,
        owner: str = "",
        inline: bool = False,
        factory: type[Connection] = Connection,
    ) -> None:
        # Where it is now, and by its own name: connections are opened later, too, from whatever
        # folder the process is in by then, and SQLite names its WAL after the file behind a link.
        if path.is_symlink():
            check_place_of(path)
        path = self._path = Path(os.path.realpath(path))
        if not may_migrate:
            must_be_there(path)
        # Only the first makes the file: later ones would make an empty file where one was removed.
        first = connect(path, durability=durability, factory=factory)
        self._open = partial(connect, path, durability=durability, factory=factory, create=False)
        try:
            migrate(first, path, allowed=may_migrate)
            first.execute(_READ_ONLY)
        except BaseException as error:
            first.close()
            if isinstance(error, DATABASE_ERRORS):
                raise translated(error, path) from error
            raise
        if isinstance(clock, ForwardClock):
            clock.is_doubtful()  # one that is this process's alone is corrected before it is used
            if clock.off:
                log.error(_OFF, path, clock.off, extra=about("clock.off"))
        # Where a system has no such sockets, the processes poll.
        sends_hints = bool(owner) and not inline and hasattr(socket, "AF_UNIX")
        super().__init__(
            str(path),
            SQLITE,
            ReadConnection(
                first,
                self._open_to_read,
                dispose=partial(dispose, path=path),
                is_over=self._is_replaced,
                errors=DATABASE_ERRORS,
                is_lost=is_poisonous,
                translated=partial(translated, path=path),
            ),
            clock=clock,
            wakes=SqliteHintChannel(path, owner) if sends_hints else None,
            inline=inline,
        )
        self.presence = Presence(path) if AVAILABLE and not inline else None
        """The live processes of this host; None on Windows."""

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        owner: str = "",
        durability: Durability = "full",
        migrate: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Open the file in another thread: it may have to wait for others."""
        made = partial(
            cls, path, durability=durability, may_migrate=migrate, clock=clock, owner=owner
        )
        return await asyncio.get_running_loop().run_in_executor(None, made)

    def submit_within(
        self,
        connection: object,
        batches: Sequence[Batch],
        *,
        declare: Sequence[PoolSpec] = (),
        now: float | None = None,
        entropy: int | None = None,
    ) -> tuple[SubmitAnswer, sqlite3.Connection]:
        """Accept batches inside the open transaction of a caller's connection.

        In the caller's thread; pools that the file may not know are declared with them. Return the
        driver's connection, too: its `in_transaction` turns False when the transaction is over.
        """
        self._must_be_open()
        inside = driver_connection(connection, self._path)
        with joined(connection, self._path) as cursors:
            return self._submit_over(cursors, batches, declare, now, entropy), inside

    def check_caller(self) -> None:
        """Raise StoreLocked if the calling thread has a transaction of Django's open here."""
        refuse_inside_own_transaction(self._path)

    # What SQLite does its own way

    def _transactor(
        self, make_unit: Callable[[sqlite3.Connection], SqlTables]
    ) -> SqliteTransactor[SqlTables]:
        return SqliteTransactor(self._path, self._open, make_unit)

    def _open_to_read(self) -> Connection:
        connection = self._open()
        try:
            connection.execute(_READ_ONLY)
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_replaced(self, connection: sqlite3.Connection) -> bool:
        assert isinstance(connection, Connection)  # noqa: S101 - `connect` makes no other
        return is_another(connection.file, self._path)

    def _connected(self) -> AbstractContextManager[sqlite3.Connection]:
        return closing(self._open())

    def _is_alive(self, unit: SqlTables, owner: str, renewed: float) -> bool:
        del unit, renewed
        return self.presence is not None and self.presence.is_alive(owner)

    def _version_of(self, connection: sqlite3.Connection) -> int:
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    def _lend(self, connection: sqlite3.Connection) -> SqliteHandlerConnection:
        return SqliteHandlerConnection(connection)
