"""Notice changed Python files, for `--reload`: poll their times and sizes.

Polling needs no package, and it also works on volumes of containers, which send no events.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUFFIXES = (".py", ".toml", ".env")
"""The files that a reload is for."""

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
"""Folders that are not the application's own code. Hidden folders are skipped too."""

Stamp = tuple[int, int]


class FileWatcher:
    """The files beneath some folders, as they were at the last look."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._known = dict(self._stamps())

    def changed(self) -> list[Path]:
        """Return the files that are new, changed or gone since the last call."""
        now = dict(self._stamps())
        before, self._known = self._known, now
        return sorted(
            path for path in before.keys() | now.keys() if before.get(path) != now.get(path)
        )

    def _stamps(self) -> Iterator[tuple[Path, Stamp]]:
        for folder in self._folders:
            for name, folders, files in os.walk(folder):
                folders[:] = [one for one in folders if _is_code(Path(name) / one)]
                for file in files:
                    if file.endswith(SUFFIXES):
                        yield from _stamp(Path(name) / file)


def _is_code(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in SKIPPED:
        return False
    return not (folder / "pyvenv.cfg").exists()


def _stamp(path: Path) -> Iterator[tuple[Path, Stamp]]:
    try:
        found = path.stat()
    except OSError:
        return  # An editor replaced it just now.
    yield path, (found.st_mtime_ns, found.st_size)
