"""The session of a process, as its workers see it, and how long they go on without it."""

from __future__ import annotations

from typing import Protocol

STOP_AFTER = 3.0
"""Seconds after the last answered question at which a worker stops its handlers."""

LAST_QUESTION = 0.5
"""Seconds before that at which the session is asked at once: the process may have stood still."""


class ProcessSession(Protocol):
    """Up to which moment the server surely had the session of this process."""

    mark: str
    """What the name of a worker has in it that depends on the session; empty = there is none."""
    begun_at: float
    """When the session began, by the monotonic clock; inf = it is lost."""
    answered: float
    """When the last question was sent that the session answered."""

    @property
    def is_open(self) -> bool:
        """Whether the server has the session, as far as known."""

    def ask(self) -> None:
        """Ask the session at once."""
