"""Exceptions that a handler raises to control its own attempt."""

from __future__ import annotations

from typing import Literal, TypeAlias

from millpond.core import validation as check
from millpond.core.bounds import MAX_THROTTLE

Scope: TypeAlias = Literal["key", "pool"]
"""What a throttled attempt stops for every worker: its key, or its whole pool."""


class GiveUp(Exception):
    """Fail at once: trying again would not help."""


class Cancelled(Exception):
    """End the task as cancelled: its work is no longer wanted. It is not retried.

    The message says why; `handle.error` and the error that a waiting caller gets have it.
    """


class RetryLater(Exception):
    """Try again after `seconds`; with spend=False the attempt is not charged."""

    def __init__(self, seconds: check.Seconds = 0.0, *, spend: bool = True) -> None:
        self.seconds: float = check.seconds("seconds", seconds)
        """How long to wait."""
        self.spend = spend
        """Whether the attempt is charged."""
        super().__init__(f"again in {self.seconds:g} s")


class Throttled(Exception):
    """A peer said slow down: start nothing of this key, or of this pool, for `retry_after` seconds.

    Every worker of the fleet obeys. The task is retried when the time is over, and no attempt is
    charged. More than a day is shortened to a day: a peer's header must not stop a pool for years.
    """

    def __init__(self, retry_after: check.Seconds, *, scope: Scope = "pool") -> None:
        self.retry_after: float = min(
            check.capped_seconds("retry_after", retry_after), MAX_THROTTLE
        )
        """How long to start nothing, in seconds."""
        self.scope: Scope = scope
        """What to stop: the key of the task, or its pool."""
        check.one_of("scope", scope, ("key", "pool"))
        super().__init__(f"{scope} held back for {self.retry_after:g} s")
