"""What a handler may say about its own attempt, by raising it."""

from __future__ import annotations

from millpond.core import check


class GiveUp(Exception):
    """Fail at once: trying again would not help."""


class RetryLater(Exception):
    """Try again after `seconds`; with spend=False the attempt is not charged."""

    def __init__(self, seconds: check.Seconds = 0.0, *, spend: bool = True) -> None:
        self.seconds = check.seconds("seconds", seconds)
        self.spend = spend
        super().__init__(f"again in {self.seconds:g} s")
