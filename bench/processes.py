"""What the system knows of other processes: memory, CPU time, reads, descriptors. Linux only."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


class Use(NamedTuple):
    """What a process and all it has started use, or have used so far."""

    resident: int
    """Bytes of memory now."""
    cpu: float
    """Seconds of CPU time so far."""
    reads: int
    """Read calls so far."""
    writes: int
    """Write calls so far."""
    wakes: int
    """How often a thread of it slept and was woken so far."""
    descriptors: int
    """Open files, sockets and pipes now."""


def use_of(process: int) -> Use:
    """Return what a process and all it has started use."""
    each = [_one(pid) for pid in tree(process)]
    return Use(*(sum(column) for column in zip(*each, strict=True)))


def cpu_of(process: int) -> float:
    """Return the seconds of CPU time of a process and all it ever started, ended or not."""
    total = 0
    for pid in tree(process):
        try:
            # Its own, and that of those it has seen end.
            total += sum(map(int, _stat(pid)[11:15]))
        except OSError:
            continue
    return total / _TICK


def processor_time(process: int) -> float:
    """Return the seconds that all threads of a process have used, to the nanosecond; 0 = gone."""
    try:
        return time.clock_gettime((~process << 3) | 2)
    except OSError:
        return 0.0


def tree(process: int) -> list[int]:
    """Return a process and all that descend from it."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                children[int(_stat(int(entry.name))[1])].append(int(entry.name))
            except OSError:
                continue
    found, ahead = [], [process]
    while ahead:
        found.append(one := ahead.pop())
        ahead += children[one]
    return found


def _stat(process: int) -> list[str]:
    """Return the fields of its stat after the name: state, parent and so on."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _one(process: int) -> Use:
    at = Path(f"/proc/{process}")
    stat = _stat(process)
    counts = dict(line.split(": ") for line in (at / "io").read_text().splitlines())
    return Use(
        resident=int((at / "statm").read_text().split()[1]) * _PAGE,
        cpu=(int(stat[11]) + int(stat[12])) / _TICK,
        reads=int(counts["syscr"]),
        writes=int(counts["syscw"]),
        wakes=sum(_wakes(thread) for thread in (at / "task").iterdir()),
        descriptors=sum(1 for _ in (at / "fd").iterdir()),
    )


def _wakes(thread: Path) -> int:
    for line in (thread / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "voluntary_ctxt_switches":
            return int(value)
    return 0
