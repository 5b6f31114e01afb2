"""How long to wait before the next attempt: formulas over values, chance as an argument."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from millpond.core import check
from millpond.core.errors import ConfigError


class Curve(StrEnum):
    """The shape of the delay over the attempts."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    CONSTANT = "constant"


class Retry(msgspec.Struct, frozen=True):
    """How often and after how long a failed attempt is tried again.

    `attempts` counts every charged run, the first one too: attempts=1 means at most once.
    `jitter` is the largest relative deviation: 0.1 spreads a delay over +-10 %.
    """

    attempts: int = 3
    initial: float = 1.0
    factor: float = 2.0
    max_delay: float = 60.0
    jitter: float = 0.1
    give_up_after: float | None = None
    curve: Curve = Curve.EXPONENTIAL

    def __post_init__(self) -> None:
        check.whole("retry.attempts", self.attempts, least=1)
        check.number("retry.initial", self.initial)
        check.number("retry.factor", self.factor, least=1.0)
        check.number("retry.max_delay", self.max_delay)
        check.number("retry.jitter", self.jitter)
        if self.jitter > 1:
            raise ConfigError("retry.jitter", self.jitter, "must be at most 1")
        if self.give_up_after is not None:
            check.number("retry.give_up_after", self.give_up_after, above=0.0)

    @classmethod
    def constant(cls, delay: float, *, attempts: int = 3, jitter: float = 0.1) -> Retry:
        """Wait the same time before every attempt."""
        return cls(attempts, delay, max_delay=delay, jitter=jitter, curve=Curve.CONSTANT)

    @classmethod
    def linear(
        cls, step: float, *, attempts: int = 3, max_delay: float = 60.0, jitter: float = 0.1
    ) -> Retry:
        """Wait one `step` more before each further attempt."""
        return cls(attempts, step, max_delay=max_delay, jitter=jitter, curve=Curve.LINEAR)

    @classmethod
    def never(cls) -> Retry:
        """Run at most once."""
        return cls(attempts=1)


def delay(policy: Retry, attempt: int, *, jitter: float) -> float:
    """Return the seconds to wait after charged run `attempt` failed; `jitter` is in [0, 1)."""
    base = min(_curve(policy, attempt), policy.max_delay)
    return base * (1.0 + policy.jitter * (2.0 * jitter - 1.0))


def _curve(policy: Retry, attempt: int) -> float:
    match policy.curve:
        case Curve.CONSTANT:
            return policy.initial
        case Curve.LINEAR:
            return policy.initial * attempt
        case Curve.EXPONENTIAL:
            return _grown(policy, attempt)


def _grown(policy: Retry, attempt: int) -> float:
    if not policy.initial:
        return 0.0
    try:
        return float(policy.initial * policy.factor ** (attempt - 1))
    except OverflowError:
        return policy.max_delay
