"""Files beside the database: writable for exactly the writers of the database."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.store.private_files import check, opened, sharing_of

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("millpond.sqlite")

_OWNER_WRITES, _WRITES = 0o200, 0o222


def folder_beside(database: Path, ending: str) -> Path:
    """Create the folder `<database><ending>` if missing, and return it."""
    folder = database.absolute().with_name(database.name + ending)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        check(folder, sharing_of(database))
        if not folder.is_dir():
            raise
        return folder
    writers = _writers(database)
    give(folder, database, writers << 1 | writers | writers >> 1)
    return folder


def file_beside(database: Path, ending: str) -> int:
    """Open the empty file `<database><ending>`, creating it if missing; return its descriptor."""
    file = database.absolute().with_name(database.name + ending)
    try:
        return opened(file, os.O_RDWR, sharing_of(database))
    except FileNotFoundError:
        descriptor = opened(file, os.O_RDWR | os.O_CREAT, sharing_of(database))
        give(file, database)
        return descriptor


def give(file: Path, database: Path, rights: int | None = None) -> None:
    """Make a file writable for the writers of the database, as far as this user may."""
    writers = _writers(database)
    try:
        group = database.stat().st_gid
        if writers & 0o020 and file.stat().st_gid != group:
            os.chown(file, -1, group)
        file.chmod(writers << 1 | writers if rights is None else rights)
    except OSError as error:
        log.debug(
            "cannot change the permissions of %s: %s",
            file,
            error,
            extra=about("sidecar.permissions_kept", reason=str(error)),
        )


def _writers(database: Path) -> int:
    """Return who may write the database, as mode bits."""
    try:
        return (database.stat().st_mode | _OWNER_WRITES) & _WRITES
    except OSError:
        return _OWNER_WRITES
