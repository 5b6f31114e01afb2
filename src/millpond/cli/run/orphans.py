"""Orphans: commands that outlived the `millpond run` that started them.

A ledger has the process of each command at work. A run that was killed leaves them in
it; whoever goes on with that run ends them first, so that no item is at work twice.
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
"""A process, and when it was started, in milliseconds since the machine was."""

_HEAD = 64

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)

CLOSE_ENOUGH = 500
"""Milliseconds between when a process was started and when that was noted."""

LOOK_EVERY = 0.02


class Ledger:
    """The commands at work, in a file that is mapped: to note one is no call of the system.

    What is in it outlives this process, however that ends, but not the machine's next start.
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
        """Note a process; return the slot to leave, if there is one."""
        if not self._free:
            return None
        slot = self._free.pop()
        _ENTRY.pack_into(self._map, slot, pid, _now())
        return slot

    def leave(self, slot: int | None) -> None:
        """Note that the process of a slot has ended."""
        if slot is not None:
            _ENTRY.pack_into(self._map, slot, 0, 0)
            self._free.append(slot)

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()


def left_behind(path: Path) -> list[int]:
    """Return the process groups of a ledger that are still at work."""
    try:
        told = path.read_bytes()
    except OSError:
        return []
    if told[:_HEAD] != _boot() or not Path("/proc/self/stat").exists():
        return []
    entries = told[_HEAD : _HEAD + (len(told) - _HEAD) // _ENTRY.size * _ENTRY.size]
    return [pid for pid, since in _ENTRY.iter_unpack(entries) if pid and _is_the_same(pid, since)]


def end(groups: list[int]) -> None:
    """Ask process groups to end, and kill those that do not in time."""
    deadline = time.monotonic() + KILL_AFTER
    _signal(groups, signal.SIGTERM)
    while any(map(_is_there, groups)) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
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
    """Return whether a process is the one that was started then, and not a later one."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    # The name in parentheses may have anything in it; what follows has not.
    fields = told.rpartition(")")[2].split()
    started = int(fields[19]) * 1_000 // os.sysconf("SC_CLK_TCK")
    return fields[0] != "Z" and abs(started - since) <= CLOSE_ENOUGH


def _now() -> int:
    """Return milliseconds since the machine was started, its sleep included."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return int(time.clock_gettime(clock) * 1_000)


def _boot() -> bytes:
    """Return what is different after every start of the machine."""
    try:
        told = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        told = b""
    return told.strip().ljust(_HEAD, b" ")[:_HEAD]
