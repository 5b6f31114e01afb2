"""How long to wait before the next attempt; the random number is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeAlias

from millpond.core import validation as check
from millpond.core.bounds import MAX_SECONDS
from millpond.core.type_names import comparable_name, qualified_name
from millpond.core.validation import Seconds
from millpond.errors import ConfigError

Kinds: TypeAlias = type[BaseException] | str | Sequence[type[BaseException] | str]
"""One exception type or several, or their names."""


LONGEST = 60.0
"""The longest delay in seconds, unless a policy sets another."""


class Curve(StrEnum):
    """The shape of the delay over the attempts."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    CONSTANT = "constant"


@dataclass(frozen=True, init=False, slots=True)
class Retry:
    """How often and after how long a failed attempt is tried again.

    `attempts` counts every charged run, the first one too: attempts=1 means at most once.
    `jitter` is the largest relative deviation: 0.1 spreads a delay over +-10 %. `on` names the only
    exception types that are retried, `never` those that are not, whatever `on` says; both include
    subclasses. Types are kept by name, so that a policy can be stored with a task.
    """

    attempts: int
    initial: float
    factor: float
    max_delay: float
    jitter: float
    give_up_after: float | None
    curve: Curve
    on: tuple[str, ...]
    never_on: tuple[str, ...]

    def __init__(
        self,
        attempts: int = 3,
        initial: Seconds = 1.0,
        factor: float = 2.0,
        max_delay: Seconds = LONGEST,
        jitter: float = 0.1,
        give_up_after: Seconds | None = None,
        curve: Curve = Curve.EXPONENTIAL,
        *,
        on: Kinds = (),
        never: Kinds = (),
    ) -> None:
        keep = partial(object.__setattr__, self)
        keep("attempts", check.integer("retry.attempts", attempts, least=1))
        keep("initial", check.seconds("retry.initial", initial))
        keep("factor", check.number("retry.factor", factor, least=1.0))
        keep("max_delay", check.seconds("retry.max_delay", max_delay))
        if self.initial > self.max_delay == LONGEST:
            # A lower max_delay is a choice; the default one would cut `initial` silently.
            reason = f"would be cut to max_delay={self.max_delay:g}: raise that too"
            raise ConfigError("retry.initial", initial, reason)
        keep("jitter", check.number("retry.jitter", jitter))
        if self.jitter > 1:
            raise ConfigError("retry.jitter", jitter, "must be at most 1")
        keep("give_up_after", None)
        if give_up_after is not None:
            keep("give_up_after", check.seconds("retry.give_up_after", give_up_after, above=0.0))
        keep("curve", Curve(check.one_of("retry.curve", curve, tuple(Curve))))
        keep("on", _names("retry.on", on))
        keep("never_on", _names("retry.never", never))

    def once_less(self) -> Retry:
        """Return the same policy with one attempt less, for a task whose first attempt is over."""
        less = copy(self)
        object.__setattr__(less, "attempts", max(self.attempts - 1, 1))
        return less

    @classmethod
    def constant(
        cls,
        delay: Seconds,
        *,
        attempts: int = 3,
        jitter: float = 0.1,
        give_up_after: Seconds | None = None,
        on: Kinds = (),
        never: Kinds = (),
    ) -> Retry:
        """Wait the same time before every attempt."""
        return cls(
            attempts,
            delay,
            max_delay=delay,
            jitter=jitter,
            give_up_after=give_up_after,
            curve=Curve.CONSTANT,
            on=on,
            never=never,
        )

    @classmethod
    def linear(
        cls,
        step: Seconds,
        *,
        attempts: int = 3,
        max_delay: Seconds = LONGEST,
        jitter: float = 0.1,
        give_up_after: Seconds | None = None,
        on: Kinds = (),
        never: Kinds = (),
    ) -> Retry:
        """Wait one `step` more before each further attempt."""
        return cls(
            attempts,
            step,
            max_delay=max_delay,
            jitter=jitter,
            give_up_after=give_up_after,
            curve=Curve.LINEAR,
            on=on,
            never=never,
        )

    @classmethod
    def never(cls) -> Retry:
        """Run at most once."""
        return cls(attempts=1)


def tries_again(policy: Retry, kinds: Sequence[str]) -> bool:
    """Return whether to try again after an error, given the names of its type and its bases."""
    if not policy.on and not policy.never_on:
        return True
    names = {comparable_name(kind) for kind in kinds}
    if not names.isdisjoint(map(comparable_name, policy.never_on)):
        return False
    return not policy.on or not names.isdisjoint(map(comparable_name, policy.on))


def _names(option: str, kinds: Kinds) -> tuple[str, ...]:
    many = kinds if isinstance(kinds, (tuple, list)) else (kinds,)
    return tuple(_type_name(option, kind) for kind in many)


def _type_name(option: str, kind: object) -> str:
    if isinstance(kind, str):
        return kind
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return qualified_name(kind)
    raise ConfigError(option, kind, "must be an exception type or the name of one")


def delay(policy: Retry, attempt: int, *, jitter: float) -> float:
    """Return the seconds to wait after charged run `attempt` failed; `jitter` is in [0, 1)."""
    base = min(_curve(policy, attempt), policy.max_delay)
    return min(base * (1.0 + policy.jitter * (2.0 * jitter - 1.0)), MAX_SECONDS)


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
