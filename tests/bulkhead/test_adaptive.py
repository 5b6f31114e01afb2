"""The adaptive limit on a simulated server: it finds the best fixed limit and follows it.

The server works on `capacity` calls at once and queues the rest, so that every call beyond its
capacity adds latency and no throughput. The *best fixed limit* is the one with the greatest power,
throughput divided by latency: it is found here by running every fixed limit from 1 to 50 in the
same world. The adaptive limit is judged by its mean over the last five of thirty seconds.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from millpond import Bulkhead, adaptive
from millpond.core.adaptive import Limiter
from millpond.testing.clock import run_virtual

CALLERS = 60
SERVICE = 0.2


class Overloaded(RuntimeError):
    """The server is full and does not queue."""


class Server:
    """Takes `capacity` calls at once; the others queue, or are refused if it `refuses`."""

    def __init__(
        self, capacity: int, *, noise: float = 0.0, seed: int = 0, refuses: bool = False
    ) -> None:
        self.capacity = capacity
        self.service = SERVICE
        self.noise = noise
        self.random = random.Random(seed)
        self.refuses = refuses
        self.busy = 0
        self.queue: list[asyncio.Future[None]] = []
        self.served = 0
        self.latency = 0.0

    async def call(self) -> None:
        start = asyncio.get_running_loop().time()
        if self.busy >= self.capacity:
            if self.refuses:
                await asyncio.sleep(self.service / 10)
                raise Overloaded
            place = asyncio.get_running_loop().create_future()
            self.queue.append(place)
            await place
        else:
            self.busy += 1
        # Log-normal with mean 1: latency as it is, a few calls much slower than most.
        slowness = self.random.lognormvariate(-(self.noise**2) / 2, self.noise)
        await asyncio.sleep(self.service * slowness)
        self.busy -= 1
        self.served += 1
        self.latency += asyncio.get_running_loop().time() - start
        self.serve()

    def serve(self) -> None:
        while self.queue and self.busy < self.capacity:
            self.busy += 1
            self.queue.pop(0).set_result(None)


class World:
    """Callers without end, a bulkhead, a server; `limits` is the limit at every second."""

    def __init__(self, llm: Bulkhead, server: Server, callers: int = CALLERS) -> None:
        self.llm = llm
        self.server = server
        self.tasks = [asyncio.create_task(self.caller()) for _ in range(callers)]
        self.limits: list[int] = []

    async def caller(self) -> None:
        while True:
            try:
                await self.llm.run(self.server.call)
            except Overloaded:
                await asyncio.sleep(0)

    async def go_on(self, seconds: int) -> float:
        """Let time pass; return the mean limit of the last five seconds."""
        for _ in range(seconds):
            await asyncio.sleep(1)
            self.limits.append(self.llm.stats().max_concurrent)
        return sum(self.limits[-5:]) / 5

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


def adapting(server: Server, callers: int = CALLERS) -> World:
    clock = asyncio.get_running_loop().time
    return World(Bulkhead("llm", adaptive(1, 50), max_queue=1000, clock=clock), server, callers)


def best_fixed_limit(capacity: int) -> int:
    """The fixed limit with the greatest throughput / latency, of all from 1 to 50."""

    async def power(limit: int) -> float:
        server = Server(capacity)
        world = World(Bulkhead("llm", limit, max_queue=1000), server)
        await world.go_on(10)
        await world.end()
        return server.served / (server.latency / server.served)

    return max(range(1, 51), key=lambda limit: run_virtual(power(limit)))


Near = Callable[[float, int], bool]


@pytest.fixture(scope="module")
def near() -> Near:
    """Whether a limit is within 0.8 to 1.2 times the best fixed one for a capacity."""
    best = {capacity: best_fixed_limit(capacity) for capacity in (10, 20)}
    # In a world where more only queues that is the capacity: the yardstick is what we think it is.
    assert {10: 10, 20: 20} == best
    return lambda limit, capacity: 0.8 * best[capacity] <= limit <= 1.2 * best[capacity]


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(("noise", "seed"), [(0.0, 0), (0.1, 1), (0.1, 2), (0.2, 3), (0.2, 4)])
async def test_it_finds_the_best_limit_and_follows_it(
    noise: float, seed: int, refuses: bool, near: Near
) -> None:
    """Capacity 20, then half of it, then 20 again: each time within thirty seconds.

    An overloaded server queues, which shows as latency, or refuses, which shows as failures.
    """
    server = Server(20, noise=noise, seed=seed, refuses=refuses)
    world = adapting(server)
    for capacity in (20, 10, 20):
        server.capacity = capacity
        server.serve()
        limit = await world.go_on(30)
        assert near(limit, capacity), world.limits
    await world.end()


async def test_it_stays_there_under_overload_without_end(near: Near) -> None:
    """Ten minutes of more callers than slots: the yardstick does not drift."""
    world = adapting(Server(20, noise=0.1))
    await world.go_on(30)
    for _ in range(19):
        assert near(await world.go_on(30), 20), world.limits
    await world.end()


async def test_the_limit_does_not_grow_without_demand() -> None:
    """Three callers leave a limit of about three, although the server could take twenty."""
    world = adapting(Server(20, noise=0.1), callers=3)
    await world.go_on(60)
    assert max(world.limits) <= 6
    await world.end()


@pytest.mark.parametrize("factor", [0.5, 1.4, 3])
async def test_it_learns_that_the_server_itself_has_changed(factor: float, near: Near) -> None:
    """Calls take longer or shorter at any load: that is no queue, and the limit comes back."""
    server = Server(20)
    world = adapting(server)
    await world.go_on(30)
    server.service *= factor
    assert near(await world.go_on(120), 20), world.limits
    await world.end()


async def test_it_falls_to_the_floor_while_everything_fails_and_recovers(near: Near) -> None:
    """A server that is down gets the least; when it is back, so is the limit."""
    server = Server(20, refuses=True)
    world = adapting(server)
    await world.go_on(30)
    server.capacity = 0
    await world.go_on(30)
    assert world.limits[-1] == 1
    server.capacity = 20
    assert near(await world.go_on(90), 20), world.limits
    await world.end()


async def test_it_never_leaves_its_bounds() -> None:
    """A server without limit takes it to `most` and no further."""
    clock = asyncio.get_running_loop().time
    llm = Bulkhead("llm", adaptive(3, 8, initial=5), max_queue=1000, clock=clock)
    assert 5 == llm.stats().max_concurrent
    world = World(llm, Server(1000))
    await world.go_on(30)
    assert (8, 8) == (world.limits[-1], max(world.limits))
    await world.end()


async def way_run(llm: Bulkhead, work: Callable[[], object]) -> None:
    async def call() -> None:
        work()

    await llm.run(call)


async def way_async_with(llm: Bulkhead, work: Callable[[], object]) -> None:
    async with llm:
        work()


async def way_permit(llm: Bulkhead, work: Callable[[], object]) -> None:
    async with llm.permit():
        work()


async def way_with(llm: Bulkhead, work: Callable[[], object]) -> None:
    answer = await llm.acquire()
    assert answer
    with answer:
        work()


async def way_by_hand(llm: Bulkhead, work: Callable[[], object]) -> None:
    answer = await llm.acquire()
    assert answer
    try:
        work()
    except BaseException as error:
        answer.release(failed=isinstance(error, Exception))
        raise
    answer.release()


@pytest.mark.parametrize("way", [way_run, way_async_with, way_permit, way_with, way_by_hand])
@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError, None])
async def test_every_door_reports_failures_but_not_cancellation(
    way: Callable[[Bulkhead, Callable[[], object]], Awaitable[None]],
    error: type[BaseException] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exception is a failure; being cancelled says nothing about the server."""
    seen: list[bool] = []

    def observe(_self: Limiter, _now: float, _latency: float, **sample: bool) -> int:
        seen.append(sample["failed"])
        return 1

    monkeypatch.setattr(Limiter, "observe", observe)

    def work() -> None:
        if error is not None:
            raise error

    llm = Bulkhead("llm", adaptive(1, 5))
    with suppress(LookupError, asyncio.CancelledError):
        await way(llm, work)
    assert [error is LookupError] == seen
    assert 0 == llm.stats().in_flight


async def test_the_time_inside_is_measured_without_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the admission to the release, not from the beginning of the wait."""
    samples: list[tuple[float, int]] = []
    clock = asyncio.get_running_loop().time
    llm = Bulkhead("llm", adaptive(1, 1), max_queue=5, clock=clock)
    observe = Limiter.observe

    def spy(self: Limiter, now: float, latency: float, *, in_flight: int, failed: bool) -> int:
        samples.append((latency, in_flight))
        return observe(self, now, latency, in_flight=in_flight, failed=failed)

    monkeypatch.setattr(Limiter, "observe", spy)
    await asyncio.gather(*[llm.run(asyncio.sleep, 2) for _ in range(3)])
    assert [(2, 1)] * 3 == [(round(latency, 6), in_flight) for latency, in_flight in samples]
