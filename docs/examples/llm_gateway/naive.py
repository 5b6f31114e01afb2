"""The usual start: a semaphore around the call, and a retry after a 429."""

import asyncio
import random

from docs.examples.llm_gateway.gateway import Reply
from docs.examples.llm_gateway.limits import Limits
from docs.examples.llm_gateway.model import Busy, Model

AT_ONCE = 32


class Naive:
    """First come, first served, a fixed concurrency, and a retry after a 429."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self._model = model
        self._limits = limits
        self._room = asyncio.Semaphore(AT_ONCE)
        self._dice = random.Random(2)

    async def ask(self, tenant: str, question: int, most: int) -> Reply:
        """Wait for a slot, call, and retry for as long as the client waits."""
        clock = asyncio.get_running_loop().time
        came = clock()
        try:
            async with asyncio.timeout(self._limits.deadline) as patience, self._room:
                while True:
                    began = clock()
                    try:
                        # What is under way is left to end: only waiting is given up.
                        patience.reschedule(began + self._limits.timeout)
                        tokens = await self._model.ask(tenant, question, most)
                    except Busy as busy:
                        patience.reschedule(came + self._limits.deadline)
                        await asyncio.sleep(busy.retry_after * self._dice.uniform(1.0, 1.5))
                    else:
                        return Reply("answered", began - came, tokens)
        except TimeoutError:
            return Reply("expired")
