"""A process on a shared store that is slow, loses answers, and serves other processes too."""

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


class LossyStore:
    """A shared memory store whose verbs can fail after they were carried out, or answer late."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.view = store.view
        self.after: Callable[[str, Any], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)

        async def carried_out(*args: Any, **moment: Any) -> Any:
            answer = await verb(*args, **moment)
            if self.after is not None:
                await self.after(name, args[0] if args else None)
            return answer

        return carried_out

    async def close(self) -> None:
        """Do nothing: the other processes still use the store."""


def shared() -> MemoryStore:
    """A memory store on the clock of the loop."""
    return MemoryStore(clock=asyncio.get_running_loop().time)


def process(store: MemoryStore, *, work: bool | None = None) -> tuple[Millpond, LossyStore]:
    """A Millpond that shares a store with others."""
    mp, lossy = Millpond(work=work, lease=6.0), LossyStore(store)
    internals_of(mp).owner.make_store = lambda: lossy
    return mp, lossy


async def test_a_task_leased_again_by_the_verb_whose_answer_was_lost_is_not_lost() -> None:
    """The lost verb gave a task back and leased it again: the worker gives that lease back too."""
    mp, lossy = process(shared())
    pool = mp.pool("work")
    runs: list[int] = []

    @pool.task
    async def job(number: int) -> int:
        runs.append(number)
        if len(runs) == 1:
            await asyncio.sleep(1)
            raise RetryLater(0.0)
        return number

    async def lose_once(verb: str, _command: object) -> None:
        if verb == "settle":
            lossy.after = None
            raise ConnectionError("lost")

    async with mp:
        # A second task waits, so that the verb which settles the first also leases the next.
        handles = await pool.submit_many(job.each(range(2)))
        await asyncio.sleep(0.5)
        lossy.after = lose_once
        async with asyncio.timeout(30):
            assert [0, 1] == [await handle for handle in handles]
    assert [0, 0, 1] == runs


async def test_a_prefetched_task_started_by_a_lease_whose_answer_was_lost_runs() -> None:
    """The store counts it as running and the worker as prefetched: the worker gives it back."""
    store = shared()
    mp, lossy = process(store)
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
            lossy.after = None
            raise ConnectionError("lost")

    async with mp:
        await store.control(Register("other", 60.0))
        await pool.pause()
        handles = await pool.submit_many(job.each(range(3)))
        await pool.resume()
        # Another worker takes the only slot first, so this one prefetches the rest.
        (leased,) = (await store.lease(LeaseRequest(pool=pool.name, worker="other", want=1))).leased
        await asyncio.sleep(5)
        assert 2 == (await stored()).claimed
        lossy.after = lose_once
        await store.settle([Settlement(fence=leased.fence, event=Transition.COMPLETE, result=b"0")])
        async with asyncio.timeout(30):
            assert [0, 1, 2] == [await handle for handle in handles]
        assert lossy.after is None


async def test_the_result_of_a_closure_is_ready_before_its_end_is_visible() -> None:
    """The store knows the end while the answer to the settlement is still on its way."""
    mp, lossy = process(shared())
    pool = mp.pool("work")

    async def late(verb: str, _command: object) -> None:
        if verb == "settle":
            await asyncio.sleep(3)

    async def closure() -> str:
        await asyncio.sleep(0.1)
        return "value"

    async with mp:
        lossy.after = late
        assert "value" == await (await pool.submit(closure))


async def test_a_worker_that_cannot_deregister_still_stops() -> None:
    """Its lease expires, so another worker recovers its tasks."""
    mp, lossy = process(shared(), work=False)
    mp.pool("work")

    async def fail_deregister(_verb: str, command: object) -> None:
        if isinstance(command, Deregister):
            raise ConnectionError("lost")

    async with mp:
        lossy.after = fail_deregister
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


async def test_a_client_sees_the_end_of_a_task_that_another_process_ran() -> None:
    """No hint arrives: the client polls, and the wait ends."""
    store = shared()
    (client, _), (worker, _) = process(store, work=False), process(store)
    pool, _ = declared(client), declared(worker)
    async with client, worker, asyncio.timeout(10):
        handle = await pool.submit(client.tasks["job"].bind(7))
        assert 7 == await handle


async def test_parked_submitters_get_the_room_that_another_process_made() -> None:
    """They are admitted when a worker of another process claims the tasks before theirs."""
    store = shared()
    (client, _), (worker, _) = process(store, work=False), process(store)
    pool, _ = declared(client), declared(worker)
    async with client, worker, asyncio.timeout(60):
        job = client.tasks["job"]
        handles = await asyncio.gather(*(pool.submit(job.bind(number)) for number in range(5)))
        assert list(range(5)) == [await handle for handle in handles]
