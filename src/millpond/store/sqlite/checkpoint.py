"""Checkpoints: copy the WAL into the database, and empty it.

SQLite would do it at some commit of whichever connection comes along, several at once if it so
happens. Ours do not (`wal_autocheckpoint=0`): old SQLite releases can damage a database in a rare
race between a checkpoint and a writer that restarts the WAL. So a checkpoint is done in a
writer's turn, by a holder of the writers' lock, and always as TRUNCATE, which keeps SQLite's write
lock all the while. Never two at once, never beside a writer of ours.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.store.sqlite.errors import DATABASE_ERRORS

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

log = logging.getLogger("millpond.sqlite")

LARGE = 4 * 1024 * 1024
"""The size of the WAL, in bytes, for a checkpoint."""

HUGE = 64 * 1024 * 1024
"""The size of the WAL, in bytes, for a checkpoint that makes others wait."""

_WAIT, _WAIT_LONG = 0.1, 1.0
"""Seconds to wait for readers in all, for a large and for a huge WAL."""

_WAIT_ONCE = 0.005
"""Seconds of a single try. SQLite looks where the readers stand when it begins, and then waits for
places that readers who come later may have taken: a reader without a pause holds up one long
try for ever, and a few short ones not at all."""

_AGAIN_AFTER = 10.0
"""Seconds before a refused checkpoint is retried although the WAL has hardly grown."""


class Checkpointer:
    """Decides when a checkpoint is due, and does it; one per writing thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wal = f"{os.fspath(path)}-wal"
        self._next_size = LARGE
        self._next_time = 0.0
        self._logged = False

    def due(self) -> bool:
        """Whether the WAL is large, and the last try not just refused; costs one system call."""
        size = self._size()
        if size < LARGE:
            return False
        return size >= self._next_size or time.monotonic() >= self._next_time

    def checkpoint(self, connection: sqlite3.Connection) -> bool:
        """Copy and empty the WAL; the caller holds the writers' lock.

        False if a reader would not leave the WAL: what could be carried over is, and it is tried
        again when the WAL has grown by some more.
        """
        size = self._size()
        if size < LARGE:
            return True  # another process was quicker
        try:
            connection.execute(f"PRAGMA busy_timeout={round(_WAIT_ONCE * 1000)}")
            try:
                emptied = self._insist(connection, _WAIT if size < HUGE else _WAIT_LONG)
            finally:
                connection.execute("PRAGMA busy_timeout=0")
        except DATABASE_ERRORS as error:
            log.warning(
                "a checkpoint of %s failed: %s",
                self._path,
                error,
                extra=about("checkpoint.failed", reason=str(error)),
            )
            emptied = False
        self._note(emptied=emptied, size=size)
        return emptied

    def _insist(self, connection: sqlite3.Connection, patience: float) -> bool:
        until = time.monotonic() + patience
        while True:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:
                return True
            if time.monotonic() >= until:
                return False

    def _note(self, *, emptied: bool, size: int) -> None:
        if emptied:
            self._next_size, self._logged = LARGE, False
            return
        self._next_size = size + max(LARGE, size // 4)
        self._next_time = time.monotonic() + _AGAIN_AFTER
        if size >= HUGE and not self._logged:
            self._logged = True
            log.warning(
                "the WAL of %s has %d MiB and cannot be emptied: a connection has held a read "
                "transaction open for long; end it",
                self._path,
                size // 2**20,
                extra=about("wal.not_emptied"),
            )

    def _size(self) -> int:
        try:
            return os.stat(self._wal).st_size  # noqa: PTH116 - a Path per commit is a waste
        except OSError:
            return 0
