"""Everything at once, from a seed: bounds are checked all the time, and it ends at zero."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond import Bulkhead, BulkheadRejected


class Storm:
    """Random callers of one bulkhead, and someone who turns its screws."""

    def __init__(self, seed: int, *, hooks: bool = False) -> None:
        self.random = random.Random(seed)
        watch = self.check if hooks else None
        self.llm = Bulkhead(
            "llm",
            3,
            max_queue=6,
            max_weight=20,
            on_admit=watch,
            on_release=watch,
            on_reject=watch,
        )
        self.signals = [asyncio.Event() for _ in range(5)]
        self.inside = 0
        self.oversubscribed = 0

    def check(self, _event: object = None) -> None:
        """At no instant more inside than the highest limit since it was last idle below it."""
        stats = self.llm.stats()
        self.oversubscribed = max(min(self.oversubscribed, stats.in_flight), stats.max_concurrent)
        assert stats.in_flight <= self.oversubscribed
        assert stats.pending <= 6
        assert 0 == stats.underflow

    def pause(self) -> float:
        return self.random.choice([0, 0, 0.1, 0.5, 1])

    async def caller(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            await asyncio.sleep(self.pause())
            try:
                await self.stay()
            except BulkheadRejected:
                pass
            finally:
                self.check()

    async def stay(self) -> None:
        timeout = self.random.choice([None, None, 0, 0.5, 1])
        signal = self.random.choice([None, *self.signals])
        match self.random.randrange(4):
            case 0:
                async with self.llm:
                    await asyncio.sleep(self.pause())
            case 1:
                await self.llm.run(asyncio.sleep, self.pause(), timeout=timeout, signal=signal)
            case 2:
                weight = self.random.randrange(1, 22)
                async with self.llm.permit(weight=weight, timeout=timeout, signal=signal) as permit:
                    await asyncio.sleep(self.pause())
                    permit.settle(self.random.randrange(0, 25))
                    await asyncio.sleep(self.pause())
            case _:
                if permit_or_not := self.llm.try_acquire():
                    with permit_or_not:
                        await asyncio.sleep(self.pause())

    async def screws(self) -> None:
        """Cancel, abort and resize at random; wait long enough for all to end."""
        for _ in range(20):
            await asyncio.sleep(self.pause())
            match self.random.randrange(4):
                case 0:
                    self.llm.resize(max_concurrent=self.random.randrange(0, 5))
                case 1:
                    self.signals[self.random.randrange(5)].set()
                case 2:
                    self.random.choice(self.tasks).cancel()
                case _:
                    self.signals[self.random.randrange(5)].clear()
            self.check()
        self.llm.resize(max_concurrent=3)

    async def run(self, *, close: bool) -> None:
        self.tasks = [asyncio.create_task(self.caller()) for _ in range(25)]
        await self.screws()
        if close:
            self.llm.close()
        left = await self.llm.drain(timeout=1000)
        assert not left
        done = await asyncio.gather(*self.tasks, return_exceptions=True)
        errors = [error for error in done if isinstance(error, Exception)]
        assert not errors, errors
        assert not await self.llm.drain(timeout=1000)
        stats = self.llm.stats()
        assert (0, 0, 0) == (stats.in_flight, stats.pending, stats.weight_in_flight)
        assert stats.admitted == stats.released
        assert (0, 0, 0) == (stats.double_release, stats.underflow, stats.leaked)
        assert not any(signal._waiters for signal in self.signals)


@pytest.mark.rows("BH-01", "BH-02", "BH-08", "BH-09", "BH-11")
@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), close=st.booleans(), hooks=st.booleans())
async def test_any_storm_stays_within_bounds_and_ends_at_zero(
    seed: int, close: bool, hooks: bool
) -> None:
    """Cancels, timeouts, aborts, weights, resizes and a close in the middle, in any order."""
    await Storm(seed, hooks=hooks).run(close=close)


@pytest.mark.rows("BH-01", "BH-02", "BH-09")
@pytest.mark.parametrize("seed", range(10))
async def test_a_soak_with_churn_keeps_its_bounds(seed: int) -> None:
    """Four virtual seconds of thousands of short waits, bounds checked at every one."""
    chance = random.Random(seed)
    llm = Bulkhead("llm", 5, max_queue=10)
    loop = asyncio.get_running_loop()

    async def churn() -> None:
        while loop.time() < 4:
            answer = await llm.acquire(timeout=chance.choice([0.001, 0.01, 0.1]))
            stats = llm.stats()
            assert stats.in_flight <= 5
            assert stats.pending <= 10
            if answer:
                with answer:
                    await asyncio.sleep(chance.uniform(0, 0.02))
            else:
                await asyncio.sleep(0.01)

    await asyncio.gather(*[churn() for _ in range(30)])
    stats = llm.stats()
    assert (0, 0, 0) == (stats.in_flight, stats.pending, stats.underflow)
    assert stats.admitted > 500
    assert stats.timed_out > 50
