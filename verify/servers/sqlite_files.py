"""SQLite stores for tests: every verb on the caller's thread, as virtual time needs it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.store.protocol import Store
from millpond.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millpond.store.view import View


class InlineStore(SqliteStore):
    """A store of one process on a file: no threads, no sockets, no lock files.

    Several of them on one file are several processes. They hear nothing of each other and find
    out by asking; who died is found by its lease. One of them leads maintenance.
    """

    elects = True
    renewer: Any = None
    listen: Any = None

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(path, durability="normal", clock=clock, inline=True)


class TakingTurns(Store):
    """Several stores on one file: each verb is carried out by the next of them."""

    def __init__(self, stores: Sequence[Store], *, verbs_each: int) -> None:
        self._stores = stores
        self._turns = cycle([store for store in stores for _ in range(verbs_each)])

    @property
    def view(self) -> View:
        """The reading side of the first of them."""
        return self._stores[0].view

    async def submit(self, *arguments: Any, **moment: Any) -> Any:  # noqa: ANN401 - passed on as it is
        """Pass it on."""
        return await next(self._turns).submit(*arguments, **moment)

    async def lease(self, *arguments: Any, **moment: Any) -> Any:  # noqa: ANN401 - passed on as it is
        """Pass it on."""
        return await next(self._turns).lease(*arguments, **moment)

    async def renew(self, *arguments: Any, **moment: Any) -> Any:  # noqa: ANN401 - passed on as it is
        """Pass it on."""
        return await next(self._turns).renew(*arguments, **moment)

    async def settle(self, *arguments: Any, **moment: Any) -> Any:  # noqa: ANN401 - passed on as it is
        """Pass it on."""
        return await next(self._turns).settle(*arguments, **moment)

    async def recover(self, *arguments: Any, **moment: Any) -> Any:  # noqa: ANN401 - passed on as it is
        """Pass it on."""
        return await next(self._turns).recover(*arguments, **moment)

    async def control(self, *arguments: Any, **moment: Any) -> Any:  # noqa: ANN401 - passed on as it is
        """Pass it on."""
        return await next(self._turns).control(*arguments, **moment)

    async def close(self) -> None:
        """Close all of them."""
        for store in self._stores:
            await store.close()


@contextlib.contextmanager
def fresh_file() -> Iterator[Path]:
    """Yield where a new database may be made; in memory where the system has such a place."""
    fast = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
    folder = Path(tempfile.mkdtemp(prefix="millpond-", dir=fast if fast.is_dir() else None))
    try:
        yield folder / "work.db"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
