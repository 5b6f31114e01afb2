"""A slow disk for a test server: each flush of its log takes some milliseconds longer (Linux).

The delay is a library that the server loads before all others (slow_disk.c). It is compiled when it
is first needed, into a temporary folder.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("slow_disk.c")

SETTINGS: Mapping[str, str] = {"fsync": "on", "wal_sync_method": "fdatasync"}
"""What a server needs so that its flushes are delayed at all."""


class NoCompiler(Exception):
    """There is no C compiler here, or it fails; the text says which."""


def environment(seconds: float) -> dict[str, str]:
    """Return the environment of a server whose flushes take so many seconds longer."""
    return {"LD_PRELOAD": str(library()), "SLOW_DISK_US": str(round(seconds * 1e6))}


def find_compiler() -> str | None:
    """Return the C compiler that can make a disk slow; None if this machine has none."""
    if not sys.platform.startswith("linux"):
        return None
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@functools.cache
def library() -> Path:
    """Compile the library, once per process; NoCompiler if that is not possible."""
    compiler = find_compiler()
    if compiler is None:
        raise NoCompiler(
            "a slow disk needs Linux and a C compiler (cc, gcc or clang): install one, for "
            "example the system's package gcc"
        )
    folder = Path(tempfile.mkdtemp(prefix="millpond-slow-disk-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)  # the server may run as another account
    made = folder / "slow_disk.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE), "-ldl"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - ours
    if done.returncode:
        raise NoCompiler(f"{compiler} cannot compile {SOURCE.name}: {done.stderr.strip()}")
    return made
