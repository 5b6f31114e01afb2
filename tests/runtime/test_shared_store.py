"""A store that others use too, that is slow, and that loses answers: what a process makes of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from millpond import Millpond, Pool, RetryLater, bounded
from millpond.core.control import Deregister, Register
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.pool.internals import internals_of
from millpond.store.memory import MemoryStore
from millpond.store.protocol import PoolView


class Line:
    """A shared memory store whose verbs can fail after they were carried out, or answer late."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.view = store.view
        self.after: Callable[[str, Any], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)

        async def carried_out(*asked: Any, **moment: Any) -> Any:
            answer = await verb(*asked, **moment)
            if self.after is not None:
                await self.after(name, asked[0] if asked else None)
            return answer

        return carried_out

    async def close(self) -> None:
        """One process goes; the store stays for the others."""


def shared() -> MemoryStore:
    """A memory store on the clock of the loop."""
    return MemoryStore(clock=asyncio.get_running_loop().time)


def process(store: MemoryStore, *, work: bool | None = None) -> tuple[Millpond, Line]:
    """A Millpond that shares a store with others."""
    mp, line = Millpond(work=work, lease=6.0), Line(store)
    internals_of(mp).owner.make_store = lambda: line
    return mp, line


async def test_a_task_leased_again_by_the_verb_whose_answer_was_lost_is_not_lost() -> None:
    """The lost verb gave a task back and leased it anew: the worker gives that lease back too."""
    mp, line = process(shared())
    pool = mp.pool("work")
    runs: list[int] = []

    @pool.task
    async def job(number: int) -> int:
        runs.append(number)
        if len(runs) == 1:
            await asyncio.sleep(1)
            raise RetryLater(0.0)
        return number

    async def lose_once(verb: str, _asked: object) -> None:
        if verb == "settle":
            line.after = None
            raise ConnectionError("lost")

    async with mp:
        # A second one waits, so that the verb which settles the first also asks for the next.
        handles = await pool.submit_many(job.each(range(2)))
        await asyncio.sleep(0.5)
        line.after = lose_once
        async with asyncio.timeout(30):
            assert [0, 1] == [await handle for handle in handles]
    assert [0, 0, 1] == runs


async def test_a_prefetched_task_started_by_a_lease_whose_answer_was_lost_runs() -> None:
    """The store counts it as running and the worker as prefetched: the worker gives it back."""
    store = shared()
    mp, line = process(store)
    pool = mp.pool("work", max_concurrent=1, prefetch=2)

    @pool.task
    async def job(number: int) -> int:
        return number

    async def stored() -> PoolView:
        view = await store.view.pool(pool.name)
        assert view is not None
        return view

    async def lose_once(verb: str, _command: object) -> None:
        if verb == "lease" and (await stored()).running:
            line.after = None
            raise ConnectionError("lost")

    async with mp:
        await store.control(Register("other", 60.0))
        await pool.pause()
        handles = await pool.submit_many(job.each(range(3)))
        await pool.resume()
        # Another worker takes the only slot before this one asks, which then prefetches the rest.
        (leased,) = (await store.lease(LeaseRequest(pool=pool.name, worker="other", want=1))).leased
        await asyncio.sleep(5)
        assert 2 == (await stored()).claimed
        line.after = lose_once
        await store.settle([Settlement(fence=leased.fence, event=Transition.COMPLETE, result=b"0")])
        async with asyncio.timeout(30):
            assert [0, 1, 2] == [await handle for handle in handles]
        assert line.after is None


async def test_what_a_closure_returned_is_there_before_its_end_can_be_read() -> None:
    """The store knows the end while the answer to the settlement is still on its way."""
    mp, line = process(shared())
    pool = mp.pool("work")

    async def late(verb: str, _asked: object) -> None:
        if verb == "settle":
            await asyncio.sleep(3)

    async def closure() -> str:
        await asyncio.sleep(0.1)
        return "value"

    async with mp:
        line.after = late
        assert "value" == await (await pool.submit(closure))


async def test_a_worker_that_cannot_take_its_leave_is_gone_all_the_same() -> None:
    """Its lease is renewed no more, so that what it held is found lost."""
    mp, line = process(shared(), work=False)
    mp.pool("work")

    async def no_leave(_verb: str, asked: object) -> None:
        if isinstance(asked, Deregister):
            raise ConnectionError("lost")

    async with mp:
        line.after = no_leave
        async with mp.worker():
            assert 1 == len(internals_of(mp).runtime.workers)
        assert [] == internals_of(mp).runtime.workers


def declared(mp: Millpond) -> Pool:
    """The same pool and task in every process."""
    pool = mp.pool("work", backpressure=bounded(1, on_full="block_submitter"))

    @pool.task(name="job")
    async def job(number: int) -> int:
        await asyncio.sleep(1)
        return number

    return pool


async def test_the_end_of_a_task_that_another_process_ran_is_told() -> None:
    """Nobody tells a process of what others did: it looks, and whoever waits is told."""
    store = shared()
    (client, _), (worker, _) = process(store, work=False), process(store)
    pool, _ = declared(client), declared(worker)
    async with client, worker, asyncio.timeout(10):
        handle = await pool.submit(client.tasks["job"].bind(7))
        assert 7 == await handle


async def test_room_that_another_process_made_is_offered() -> None:
    """Submitters in line get in when a worker elsewhere has taken what stood before them."""
    store = shared()
    (client, _), (worker, _) = process(store, work=False), process(store)
    pool, _ = declared(client), declared(worker)
    async with client, worker, asyncio.timeout(60):
        job = client.tasks["job"]
        handles = await asyncio.gather(*(pool.submit(job.bind(number)) for number in range(5)))
        assert list(range(5)) == [await handle for handle in handles]
