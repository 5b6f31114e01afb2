"""Programs and libraries in C that tests and benchmarks need, compiled when first used (Linux)."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


class NoCompiler(Exception):
    """There is no C compiler here, or it fails; the text says which."""


def find_compiler() -> str | None:
    """Return the C compiler; None if this machine has none, or is not Linux."""
    if not sys.platform.startswith("linux"):
        return None
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@functools.cache
def compiled(source: Path, *options: str) -> Path:
    """Compile a file, once per process, into a temporary folder; NoCompiler if not possible."""
    compiler = find_compiler()
    if compiler is None:
        raise NoCompiler(
            f"{source.name} needs Linux and a C compiler (cc, gcc or clang): install one, for "
            "example the system's package gcc"
        )
    folder = Path(tempfile.mkdtemp(prefix=f"millpond-{source.stem}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)  # the server may run as another account
    made = folder / source.stem
    command = [compiler, "-O2", "-o", str(made), str(source), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - ours
    if done.returncode:
        raise NoCompiler(f"{compiler} cannot compile {source.name}: {done.stderr.strip()}")
    return made
