"""A worker that sends a second call while the answer to the first is on its way."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.runtime.test_shared_store import LossyStore, shared

from millpond import Millpond, Pool
from millpond.core.control import Register
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.pool.internals import internals_of
from millpond.runtime.worker import second_call
from millpond.runtime.worker.worker import Worker
from millpond.store.memory import MemoryStore
from millpond.store.protocol import SettleAnswer
from millpond.store.verbs.settle import holds

AHEAD = 16
PART = AHEAD // second_call.ENOUGH
"""How many make a second call."""

Fate = Callable[[], object]
"""What happens to a call after it was done; may raise."""


class Overlapping(LossyStore):
    """A store that takes a second call; what it does with each call is in `first` and `second`."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.log: list[tuple[str, int]] = []
        self.asks: list[LeaseRequest] = []
        self.states: list[bool] = []
        self.worker: Callable[[], Worker]
        self.takes = True
        self.first_is_lost: Callable[[], bool] = lambda: False
        self.second_is: Callable[[], str] = lambda: "done"
        self.delay = 2.25
        self.after = self._late

    async def _late(self, verb: str, ended: Any) -> None:
        if verb != "settle":
            return
        self.log.append(("first", len(ended)))
        await asyncio.sleep(self.delay)
        self.log.append(("answer", len(ended)))
        if self.first_is_lost():
            raise ConnectionError("lost")

    def settle_behind(
        self, ended: Sequence[Settlement], *, then: LeaseRequest
    ) -> Coroutine[Any, Any, SettleAnswer | None] | None:
        """Take a second call."""
        if not self.takes:
            return None
        self.log.append(("second", len(ended)))
        self.asks.append(then)
        self.states.append(self.worker().may_lease and not self.worker().unsure)
        loop = asyncio.get_running_loop()
        # The store does it at once, and the answer takes a while.
        done = loop.create_task(self._done(ended, then, self.second_is()))
        return self._behind(done, len(ended), loop.time() + self.delay)

    async def _done(
        self, ended: Sequence[Settlement], then: LeaseRequest, what: str
    ) -> tuple[str, SettleAnswer | None]:
        begun = {one.successor for one in ended}
        if not all(one.fence in begun or holds(self._store._tables, one.fence) for one in ended):
            what = "refused"  # what it depends on was not done
        if what in ("refused", "failed"):
            return what, None
        return what, await self._store.settle(ended, then=then)

    async def _behind(
        self, done: "asyncio.Task[tuple[str, SettleAnswer | None]]", count: int, until: float
    ) -> SettleAnswer | None:
        await asyncio.sleep(until - asyncio.get_running_loop().time())
        what, answer = await done
        self.log.append((what, count))
        if what in ("lost", "failed"):
            raise ConnectionError("lost")
        return answer


@dataclass
class Bench:
    """A pool with prefetch, whose jobs last a second each in two slots, and a store like that."""

    concurrency: int | None = 2
    limit: int = 2
    mp: Millpond = field(init=False)
    store: MemoryStore = field(init=False)
    lossy: Overlapping = field(init=False)
    pool: Pool = field(init=False)
    runs: Counter[int] = field(default_factory=Counter)
    now: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        self.store = shared()
        self.lossy = Overlapping(self.store)
        self.lossy.worker = self.worker
        self.mp = Millpond(work=False, lease=60.0)
        internals_of(self.mp).owner.make_store = lambda: self.lossy
        self.pool = self.mp.pool("p", max_concurrent=self.limit, prefetch=AHEAD)

        @self.pool.task
        async def job(n: int) -> int:
            self.runs[n] += 1
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(1)
            self.now -= 1
            return n

        self.job = job

    def worker(self) -> Worker:
        """Return the only worker."""
        (worker,) = internals_of(self.mp).runtime.workers
        return worker

    async def drained(self, count: int = 40) -> None:
        """Run some tasks, each once, and get all results."""
        async with self.mp:
            handles = await self.pool.submit_many(self.job.each(range(count)))
            async with self.mp.worker(concurrency=self.concurrency), asyncio.timeout(600):
                assert list(range(count)) == [await handle for handle in handles]
                assert not self.worker().tally.stale
            view = await self.store.view.pool("p")
            assert view is not None
            assert (0, 0) == (view.running, view.claimed)
        assert dict.fromkeys(range(count), 1) == self.runs
        assert self.most <= 2
        assert all(self.lossy.states)


def once(what: Any, usual: Any) -> Callable[[], Any]:
    """Return a function that returns one thing the first time, and another one after that."""
    left = [what]
    return lambda: left.pop() if left else usual


def with_the_first_second(lossy: Overlapping) -> Callable[[], bool]:
    """Return a function that is true once: for the call behind which the first second one was."""
    left = [True]
    return lambda: bool(lossy.asks and left and left.pop())


async def test_it_is_sent_while_the_first_is_on_its_way() -> None:
    """Two calls are under way, never three; it asks only for tasks to prefetch, as many as fit."""
    bench = Bench()
    await bench.drained()
    log = [what for what, _ in bench.lossy.log]
    assert "second" in log
    under_way = 0
    for what, count in bench.lossy.log:
        under_way += {"first": 1, "second": 1, "answer": -1, "done": -1}[what]
        assert 0 <= under_way <= 2
        assert what != "second" or count >= PART
    assert {0} == {ask.want for ask in bench.lossy.asks}
    assert all(0 < ask.ahead <= AHEAD for ask in bench.lossy.asks)


async def test_what_the_first_asks_for_counts_as_prefetched() -> None:
    """The store never holds more for the worker than it may prefetch."""
    bench, most = Bench(), 0
    behind = bench.lossy.settle_behind

    def counted(ended: Sequence[Settlement], *, then: LeaseRequest) -> Any:
        nonlocal most
        worker = bench.worker()
        held = len(worker.prefetch.held.get("p", ()))
        most = max(most, held + then.ahead + first.ahead)
        return behind(ended, then=then)

    first = LeaseRequest(pool="p", worker="", want=0, ahead=0)
    open_ = second_call.SecondCall.open

    def opened(self: Any, pool: str, ask: LeaseRequest | None) -> None:
        nonlocal first
        first = ask or LeaseRequest(pool="p", worker="", want=0, ahead=0)
        open_(self, pool, ask)

    bench.lossy.settle_behind = counted  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(second_call.SecondCall, "open", opened)
        await bench.drained()
    assert most == AHEAD


@pytest.mark.parametrize("second", ["done", "refused", "lost", "failed"])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_every_task_runs_once_whatever_becomes_of_both(second: str, is_lost: bool) -> None:
    """A call in doubt is settled again, and a refused one after the first."""
    bench = Bench()
    bench.lossy.second_is = once(second, "done")
    if is_lost:
        bench.lossy.first_is_lost = with_the_first_second(bench.lossy)
    await bench.drained()
    assert any(what == second for what, _ in bench.lossy.log)
    view = await bench.store.view.pool("p")
    assert view is not None
    if second == "refused" and not is_lost:
        assert not view.stale_settles


async def test_a_refused_call_goes_again_before_what_ended_later() -> None:
    """It goes alone, as the first of the next ones."""
    bench = Bench()
    bench.lossy.second_is = once("refused", "done")
    settled: list[int] = []
    settle = bench.store.settle

    async def noted(ended: Sequence[Settlement], **given: Any) -> SettleAnswer:
        settled.extend(one.fence.task for one in ended)
        return await settle(ended, **given)

    bench.store.settle = noted  # type: ignore[method-assign, assignment]
    await bench.drained()
    number = {task: n for n, task in enumerate(sorted(settled))}
    # Two end at once.
    assert [n // 2 for n in range(40)] == [number[task] // 2 for task in settled]


async def test_another_queue_does_not_wait_until_nothing_is_prefetched() -> None:
    """While one is due that has a free slot, no second call is sent: the next one asks it."""
    bench = Bench()
    other = bench.mp.pool("q", max_concurrent=5)
    begun: list[None] = []

    @other.task
    async def rest() -> None:
        begun.append(None)

    async with bench.mp:
        handles = await bench.pool.submit_many(bench.job.each(range(120)))
        async with bench.mp.worker(concurrency=3), asyncio.timeout(600):
            for number in range(1, 4):
                await asyncio.sleep(5)
                assert bench.lossy.asks
                await rest.submit()
                await asyncio.sleep(4 * bench.lossy.delay)
                assert len(begun) == number
            await bench.mp.wait(handles)


@pytest.mark.parametrize("concurrency", [2, 3])
async def test_none_is_sent_if_a_slot_is_free(concurrency: int) -> None:
    """The next call asks for tasks to start, and knows what the answer to this one brought."""
    bench = Bench(concurrency=concurrency)
    free: list[int] = []
    behind = bench.lossy.settle_behind

    def noted(ended: Sequence[Settlement], *, then: LeaseRequest) -> Any:
        free.append(min(concurrency, 2) - len(bench.worker().jobs))
        return behind(ended, then=then)

    bench.lossy.settle_behind = noted  # type: ignore[method-assign]
    await bench.drained()
    assert free
    assert not any(free)


async def test_after_many_in_a_row_one_goes_alone() -> None:
    """It asks for what a second call does not ask for."""
    bench = Bench()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(second_call, "MOST_IN_A_ROW", 2)
        await bench.drained(60)
    row, longest = 0, 0
    for what, _ in bench.lossy.log:
        row = row + 1 if what == "second" else 0 if what == "first" else row
        longest = max(longest, row)
    assert 2 == longest


async def test_a_worker_that_stops_waits_for_both() -> None:
    """What they end is settled, what they bring is given back, and nothing is left."""
    bench = Bench()
    async with bench.mp:
        await bench.pool.submit_many(bench.job.each(range(40)))
        async with bench.mp.worker(concurrency=2):
            while not bench.lossy.asks:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.01)
        view = await bench.store.view.pool("p")
        assert view is not None
        assert (0, 0) == (view.running, view.claimed)
        assert not view.stale_settles
        begun = set(bench.runs)
        async with bench.mp.worker(concurrency=2), asyncio.timeout(600):
            await bench.pool.drain()
    assert set(range(40)) == set(bench.runs)
    assert len(begun) <= sum(bench.runs.values()) - 40 + len(begun)


async def test_an_order_takes_back_what_an_answer_on_its_way_brings() -> None:
    """The store had done the call before the order, and its answer is heard after it."""
    bench = Bench()
    async with bench.mp:
        await bench.pool.submit_many(bench.job.each(range(40)))
        async with bench.mp.worker(concurrency=2):
            while not (bench.lossy.asks and bench.lossy.log[-1][0] == "answer"):  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.01)
            bench.lossy.takes = False
            await bench.pool.pause()
            begun = len(bench.runs)
            await asyncio.sleep(10)
            assert begun == len(bench.runs)
            view = await bench.store.view.pool("p")
            assert view is not None
            assert (0, 0) == (view.running, view.claimed)
            await bench.pool.resume()


async def test_none_is_sent_while_another_worker_may_leave_a_slot() -> None:
    """The next call asks for it."""
    bench = Bench(concurrency=3, limit=4)
    async with bench.mp:
        await bench.store.control(Register("other", 600.0))
        await bench.pool.pause()
        handles = await bench.pool.submit_many(bench.job.each(range(100)))
        await bench.pool.resume()
        ask = LeaseRequest(pool="p", worker="other", want=2)
        leased = (await bench.store.lease(ask)).leased
        async with bench.mp.worker(concurrency=3), asyncio.timeout(600):
            await asyncio.sleep(20)
            assert not bench.lossy.asks
            ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in leased]
            await bench.store.settle(ends)
            await bench.mp.wait(handles)
    assert bench.most <= 3


async def test_a_turn_that_is_cancelled_keeps_both() -> None:
    """Nothing is lost: all of it is settled again by the next turn."""
    bench = Bench()
    async with bench.mp:
        handles = await bench.pool.submit_many(bench.job.each(range(20)))
        async with bench.mp.worker(concurrency=2), asyncio.timeout(600):
            while not bench.lossy.asks:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.01)
            worker = bench.worker()
            driver = worker.driver
            assert driver is not None
            (_, first), (_, second) = bench.lossy.log[-2:]
            before = len(worker.ended)
            driver.cancel()
            await asyncio.wait([driver])
            assert len(worker.ended) == before + first + second
            worker.stopping = False
            await worker.turn()
            assert not worker.stopping
            worker._turns.start()
            assert list(range(20)) == [await handle for handle in handles]
    assert dict.fromkeys(range(20), 1) == bench.runs
