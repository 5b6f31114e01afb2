"""Checkpoints: what commits wrote to the WAL is carried over into the database itself.

SQLite would do it at some commit of whichever connection comes along, several at once if it so
happens. Ours do not (`wal_autocheckpoint=0`): old SQLite releases can damage a database in a rare
race between a checkpoint and a writer that starts the WAL anew. So a checkpoint is done in a
writer's turn, by a holder of the writers' lock, and always as TRUNCATE, which keeps SQLite's write
lock all the while. Never two at once, never beside a writer of ours.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("millpond.sqlite")

LARGE = 4 * 1024 * 1024
"""Bytes of WAL that are worth a checkpoint."""

HUGE = 64 * 1024 * 1024
"""Bytes of WAL that are worth making readers and writers wait for a while."""

_WAIT_FOR_READERS, _WAIT_LONG = 0.05, 1.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0


class Checkpointer:
    """Decides when a checkpoint is due, and does it; one per writing thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wal = f"{os.fspath(path)}-wal"
        self._not_before = 0.0
        self._pause = _SHORTEST_PAUSE
        self._told = False

    def due(self) -> bool:
        """Whether the WAL is large, and the last try not just refused; costs one system call."""
        return self._size() >= LARGE and time.monotonic() >= self._not_before

    def checkpoint(self, connection: sqlite3.Connection) -> bool:
        """Carry everything over and empty the WAL; the caller holds the writers' lock.

        False if a reader would not leave the WAL: what could be carried over is, and it is tried
        again later, ever more rarely.
        """
        size = self._size()
        if size < LARGE:
            return True  # another process was quicker
        patience = _WAIT_FOR_READERS if size < HUGE else _WAIT_LONG
        try:
            connection.execute(f"PRAGMA busy_timeout={round(patience * 1000)}")
            try:
                busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.execute("PRAGMA busy_timeout=0")
        except sqlite3.Error as error:
            log.warning("a checkpoint of %s failed: %s", self._path, error)
            busy = 1
        self._note(emptied=not busy, size=size)
        return not busy

    def _note(self, *, emptied: bool, size: int) -> None:
        if emptied:
            self._pause, self._not_before, self._told = _SHORTEST_PAUSE, 0.0, False
            return
        self._not_before = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        if size >= HUGE and not self._told:
            self._told = True
            log.warning(
                "the WAL of %s has %d MiB and cannot be emptied: some connection has been "
                "reading for long; end its transaction",
                self._path,
                size // 2**20,
            )

    def _size(self) -> int:
        try:
            return os.stat(self._wal).st_size  # noqa: PTH116 - a Path per commit is a waste
        except OSError:
            return 0
