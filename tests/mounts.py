"""Disks of a process's own: mounts that no other process sees, for root and for ordinary users.

`python mounts.py` exits with 0 where this system allows them.
"""

import ctypes
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 1 << 5, 1 << 12, 1 << 14, 1 << 18
KEPT = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
"""Flags of a mount that a user namespace may not drop, as statvfs names them and as mount does."""


def _call(done: int) -> None:
    if done != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def own_mounts() -> ctypes.CDLL:
    """Give this process mounts of its own, in a user namespace if it is not root's.

    It must not have threads yet.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    _call(libc.unshare(NEW_MOUNTS if user == 0 else NEW_MOUNTS | NEW_USERS))
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny", "ascii")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1", "ascii")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1", "ascii")
    _call(libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None))
    return libc


def mount_small_disk(folder: Path, size: int) -> None:
    """Put a disk of so many bytes, in memory, at a folder."""
    libc = own_mounts()
    _call(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()))


def mount_read_only(folder: Path) -> None:
    """Let nothing be written in a folder."""
    libc, place, found = own_mounts(), os.fsencode(folder), os.statvfs(folder).f_flag
    kept = sum(flag for shown, flag in KEPT.items() if found & shown)
    _call(libc.mount(place, place, None, BIND, None))
    _call(libc.mount(b"none", place, None, REMOUNT | BIND | READ_ONLY | kept, None))


@cache
def can_mount() -> bool:
    """Return whether this user may mount: root, and others where user namespaces are allowed."""
    if sys.platform != "linux":
        return False
    done = subprocess.run([sys.executable, "-IS", __file__], capture_output=True, check=False)
    return done.returncode == 0


if __name__ == "__main__":
    mount_small_disk(Path("/tmp"), 1 << 20)  # noqa: S108 - for this process alone
