"""Presence on one host: lock files in a private folder of the user.

Each process holds a lock file there (sqlite/presence.py). One on another host, or in a container
that does not share the folder, has no file here and is never taken for dead before its lease
expires.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from pathlib import Path

from millpond.core.log_fields import about
from millpond.store.sqlite.presence import AVAILABLE, Presence

log = logging.getLogger("millpond.postgres")


def presence_of(store: str) -> Presence | None:
    """Return the presence of processes of this host and user; None without a private folder."""
    if not AVAILABLE:
        return None
    folder = _private_folder()
    if folder is None:
        return None
    return Presence(folder / hashlib.sha256(store.encode()).hexdigest()[:32])


def _private_folder() -> Path | None:
    """Return a folder that only this user can write, created if needed; None if impossible."""
    for folder in _candidates():
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
        except OSError as error:
            log.debug(
                "cannot use folder %s for lock files: %s",
                folder,
                error,
                extra=about("presence.folder_unusable", reason=str(error)),
            )
            continue
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if ours and not found.st_mode & 0o077:
            return folder
        log.warning(
            "not using %s for lock files: it is not a private folder (0700) of this user",
            folder,
            extra=about("presence.folder_not_private"),
        )
    log.warning(
        "no folder for lock files: a killed worker of this host is detected when its lease expires",
        extra=about("presence.unavailable"),
    )
    return None


def _candidates() -> list[Path]:
    given = os.environ.get("XDG_RUNTIME_DIR")
    places = [Path(given) / "millpond"] if given else []
    return [*places, Path(tempfile.gettempdir()) / f"millpond-{os.geteuid()}"]
