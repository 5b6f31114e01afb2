"""The limits of the provider, and the rate that the gateway derives from them."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from millpond import Rate


@dataclass(frozen=True)
class Limits:
    """A provider that counts tokens over a sliding minute, and how the gateway stays within."""

    tokens: int = 200_000
    """How many tokens may be used in any minute."""
    minute: float = 20.0
    """Seconds that the provider calls a minute; a short one shows several in a short run."""
    burst: float = 2.0
    """Seconds of the rate that may be saved up while there are no requests."""
    slack: float = 1.0
    """Seconds that a request may be late between its start here and its arrival there."""
    per_tenant: int = 12
    """How many requests of one tenant may wait; the next one is refused at once."""
    deadline: float = 10.0
    """Seconds after which a waiting request is dropped."""
    timeout: float = 20.0
    """Seconds that the model has to answer."""
    most_at_once: int = 64

    @property
    def rate(self) -> Rate:
        """The rate of tokens that never lets more than `tokens` through in any minute.

        A rate allows its burst and what time gives: a minute has to have room for both, and for
        what comes late from the minute before.
        """
        a_second = self.tokens / (self.minute + self.burst + self.slack)
        n, burst = int(a_second * self.minute), int(a_second * self.burst)
        return Rate(n, per=self.minute, burst=burst, of="weight")

    def plain(self) -> dict[str, Any]:
        """Return it as plain data, for another process."""
        return asdict(self)


def windows(seconds: float, used: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the time of each use, and the tokens in the window that ends with it."""
    entries, found, now, first = sorted(used), [], 0, 0
    for at, tokens in entries:
        now += tokens
        while entries[first][0] <= at - seconds:
            now -= entries[first][1]
            first += 1
        found.append((at, now))
    return found


def most_in_any(seconds: float, used: Iterable[tuple[float, int]]) -> int:
    """Return the most tokens of any window of that many seconds."""
    return max((tokens for _, tokens in windows(seconds, used)), default=0)
