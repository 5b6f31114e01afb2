"""What a worker does next: claim now, or idle until a moment. It never spins or oversleeps."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Wake(msgspec.Struct, frozen=True, gc=False):
    """A pool may have something to start at `at`; the verb that caused it answers with this."""

    pool: str
    at: float


class Work(msgspec.Struct, frozen=True):
    """Claim up to `want` tasks of the pool now."""

    want: int


class IdleUntil(msgspec.Struct, frozen=True):
    """Sleep until `moment`, or until woken; None = only until woken."""

    moment: float | None


Plan: TypeAlias = Work | IdleUntil


class ClaimTimer:
    """When a worker should claim from one pool again.

    Call `claim_sent` before a claim, `claim_answered` with its answer, `wake` for a wake-up; `plan`
    decides. The answer to a claim that got fewer tasks says when the next one becomes due. A
    wake-up only moves that moment forward, also one that arrives while the claim is on its way.
    """

    __slots__ = ("_ask_at",)

    def __init__(self) -> None:
        self._ask_at: float | None = 0.0

    @property
    def moment(self) -> float | None:
        """When to claim again; None = only after a wake-up."""
        return self._ask_at

    def claim_sent(self) -> None:
        """Note that a claim is on its way; later wake-ups are not in its answer."""
        self._ask_at = None

    def claim_answered(self, *, want: int, got: int, next_at: float | None, now: float) -> None:
        """Note the answer to a claim of `want` tasks: a full one means there may be more."""
        self._ask_at = sooner(self._ask_at, now if got >= want else next_at)

    def wake(self, wake: Wake) -> None:
        """Claim again at the moment of a wake-up, if that is earlier."""
        if self._ask_at is None or wake.at < self._ask_at:
            self._ask_at = wake.at

    def plan(self, *, free: int, now: float) -> Plan:
        """Decide what a worker with `free` slots does about this pool."""
        if free < 1:
            return IdleUntil(None)
        if self._ask_at is not None and self._ask_at <= now:
            return Work(free)
        return IdleUntil(self._ask_at)


def sooner(first: float | None, second: float | None) -> float | None:
    """Return the earlier of two moments; None is never."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)
