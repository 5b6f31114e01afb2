"""Claims ahead: what a worker holds beyond what it runs, so that no slot waits for the store.

A claim is started in the slot that a job of the same pool leaves, at once, and the settlement of
that job tells so. It goes back when it is wanted back, when its pool is told something by this
process, and when the worker stops.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.core.lease import Leased
    from millpond.runtime.worker import Worker
    from millpond.store.protocol import LeaseAnswer


class Ahead:
    """The claims of one worker, by pool, first claimed first."""

    __slots__ = ("_claims", "_worker")

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._claims: dict[str, deque[Leased]] = {}

    def room(self, pool: str) -> int:
        """Return how many claims more may be held of a pool."""
        spec = self._worker.runtime.declared.get(pool)
        if spec is None or not spec.prefetch:
            return 0
        return spec.prefetch - len(self._claims.get(pool, ()))

    def tasks(self) -> list[int]:
        """Return the tasks of all claims."""
        return [claim.fence.task for claims in self._claims.values() for claim in claims]

    def take_in(self, pool: str, answer: LeaseAnswer) -> None:
        """Hold what was claimed, and no longer what the store has started for us."""
        held = self._claims.get(pool)
        if held:
            started = {leased.fence for leased in answer.leased}
            self._claims[pool] = deque(claim for claim in held if claim.fence not in started)
        if answer.claimed:
            self._claims.setdefault(pool, deque()).extend(answer.claimed)

    def next(self, pool: str) -> Leased | None:
        """Take the first claim of a pool, to be started; None if there is none."""
        held = self._claims.get(pool)
        return held.popleft() if held else None

    def given_up(self, pool: str | None = None) -> list[Leased]:
        """Take the claims of a pool, or all of them, to be given back."""
        if pool is None:
            claims = [claim for held in self._claims.values() for claim in held]
            self._claims.clear()
            return claims
        return list(self._claims.pop(pool, ()))

    def __bool__(self) -> bool:
        return any(self._claims.values())
