"""Orphans: commands that outlived the `millpond run` that started them.

A ledger lists the process of each running command. A killed run leaves them listed. A resumed run
kills them first, so that no item runs twice at the same time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import time
from pathlib import Path

from millpond.cli.run.process import KILL_AFTER

_ENTRY = struct.Struct("<QQ")
"""A pid, and its start time in milliseconds since the machine was booted."""

_HEAD = 64

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)

CLOSE_ENOUGH = 500
"""Most milliseconds between the start of a process and its entry in the ledger."""

CHECK_EVERY = 0.02


class Ledger:
    """The running commands, in a mapped file: adding an entry needs no system call.

    Its content survives this process, however that ends, but not a reboot.
    """

    def __init__(self, path: Path, slots: int) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _NO_LINKS, 0o600)
        try:
            os.truncate(file, _HEAD + slots * _ENTRY.size)
            self._map = mmap.mmap(file, 0)
        finally:
            os.close(file)
        self._map[:_HEAD] = _boot()
        self._free = [_HEAD + slot * _ENTRY.size for slot in reversed(range(slots))]

    def enter(self, pid: int) -> int | None:
        """Add a process; return its slot, or None if the ledger is full."""
        if not self._free:
            return None
        slot = self._free.pop()
        _ENTRY.pack_into(self._map, slot, pid, _now())
        return slot

    def leave(self, slot: int | None) -> None:
        """Free the slot of a process that has ended."""
        if slot is not None:
            _ENTRY.pack_into(self._map, slot, 0, 0)
            self._free.append(slot)

    def close(self) -> None:
        """Close the file."""
        self._map.close()


def left_behind(path: Path) -> list[int]:
    """Return the process groups of a ledger that still run."""
    try:
        content = path.read_bytes()
    except OSError:
        return []
    if content[:_HEAD] != _boot() or not Path("/proc/self/stat").exists():
        return []
    entries = content[_HEAD : _HEAD + (len(content) - _HEAD) // _ENTRY.size * _ENTRY.size]
    return [pid for pid, since in _ENTRY.iter_unpack(entries) if pid and _is_the_same(pid, since)]


def end(groups: list[int]) -> None:
    """Send SIGTERM to process groups, and SIGKILL to those that do not end in time."""
    deadline = time.monotonic() + KILL_AFTER
    _signal(groups, signal.SIGTERM)
    while any(map(_is_there, groups)) and time.monotonic() < deadline:
        time.sleep(CHECK_EVERY)
    _signal(groups, signal.SIGKILL)


def _signal(groups: list[int], number: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_the_same(pid: int, since: int) -> bool:
    """Return whether a pid is still the process that was started then."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    # The program's name in parentheses may contain any character; the fields behind it not.
    fields = content.rpartition(")")[2].split()
    started = int(fields[19]) * 1_000 // os.sysconf("SC_CLK_TCK")
    return fields[0] != "Z" and abs(started - since) <= CLOSE_ENOUGH


def _now() -> int:
    """Return milliseconds since boot, sleep included."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return int(time.clock_gettime(clock) * 1_000)


def _boot() -> bytes:
    """Return the id of this boot."""
    try:
        content = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        content = b""
    return content.strip().ljust(_HEAD, b" ")[:_HEAD]
