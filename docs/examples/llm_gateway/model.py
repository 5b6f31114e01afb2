"""A model that answers slowly, counts tokens, and answers 429 to too many requests."""

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from docs.examples.llm_gateway.limits import Limits

KNEE = 16
"""Concurrent requests from which each one slows down the others."""
FULL = 48
"""Concurrent requests above which it refuses."""


def tokens_of(question: int, most: int) -> int:
    """Return how many tokens a question takes; a client learns it with the answer."""
    return random.Random(question).randint(most // 5, most)


class Busy(Exception):
    """429: the reason, and after how many seconds to try again."""

    def __init__(self, why: str, retry_after: float) -> None:
        super().__init__(f"{why}, try again in {retry_after:.2f} s")
        self.why = why
        self.retry_after = retry_after


class Entry(NamedTuple):
    """A line of the model's own record: a request and its answer."""

    at: float
    tenant: str
    tokens: int
    """Tokens used by the answer; for a refusal over the budget, those it would have used."""
    answer: str
    """`answered`, `over budget`, `overloaded`."""


class Model(Protocol):
    """What a gateway needs from a model."""

    async def ask(self, tenant: str, question: int, most: int) -> int:
        """Return how many tokens a question and its answer took, `most` at most, or raise Busy."""
        ...


@dataclass
class FakeModel:
    """The model. It uses the event loop's time, so tests can run it on virtual time."""

    limits: Limits
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    book: list[Entry] = field(default_factory=list)
    at_work: int = 0
    _window: deque[tuple[float, int]] = field(default_factory=deque)
    _in_window: int = 0

    async def ask(self, tenant: str, question: int, most: int) -> int:
        """Answer after a while, or refuse at once."""
        now = asyncio.get_running_loop().time()
        tokens = tokens_of(question, most)
        if self.at_work >= FULL or self.dice.random() < 0.01:
            self.book.append(Entry(now, tenant, 0, "overloaded"))
            raise Busy("overloaded", self.dice.uniform(0.1, 0.4))
        wait = self._wait_for(tokens, now)
        if wait > 0.0:
            self.book.append(Entry(now, tenant, tokens, "over budget"))
            raise Busy("over budget", wait)
        self.book.append(Entry(now, tenant, tokens, "answered"))
        self._window.append((now, tokens))
        self._in_window += tokens
        self.at_work += 1
        try:
            await asyncio.sleep(self._seconds(tokens))
        finally:
            self.at_work -= 1
        return tokens

    def _seconds(self, tokens: int) -> float:
        """Return how long an answer takes: by its length, by the load, and by bad luck."""
        crowded = max(1.0, self.at_work / KNEE)
        unlucky = 4.0 if self.dice.random() < 0.02 else 1.0
        return (0.05 + 0.0012 * tokens) * crowded * unlucky

    def _wait_for(self, tokens: int, now: float) -> float:
        """Return after how many seconds the minute has room for so many tokens more."""
        minute, window = self.limits.minute, self._window
        while window and window[0][0] <= now - minute:
            self._in_window -= window.popleft()[1]
        excess = self._in_window + tokens - self.limits.tokens
        if excess <= 0:
            return 0.0
        for at, used in window:
            excess -= used
            if excess <= 0:
                return at + minute - now
        return minute
