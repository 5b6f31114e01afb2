"""Poll the pools of a store, and compute rates from poll to poll, for `millpond top`."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from millpond.cli.json_shapes import pool_json

if TYPE_CHECKING:
    from millpond.cli.json_shapes import Facts
    from millpond.cli.open_store import OpenStore

WINDOW = 5
"""Rates are computed over this many polls."""

SOONEST = 0.3
"""Shortest time in seconds between two polls that count for a rate."""

REMEMBERED = 60
"""How many past rates are kept for drawing."""

_ENDED = ("completed", "failed", "cancelled", "rejected")


class Rates(msgspec.Struct, frozen=True):
    """Tasks submitted, completed and failed per second."""

    submitted: float = 0.0
    completed: float = 0.0
    failed: float = 0.0


class PoolHistory:
    """One pool over several polls."""

    def __init__(self) -> None:
        self.now: Facts = {}
        self.lanes: list[Facts] = []
        self._polls: deque[tuple[float, Facts]] = deque(maxlen=WINDOW + 1)
        self.past: deque[float] = deque(maxlen=REMEMBERED)
        """Completed per second, from poll to poll."""

    def add(self, at: float, facts: Facts) -> None:
        """Add a poll. One that follows at once, after a key press, does not count for rates."""
        self.now = facts
        if self._polls:
            before, old = self._polls[-1]
            if at - before < SOONEST:
                return
            self.past.append(_per_second(at - before, facts["completed"] - old["completed"]))
        self._polls.append((at, facts))

    @property
    def rates(self) -> Rates:
        """Rates over the latest polls."""
        (first, old), (last, new) = self._polls[0], self._polls[-1]
        return Rates(
            _per_second(last - first, _ever(new) - _ever(old)),
            _per_second(last - first, new["completed"] - old["completed"]),
            _per_second(last - first, new["failed"] - old["failed"]),
        )


def _per_second(seconds: float, count: int) -> float:
    return max(count, 0) / seconds if seconds > 0 else 0.0


def _ever(pool: Facts) -> int:
    """Return how many tasks were ever submitted to a pool."""
    return sum(pool[name] for name in (*_ENDED, "running", "queued"))


class PoolPoller:
    """All pools over several polls."""

    def __init__(self, store: OpenStore, names: tuple[str, ...]) -> None:
        self._store = store
        self._names = names
        self.pools: dict[str, PoolHistory] = {}
        self.workers = 0
        self.at = 0.0

    async def poll(self, with_lanes: str | None = None) -> None:
        """Read all pools, and the lanes of one of them."""
        found: dict[str, PoolHistory] = {}
        for name in await self._store.pools(self._names):
            self.at = self._store.now()
            view = await self._store.view.pool(name, now=self.at)
            if view is None:
                continue
            seen = found[name] = self.pools.get(name) or PoolHistory()
            lanes = await self._store.view.lanes(name) if name == with_lanes else ()
            seen.lanes = [msgspec.structs.asdict(lane) for lane in lanes]
            seen.add(self.at, pool_json(view, self.at))
        self.pools = found
        self.workers = len(await self._store.view.workers())

    def document(self) -> Facts:
        """Return the latest poll as `--json` prints it."""
        return {
            "at": self.at,
            "workers": self.workers,
            "pools": [
                {**seen.now, "per_second": msgspec.structs.asdict(seen.rates)}
                for seen in self.pools.values()
            ],
        }
