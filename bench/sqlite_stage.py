"""Where bench/sqlite.py has its contenders act: each in processes of its own, on a fresh file."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import actors
from actors import HERE, Answer, Director
from contender import Contender


class Actor(actors.Actor):
    """A process that acts on a file."""

    def __init__(self, contender: Contender, act: str, path: Path, **given: object) -> None:
        command = [
            *(sys.executable, str(HERE / "sqlite_acts.py")),
            *(contender.name, act, str(path), json.dumps(given)),
        ]
        super().__init__(f"{contender.name}, {act}", command)


def act(contender: Contender, name: str, path: Path, **given: object) -> Answer:
    """Have one process do one act, and return its answer."""
    with Actor(contender, name, path, **given) as actor:
        return actor.ready().go().answer()


@dataclass
class Stage(Director):
    """A disk on which every contender has files of its own."""

    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _filled: dict[str, Path] = field(default_factory=dict)

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        """Give the path of a file that is not there yet; all beside it is removed afterwards."""
        folder = self.folder / str(next(self._numbers))
        folder.mkdir()
        try:
            yield folder / "bench.db"
        finally:
            shutil.rmtree(folder)

    @contextmanager
    def filled(self, contender: Contender, count: int, **given: object) -> Iterator[Path]:
        """Give the path of a file with tasks queued: filled once, copied for each use."""
        name = f"{contender.name} {count} {json.dumps(given, sort_keys=True)}"
        if name not in self._filled:
            folder = self.folder / str(next(self._numbers))
            folder.mkdir()
            answer = act(contender, "fill", folder / "bench.db", count=count, **given)
            assert answer["stored"] == count, answer
            self._filled[name] = folder
        with self.fresh() as path:
            for file in self._filled[name].iterdir():
                # Locks and sockets beside the file belong to processes that are gone.
                if file.name in ("bench.db", "bench.db-wal"):
                    shutil.copy(file, path.parent / file.name)
            # What the kernel still has to write is not to be written while others are measured.
            os.sync()
            yield path

    def forget(self) -> None:
        """Remove the filled file: a million tasks take room."""
        for folder in self._filled.values():
            shutil.rmtree(folder)
        self._filled.clear()
