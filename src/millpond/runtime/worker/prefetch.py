"""Claims ahead: what a worker holds beyond what it runs, so that no slot waits for the store.

A claim is started in the slot that a job of the same pool leaves, at once, and the settlement of
that job tells so. It goes back when it is wanted back, when its pool is told something by this
process, when somebody cancelled it, and when the worker stops.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

    from millpond.core.lease import Leased
    from millpond.core.task import Fence
    from millpond.runtime.worker.worker import Worker
    from millpond.store.protocol import LeaseAnswer


class Ahead:
    """The claims of one worker, by pool, first claimed first."""

    __slots__ = ("_worker", "gone", "held", "none_left")

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.held: dict[str, deque[Leased]] = {}
        """Claims by pool; a pool of which none is held is not in it."""
        self.none_left: set[str] = set()
        """Pools that gave nothing to hold when they were last asked for it."""
        self.gone: set[Fence] = set()
        """Claims that were begun or given back here, until the store has answered to their end."""

    def room(self, pool: str) -> int:
        """Return how many claims more may be held of a pool."""
        spec = self._worker.runtime.declared.get(pool)
        if spec is None or not spec.prefetch:
            return 0
        return spec.prefetch - len(self.held.get(pool, ()))

    def runs_low(self, pool: str, *, settling: bool) -> bool:
        """Return whether so little is held of a pool that more should be asked for.

        With ends that have to be told it costs little to ask, and if half of it were waited for,
        all could be gone before the answer is here.
        """
        spec = self._worker.runtime.declared.get(pool)
        if spec is None or not spec.prefetch or pool in self.none_left:
            return False
        held = len(self.held.get(pool, ()))
        return held < (spec.prefetch * 7 // 8 if settling else spec.prefetch // 2)

    def tasks(self) -> list[int]:
        """Return the tasks of all claims."""
        return [claim.fence.task for claims in self.held.values() for claim in claims]

    def pools_of(self, tasks: Container[int]) -> list[str]:
        """Return the pools of which one of these tasks is held."""
        return [
            pool
            for pool, claims in self.held.items()
            if any(claim.fence.task in tasks for claim in claims)
        ]

    def take_in(self, pool: str, answer: LeaseAnswer) -> None:
        """Hold what was claimed, and no longer what the store has started for us."""
        if answer.claimed or answer.leased:
            self.none_left.discard(pool)
        started = {leased.fence for leased in answer.leased}
        kept = [claim for claim in self.held.pop(pool, ()) if claim.fence not in started]
        if kept or answer.claimed:
            self.held[pool] = deque((*kept, *answer.claimed))

    def next(self, pool: str) -> Leased | None:
        """Take the first claim of a pool, to be started; None if there is none."""
        claims = self.held.get(pool)
        if claims is None:
            return None
        first = claims.popleft()
        if not claims:
            del self.held[pool]
        return first

    def given_up(self, pool: str | None = None) -> list[Leased]:
        """Take the claims of a pool, or all of them, to be given back."""
        if pool is not None:
            return list(self.held.pop(pool, ()))
        claims = [claim for claims in self.held.values() for claim in claims]
        self.held.clear()
        return claims
