"""Looks: what `millpond top` knows of the pools, from one look at the store to the next."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from millpond.cli.json_shapes import of_pool

if TYPE_CHECKING:
    from millpond.cli.json_shapes import Facts
    from millpond.cli.open_store import Reached

WINDOW = 5
"""Rates are taken over so many looks."""

SOONEST = 0.3
"""Seconds between two looks of which a rate is made, at least."""

REMEMBERED = 60
"""How many rates of the past are drawn, at most."""

_ENDED = ("completed", "failed", "cancelled", "rejected")


class Rates(msgspec.Struct, frozen=True):
    """How many tasks a second came, were completed and failed."""

    submitted: float = 0.0
    completed: float = 0.0
    failed: float = 0.0


class Seen:
    """One pool over several looks."""

    def __init__(self) -> None:
        self.now: Facts = {}
        self.lanes: list[Facts] = []
        self._looks: deque[tuple[float, Facts]] = deque(maxlen=WINDOW + 1)
        self.past: deque[float] = deque(maxlen=REMEMBERED)
        """Completed a second, from look to look."""

    def take_in(self, at: float, facts: Facts) -> None:
        """Remember a look; one that follows at once, because of a key, tells nothing of rates."""
        self.now = facts
        if self._looks:
            before, old = self._looks[-1]
            if at - before < SOONEST:
                return
            self.past.append(_per_second(at - before, facts["completed"] - old["completed"]))
        self._looks.append((at, facts))

    @property
    def rates(self) -> Rates:
        """How quick it is, by the latest looks."""
        (first, old), (last, new) = self._looks[0], self._looks[-1]
        return Rates(
            _per_second(last - first, _ever(new) - _ever(old)),
            _per_second(last - first, new["completed"] - old["completed"]),
            _per_second(last - first, new["failed"] - old["failed"]),
        )


def _per_second(seconds: float, count: int) -> float:
    return max(count, 0) / seconds if seconds > 0 else 0.0


def _ever(pool: Facts) -> int:
    """Return how many tasks a pool ever had."""
    return sum(pool[name] for name in (*_ENDED, "running", "queued"))


class Looks:
    """All pools over several looks."""

    def __init__(self, here: Reached, names: tuple[str, ...]) -> None:
        self._here = here
        self._names = names
        self.pools: dict[str, Seen] = {}
        self.workers = 0
        self.at = 0.0

    async def look(self, with_lanes: str | None = None) -> None:
        """Look at the store once more; of one pool, at its lanes too."""
        found: dict[str, Seen] = {}
        for name in await self._here.pools(self._names):
            self.at = self._here.now()
            view = await self._here.view.pool(name, now=self.at)
            if view is None:
                continue
            seen = found[name] = self.pools.get(name) or Seen()
            lanes = await self._here.view.lanes(name) if name == with_lanes else ()
            seen.lanes = [msgspec.structs.asdict(lane) for lane in lanes]
            seen.take_in(self.at, of_pool(view, self.at))
        self.pools = found
        self.workers = len(await self._here.view.workers())

    def document(self) -> Facts:
        """Return a look as `--json` prints it."""
        return {
            "at": self.at,
            "workers": self.workers,
            "pools": [
                {**seen.now, "per_second": msgspec.structs.asdict(seen.rates)}
                for seen in self.pools.values()
            ],
        }
