"""SQLite stores for tests: every verb on the caller's thread, as virtual time needs it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class InlineStore(SqliteStore):
    """A store of one process on a file: no threads, no sockets, no lock files.

    Several of them on one file are several processes. They hear nothing of each other and find
    out by asking; who died is found by its lease. One of them leads maintenance.
    """

    elects = True
    renewer: Any = None
    listen: Any = None

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(path, durability="normal", clock=clock, inline=True)


@contextlib.contextmanager
def fresh_file() -> Iterator[Path]:
    """Yield where a new database may be made; in memory where the system has such a place."""
    fast = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
    folder = Path(tempfile.mkdtemp(prefix="millpond-", dir=fast if fast.is_dir() else None))
    try:
        yield folder / "work.db"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
