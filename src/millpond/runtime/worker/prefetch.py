"""Prefetched tasks: a worker holds them ready, so that no slot waits for the store.

A prefetched task starts at once in the slot that a job of the same pool leaves, and the settlement
of that job reports it. It is given back when the store wants it back, when this process sends an
order for its pool, when it is cancelled, and when the worker stops.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from millpond.core.lease import Leased
    from millpond.core.spec import PoolSpec
    from millpond.core.task import Fence
    from millpond.store.protocol import LeaseAnswer


class Prefetch:
    """The prefetched tasks of one worker, by pool, first claimed first."""

    __slots__ = ("_specs", "gone", "held", "is_recalled", "none_left", "recalls")

    def __init__(self, specs: Mapping[str, PoolSpec]) -> None:
        self._specs = specs
        self.held: dict[str, deque[Leased]] = {}
        """Prefetched tasks by pool; a pool without any is not in it."""
        self.none_left: set[str] = set()
        """Pools that had nothing to prefetch when they were last asked."""
        self.recalls = 0
        """How often prefetched tasks had to be given back."""
        self.is_recalled = False
        """Whether the answer that is applied was asked for before they were given back last."""
        self.gone: set[Fence] = set()
        """Tasks that were started or given back here, until the store has answered."""

    def most(self, pool: str) -> int:
        """Return how many tasks of a pool may be prefetched."""
        spec = self._specs.get(pool)
        return 0 if spec is None else spec.prefetch or 0

    def room(self, pool: str) -> int:
        """Return how many more tasks of a pool may be prefetched."""
        most = self.most(pool)
        return most - len(self.held.get(pool, ())) if most else 0

    def runs_low(self, pool: str, *, settling: bool) -> bool:
        """Return whether so little of a pool is prefetched that more should be asked for.

        With settlements to send it costs little to ask; after half of them the rest could be used
        up before the answer comes.
        """
        spec = self._specs.get(pool)
        if spec is None or not spec.prefetch or pool in self.none_left:
            return False
        held = len(self.held.get(pool, ()))
        return held < (spec.prefetch * 7 // 8 if settling else spec.prefetch // 2)

    def tasks(self) -> list[int]:
        """Return all prefetched tasks."""
        return [claim.fence.task for claims in self.held.values() for claim in claims]

    def pools_of(self, tasks: Container[int]) -> list[str]:
        """Return the pools of which one of these tasks is prefetched."""
        return [
            pool
            for pool, claims in self.held.items()
            if any(claim.fence.task in tasks for claim in claims)
        ]

    def take_in(self, pool: str, answer: LeaseAnswer) -> None:
        """Hold the claimed tasks, and no longer those that the store has started itself."""
        if answer.claimed or answer.leased:
            self.none_left.discard(pool)
        started = {leased.fence for leased in answer.leased}
        kept = [claim for claim in self.held.pop(pool, ()) if claim.fence not in started]
        if kept or answer.claimed:
            self.held[pool] = deque((*kept, *answer.claimed))

    def next(self, pool: str) -> Leased | None:
        """Take the first prefetched task of a pool, to start it; None if there is none."""
        claims = self.held.get(pool)
        if claims is None:
            return None
        first = claims.popleft()
        if not claims:
            del self.held[pool]
        return first

    def clear(self, pool: str | None = None) -> list[Leased]:
        """Take the prefetched tasks of a pool, or all of them, to give them back."""
        self.recalls += 1
        if pool is not None:
            return list(self.held.pop(pool, ()))
        claims = [claim for claims in self.held.values() for claim in claims]
        self.held.clear()
        return claims
