"""Files beside a store: private to its writers, and refused if others made them.

A folder may be one that others can write, such as /tmp. They can then make a file there before us,
or a symbolic link to a file of ours. So whatever is found is opened without following links, and
it checks owner and mode on the descriptor, not on the name.

`shared` is the mode of the store itself: where its group (or any user) may write it, those may
also own files beside it.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path
from typing import NamedTuple

from millpond.core.log_fields import about
from millpond.errors import UnsafePlace

log = logging.getLogger("millpond.store")

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_HAS_OWNERS = hasattr(os, "geteuid")
_warned: set[Path] = set()
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Sharing(NamedTuple):
    """The users who may write a store, and so may own files beside it."""

    owner: int
    group: int
    mode: int

    def trusts(self, found: os.stat_result) -> bool:
        """Return whether this user or another writer of the store owns a file."""
        if found.st_uid in (0, os.geteuid(), self.owner) or self.mode & stat.S_IWOTH:
            return True
        return bool(self.mode & stat.S_IWGRP) and found.st_gid == self.group


def sharing_of(store: Path) -> Sharing:
    """Return who may write a store; only this user if it does not exist yet."""
    try:
        found = store.stat()
    except OSError:
        return Sharing(os.geteuid() if _HAS_OWNERS else 0, -1, 0o600)
    return Sharing(found.st_uid, found.st_gid, found.st_mode)


def check_place_of(store: Path) -> None:
    """Refuse a folder in which every user may replace files, and a foreign store in it.

    Where any user may make files, another user may have made the store, or a link by its name,
    before us: what we write would then be his to read and to change.

    A volume of a container is often open to all users (an emptyDir of Kubernetes has mode 0777),
    which are those who share it. It is taken with a warning, and a stranger's files are refused.
    """
    if not _HAS_OWNERS:
        return
    folder = store.absolute().parent
    place = folder.stat()
    if not place.st_mode & stat.S_IWOTH:
        return
    if not place.st_mode & stat.S_ISVTX:
        if not is_volume(folder):
            raise UnsafePlace(
                f"any user may replace files in {folder}, so {store} is not safe there: "
                f"chmod o-w {folder} (or chmod +t), or use a folder of its own",
                path=str(folder),
            )
        _warn(folder)
    try:
        found = store.lstat()
    except FileNotFoundError:
        return
    if found.st_uid not in (0, os.geteuid()):
        raise UnsafePlace(
            f"{store} belongs to user {found.st_uid}, and any user may make files in {folder}, so "
            "it is not trusted: use a folder that only the users of the store can write",
            path=str(store),
        )


def is_volume(folder: Path) -> bool:
    """Return whether something is mounted at a folder, as at a volume of a container."""
    if os.path.ismount(folder):
        return True
    try:
        # A folder of the same disk that is mounted here looks like any other.
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    at = os.path.realpath(folder)
    return any(at == line.split(" ")[4].replace("\\040", " ") for line in mounts)


def _warn(folder: Path) -> None:
    if folder not in _warned:
        _warned.add(folder)
        log.warning(
            "every user of the volume at %s may replace the store's files; unless only this "
            "application uses the volume: chmod o-w it, chmod +t it, or use a folder inside it",
            folder,
            extra=about("volume.shared"),
        )


def check(path: Path, sharing: Sharing) -> None:
    """Refuse a file or folder beside a store that another user made or could change."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    _check(path, found, sharing)


def opened(path: Path, flags: int, sharing: Sharing) -> int:
    """Open a file beside a store without following links, and check it; 0600 if new."""
    try:
        descriptor = os.open(path, flags | _NO_LINKS, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise _refused(path, "is a symbolic link") from error
        raise
    try:
        _check(path, os.fstat(descriptor), sharing)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def made_private(path: Path) -> bool:
    """Create an empty file with mode 0600; False if it exists."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS, 0o600))
    except FileExistsError:
        return False
    return True


def _check(path: Path, found: os.stat_result, sharing: Sharing) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _refused(path, "is a symbolic link")
    if not _HAS_OWNERS:
        return
    if not sharing.trusts(found):
        raise _refused(path, f"belongs to user {found.st_uid}, who may not write the store")
    if found.st_mode & _OTHERS_WRITE & ~sharing.mode:
        raise _refused(path, "may be written by users who may not write the store")


def _refused(path: Path, why: str) -> UnsafePlace:
    return UnsafePlace(
        f"{path} {why}, so it is not trusted: find out who made it, remove it, or keep the store "
        "in a folder that only its users can write",
        path=str(path),
    )
