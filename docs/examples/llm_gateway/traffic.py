"""Tenants that together request ten times what the provider allows."""

import asyncio
import random
from dataclasses import dataclass, field

from docs.examples.llm_gateway.gateway import Reply, Service
from docs.examples.llm_gateway.limits import Limits

MOST, MEAN = 700, 420
"""Tokens that a request may use, and that it uses on average, by the fake model's dice."""

SHARES = {
    "whale": 6.0,
    "big-1": 1.2,
    "big-2": 1.2,
    "mid-1": 0.5,
    "mid-2": 0.5,
    "mid-3": 0.4,
    "tiny-1": 0.1,
    "tiny-2": 0.1,
}
"""The load of each tenant, in parts of what the model can serve: ten times in total."""


@dataclass
class Book:
    """The replies to clients, by tenant."""

    replies: dict[str, list[Reply]] = field(default_factory=lambda: {name: [] for name in SHARES})
    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SHARES, 0))
    began: float = 0.0
    ended: float = 0.0
    """When the last request was made."""

    def count(self, outcome: str) -> int:
        """Return how many requests got that reply."""
        return sum(reply.outcome == outcome for reply in self.every())

    def every(self) -> list[Reply]:
        """Return all replies."""
        return [reply for replies in self.replies.values() for reply in replies]

    def served(self) -> dict[str, int]:
        """Return how many of each tenant's requests were answered."""
        return {
            tenant: sum(reply.outcome == "answered" for reply in replies)
            for tenant, replies in self.replies.items()
        }

    def fair(self) -> dict[str, float]:
        """Return the fair shares: no tenant gets more while another has less and wants more.

        That is max-min fairness of all answered requests, by their number.
        """
        left, shares = float(sum(self.served().values())), dict[str, float]()
        hungry = sorted(self.requests, key=lambda tenant: self.requests[tenant])
        for place, tenant in enumerate(hungry):
            shares[tenant] = min(float(self.requests[tenant]), left / (len(hungry) - place))
            left -= shares[tenant]
        return shares

    def worst_share(self) -> float:
        """Return the smallest part of its fair share that any tenant got."""
        fair, served = self.fair(), self.served()
        return min(served[tenant] / fair[tenant] for tenant in fair)

    def wait(self, part: float, deadline: float) -> float:
        """Return the wait that `part` of the admitted did not exceed, the expired included."""
        waits = sorted(
            reply.waited if reply.outcome == "answered" else deadline
            for reply in self.every()
            if reply.outcome != "refused"
        )
        return waits[min(int(len(waits) * part), len(waits) - 1)] if waits else 0.0


async def flood(service: Service, limits: Limits, seconds: float, seed: int = 3) -> Book:
    """Let every tenant send requests for some seconds, and wait for all replies."""
    rate, book = limits.rate, Book()
    capacity = rate.n / rate.per / MEAN
    clock = asyncio.get_running_loop().time
    book.began = clock()
    async with asyncio.TaskGroup() as tenants:
        for tenant, share in SHARES.items():
            dice = random.Random(f"{seed}/{tenant}")
            tenants.create_task(_tenant(service, book, tenant, share * capacity, seconds, dice))
    return book


async def _tenant(
    service: Service, book: Book, tenant: str, rate: float, seconds: float, dice: random.Random
) -> None:
    """Send requests at independent random times, without waiting for replies."""
    clock = asyncio.get_running_loop().time

    async def one() -> None:
        reply = await service.ask(tenant, dice.getrandbits(32), MOST)
        book.replies[tenant].append(reply)

    moment, until = clock(), clock() + seconds
    async with asyncio.TaskGroup() as requests:
        while (moment := moment + dice.expovariate(rate)) < until:
            await asyncio.sleep(max(0.0, moment - clock()))
            book.requests[tenant] += 1
            book.ended = max(book.ended, clock())
            requests.create_task(one())
