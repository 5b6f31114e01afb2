"""An application whose workers and submitters reach the store by ways of their own."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from millpond import Millpond, Retry
from millpond.pool.internals import internals_of
from millpond.store.postgres.connect import PATIENCE, Patience
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import address_of

IMPATIENT = Patience(connect=2.0, lock=3.0, statement=0.7, idle=3.0, turn=2.0, network=0.3)
"""One second without a word, and a server is given up."""


class Shop:
    """An application of one process; its handlers count how often they ran."""

    def __init__(
        self,
        url: str,
        *,
        work: bool = False,
        lease: float = 30.0,
        patience: Patience = PATIENCE,
    ) -> None:
        self.runs: Counter[int] = Counter()
        self.during: Callable[[int], None] = lambda _: None
        """Called by every handler with its number."""
        self.mp = Millpond(url, work=work, lease=lease)
        internals_of(self.mp).owner.make_store = self._opened
        self._url = url
        self._patience = patience
        self.pool = self.mp.pool("jobs", max_concurrent=4, retry=Retry(attempts=9, initial=0.05))

        @self.pool.task
        async def job(number: int) -> int:
            self.runs[number] += 1
            self.during(number)
            return 2 * number

        self.job: Any = job

    def _opened(self) -> PostgresStore:
        return PostgresStore(
            address_of(self._url), owner=f"shop {id(self)}", patience=self._patience
        )

    async def completed(self) -> int:
        """How many tasks have completed; none waits, and none failed."""
        seen = await self.pool.snapshot()
        assert (0, 0, 0) == (seen.queued, seen.running, seen.failed)
        return seen.completed
