"""The store that tests of pools run on: in memory, or with MILLPOND_STORE=sqlite on a file each."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millpond.runtime.runtime import wall_clock
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Store
from millpond.testing.files import InlineStore

KIND = os.environ.get("MILLPOND_STORE", "memory")
ON_FILES = KIND == "sqlite"


class Files:
    """The files of one test, and the stores that were opened on them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: list[InlineStore] = []

    def fresh(self, clock: Callable[[], float]) -> InlineStore:
        """Return a store on a new file."""
        path = Path(tempfile.mkdtemp(dir=self._folder)) / "work.db"
        self._opened.append(InlineStore(path, clock))
        return self._opened[-1]

    def close(self) -> None:
        """Close what the test left open."""
        for store in self._opened:
            asyncio.run(store.close())


files: list[Files] = []
"""Those of the test that runs; none where stores are in memory."""


def fresh_store(*, clock: Callable[[], float] | None = None, **options: Any) -> Store:
    """Return an empty store of the kind that is tested, which follows the clock of the loop."""
    follow = clock or wall_clock(asyncio.get_running_loop())
    if files:
        return files[-1].fresh(follow)
    return MemoryStore(clock=follow, **options)
