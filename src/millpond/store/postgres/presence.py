"""Where processes of one host that use one server see each other: a private folder of their user.

Each holds a lock file there (sqlite/presence.py). A process on another host, or in a container that
does not share the folder, is not seen, and so never taken for gone: its lease tells.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from pathlib import Path

from millpond.store.sqlite.presence import AVAILABLE, Presence

log = logging.getLogger("millpond.postgres")


def presence_of(store: str) -> Presence | None:
    """Return who is there of the processes of this host and user; None where nobody can tell."""
    if not AVAILABLE:
        return None
    folder = _private_folder()
    if folder is None:
        return None
    return Presence(folder / hashlib.sha256(store.encode()).hexdigest()[:32])


def _private_folder() -> Path | None:
    """Return a folder that only this user can write, made if need be; None if there is none."""
    for folder in _candidates():
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
        except OSError as error:
            log.debug("%s cannot be used: %s", folder, error)
            continue
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if ours and not found.st_mode & 0o077:
            return folder
        log.warning("%s is not a private folder of this user (0700): it is not used", folder)
    log.warning("a killed worker of this host is found when its lease is over, and not before")
    return None


def _candidates() -> list[Path]:
    given = os.environ.get("XDG_RUNTIME_DIR")
    places = [Path(given) / "millpond"] if given else []
    return [*places, Path(tempfile.gettempdir()) / f"millpond-{os.geteuid()}"]
