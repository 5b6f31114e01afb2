"""A slow disk for a test server: each flush of its log takes some milliseconds longer (Linux).

The delay is a library that the server loads before all others (slow_disk.c).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from verify.servers.compiled import compiled

SOURCE = Path(__file__).with_name("slow_disk.c")

SETTINGS: Mapping[str, str] = {"fsync": "on", "wal_sync_method": "fdatasync"}
"""What a server needs so that its flushes are delayed at all."""


def environment(seconds: float) -> dict[str, str]:
    """Return the environment of a server whose flushes take so many seconds longer."""
    library = compiled(SOURCE, "-shared", "-fPIC", "-ldl")
    return {"LD_PRELOAD": str(library), "SLOW_DISK_US": str(round(seconds * 1e6))}


@contextmanager
def without_delay(data: Path) -> Iterator[None]:
    """Let flushes take no longer than usual until the block ends; `data`: the server's data."""
    sign = data / "no_delay"
    sign.touch()
    try:
        yield
    finally:
        sign.unlink()
