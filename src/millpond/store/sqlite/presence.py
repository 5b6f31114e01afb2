"""Presence: a live process holds a lock file; a free lock means that its process is dead.

A killed process does not deregister, and pids are used again. But the kernel frees the locks of a
process when it ends, however it ends. Each open store holds a lock on a file of its own in a folder
beside the database, so the others know at once, without asking the database.

The locks are those of `flock`, which belong to one opening of a file. The other kind is lost when
the process closes *any* descriptor of the file, were it only that of a backup in another thread:
then one that lives is taken for gone. These could at worst be kept by a forked child, which lets go
of them first thing; then one that is gone is taken for alive, until its leases are over.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
import weakref
from pathlib import Path
from urllib.parse import quote, unquote

from millpond.core.log_fields import about
from millpond.store.sqlite.sidecar_files import folder_beside, give

AVAILABLE = sys.platform != "win32"
"""Windows has no such locks: there, dead workers are found when their leases expire."""

if AVAILABLE:
    import fcntl

log = logging.getLogger("millpond.sqlite")

_FOLDER, _ENDING = "-alive", ".lock"
_UNFINISHED = "+"
"""The prefix of temporary files; no owner's file has it."""

_LEFT_OVER = 60.0
"""Seconds after which a temporary file is removed."""


class Presence:
    """Which processes that share one file are alive or dead. For any thread."""

    def __init__(self, path: Path) -> None:
        self._database = path
        self._folder = path.absolute().with_name(path.name + _FOLDER)
        self._own: dict[str, int] = {}
        _PRESENT.add(self)

    def appear(self, owner: str) -> None:
        """Hold the lock file of `owner`, until `leave` or the end of the process.

        Where that is not possible it is logged: if this process dies, the others find out when its
        leases are over.
        """
        if owner in self._own:
            return
        try:
            folder_beside(self._database, _FOLDER)
            self._clear()
            self._own[owner] = self._locked(self._file(owner))
        except OSError as error:
            log.warning(
                "no lock file for %s; if it is killed, its leases last until they expire: %s",
                owner,
                error,
                extra=about("presence.unavailable", reason=str(error)),
            )

    def leave(self, owner: str) -> None:
        """Remove the lock file, so that the process is not reported dead. Safe twice."""
        descriptor = self._own.pop(owner, None)
        if descriptor is not None:
            _remove(self._file(owner))  # first, so that no process ever sees it free
            os.close(descriptor)

    def gone(self) -> tuple[str, ...]:
        """Return the owners of dead processes: their lock is free."""
        found = [name for name in self._names() if not name.startswith(_UNFINISHED)]
        free = [name for name in found if _is_free(self._path(name))]
        return tuple(sorted(unquote(name.removesuffix(_ENDING)) for name in free))

    def is_alive(self, owner: str) -> bool:
        """Return whether a live process holds the lock file of `owner`."""
        file = self._file(owner)
        return os.path.exists(file) and not _is_free(file)  # noqa: PTH110 - a text, as all here

    def forget(self, owner: str) -> None:
        """Remove the lock file of a dead process; never of a live one."""
        file = self._file(owner)
        if _is_free(file):
            _remove(file)

    def _locked(self, file: str) -> int:
        """Create and lock the file before it gets its name, so that it is never seen unlocked."""
        unfinished = self._path(f"{_UNFINISHED}{secrets.token_hex(8)}{_ENDING}")
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            give(Path(unfinished), self._database)
            os.rename(unfinished, file)  # noqa: PTH104 - texts all along: they are asked for often
        except OSError:
            _remove(unfinished)
            os.close(descriptor)
            raise
        return descriptor

    def _clear(self) -> None:
        """Remove temporary files of processes that died while appearing."""
        long_ago = time.time() - _LEFT_OVER
        for name in self._names():
            file = self._path(name)
            # A young one is not even looked at: it might just be about to be locked.
            if name.startswith(_UNFINISHED) and _made_at(file) < long_ago and _is_free(file):
                _remove(file)

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - names are all that is wanted
        except OSError:
            return []
        return [name for name in names if name.endswith(_ENDING)]

    def _file(self, owner: str) -> str:
        return self._path(f"{quote(owner, safe='')}{_ENDING}")

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)  # noqa: PTH118


def _is_free(file: str) -> bool:
    """Whether the file is unlocked. In doubt it is locked."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock: two who look at the same moment do not take each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # One that has no name any more was left just now, and not lost.
        return os.fstat(descriptor).st_nlink > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _made_at(file: str) -> float:
    try:
        return os.stat(file).st_mtime  # noqa: PTH116
    except OSError:
        return time.time()


def _remove(file: str) -> None:
    try:
        os.unlink(file)  # noqa: PTH108
    except FileNotFoundError:
        pass
    except OSError as error:
        log.debug(
            "cannot remove lock file %s: %s",
            file,
            error,
            extra=about("presence.not_removed", reason=str(error)),
        )


_PRESENT: weakref.WeakSet[Presence] = weakref.WeakSet()


def _let_go_after_fork() -> None:
    """A forked child shares its parent's locks, and would keep them when the parent dies."""
    for presence in list(_PRESENT):
        while presence._own:  # noqa: SLF001 - our own, in a child that may not use it
            os.close(presence._own.popitem()[1])  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_after_fork)
