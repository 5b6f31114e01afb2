"""Results reach waiters in batches: how many reads a wait for many handles costs."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.durable import Cluster
from tests.runtime.test_fleet_hints import declared, store_of, two

from millpond import Handle, Millpond, Retry, Status, TaskFailed
from millpond.errors import UnknownTask
from millpond.pool.internals import internals_of
from millpond.runtime.waiting.result_reader import AT_ONCE
from millpond.runtime.waiting.results import AWAIT_FOR

MANY = 1_000
READS = ("task", "status", "results")


async def gather(_: Millpond, handles: Sequence[Handle[Any]]) -> list[Any]:
    return list(await asyncio.gather(*handles))


async def wait(mp: Millpond, handles: Sequence[Handle[Any]]) -> list[Any]:
    return [handle.result for handle in await mp.wait(handles)]


async def as_completed(mp: Millpond, handles: Sequence[Handle[Any]]) -> list[Any]:
    return [handle.result async for handle in mp.as_completed(handles)]


WAYS = pytest.mark.parametrize("way", [gather, wait, as_completed])
Way = Callable[[Millpond, Sequence[Handle[Any]]], Awaitable[list[Any]]]


def reads(mp: Millpond) -> int:
    """Return how often a process has read results from its store."""
    return sum(store_of(mp).calls[name] for name in READS)


@WAYS
async def test_results_of_this_process_need_one_read_per_batch(way: Way) -> None:
    """Thousands of waits share one read of tasks that ended before; later ends need no read."""
    cluster = Cluster(threads=False)
    mp = cluster.millpond(work=True)
    pool = declared(mp)
    async with mp:
        before = reads(mp)
        handles = await pool.submit_many(mp.tasks["job"].bind() for _ in range(3 * MANY))
        assert {internals_of(mp).runtime.owner} == set(await way(mp, handles))
        assert reads(mp) - before <= 1 + 3 * MANY // AT_ONCE


@WAYS
async def test_results_of_another_process_are_fetched_once_per_wake_up(way: Way) -> None:
    """The waits share reads: there are far fewer reads than handles."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    async with client, worker:
        before = reads(client)
        job = client.tasks["job"]
        handles = await client.get_pool("work").submit_many(job.bind(0.1) for _ in range(MANY))
        assert {internals_of(worker).runtime.owner} == set(await way(client, handles))
        # 5 slots: at most 200 wake-ups, and a poll each second.
        assert reads(client) - before <= MANY // 5 + 25


async def test_waits_without_hints_are_ended_by_the_poll() -> None:
    """Polling alone ends all waits, with one read per second."""
    cluster = Cluster(hints=False, threads=False)
    client, worker = two(cluster)
    async with client, worker:
        job = client.tasks["job"]
        handles = await client.get_pool("work").submit_many(job.bind(0.0) for _ in range(MANY))
        before, began = reads(client), asyncio.get_running_loop().time()
        assert MANY == len(await asyncio.gather(*handles))
        waited = asyncio.get_running_loop().time() - began
        assert reads(client) - before <= 2 * (waited + 2)


async def test_a_failed_read_raises_only_in_the_waits_that_needed_it() -> None:
    """An earlier wait goes on and still gets its result."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    async with client, worker:
        handle = await client.tasks["job"].submit(5.0)
        first = asyncio.create_task(handle.wait())
        await asyncio.sleep(1)
        view = store_of(client).view
        view.results = broken  # type: ignore[attr-defined]
        again = await client.handle(handle.id)
        with pytest.raises(ConnectionError, match="away"):
            await again.wait()
        del view.results
        assert (await first).result == internals_of(worker).runtime.owner


async def broken(_tasks: Sequence[int]) -> Any:
    raise ConnectionError("the store is away")


async def test_an_unknown_task_ends_its_own_wait_only() -> None:
    """The others of the same read get their results."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    async with client, worker:
        known = await client.tasks["job"].submit(1.0)
        unknown = await client.tasks["job"].submit(1.0)
        internals_of(unknown).id = 12345
        found = await asyncio.gather(known, unknown, return_exceptions=True)
        assert found[0] == internals_of(worker).runtime.owner
        assert isinstance(found[1], UnknownTask)


async def test_a_cancelled_task_and_a_failed_one_arrive_in_one_read() -> None:
    """How a task ended arrives with its result, also from another process."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    pools = client.get_pool("work"), worker.get_pool("work")
    for pool in pools:

        @pool.task(name="fail")
        async def fail() -> None:
            raise ValueError("no")

    async with client, worker:
        bad = await client.tasks["fail"].options(retry=Retry.never()).submit()
        late = await client.tasks["job"].options(delay=1000).submit()
        waiting = asyncio.gather(bad, late, return_exceptions=True)
        await asyncio.sleep(1)
        await worker.get_pool("work").cancel(late.id)
        failed, _ = await waiting
        assert isinstance(failed, TaskFailed)
        assert (bad.status, late.status) == (Status.FAILED, Status.CANCELLED)


@WAYS
async def test_ended_and_cancelled_waits_leave_no_entry(way: Way) -> None:
    """A wait may end with its task or with a timeout."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    async with client, worker:
        pool, job = client.get_pool("work"), client.tasks["job"]
        await way(client, await pool.submit_many(job.bind() for _ in range(20)))
        handles = await pool.submit_many(job.bind(1000.0) for _ in range(20))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await way(client, handles)
        waiting = internals_of(client).runtime.waiting
        assert not waiting.any_waiting
        assert not waiting._reader._wanted
        await pool.cancel_all()


@pytest.mark.parametrize("way", ["wait", "as_completed"])
def test_a_thread_that_waits_for_many_handles_reads_them_together(tmp_path: Path, way: str) -> None:
    """mp.sync on a file, with a worker in the same process."""
    mp = Millpond(f"sqlite:///{tmp_path}/work.db", work=True)
    pool = mp.pool("many", max_concurrent=50)

    @pool.task
    async def double(n: int) -> int:
        return 2 * n

    with mp.sync:
        handles = pool.sync.submit_many(double.bind(n) for n in range(MANY))
        count = 0
        view = internals_of(mp).runtime.view
        read = view.results

        async def counted(tasks: Sequence[int]) -> Any:
            nonlocal count
            count += 1
            return await read(tasks)

        view.results = counted  # type: ignore[method-assign]
        found = mp.sync.wait(handles) if way == "wait" else mp.sync.as_completed(handles)
        assert sorted(one.result or 0 for one in found) == [2 * n for n in range(MANY)]
        # One at the start, and one for each poll that finds a write of another process.
        assert count <= 20


async def test_ends_give_hints_while_code_waits_and_for_a_while_after() -> None:
    """A process that submits and waits in turn requests hints once."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    async with client, worker:
        store, job = store_of(client), client.tasks["job"]
        await asyncio.sleep(2 * AWAIT_FOR)
        assert store not in cluster.awaiting
        handle = await job.submit(3 * AWAIT_FOR)
        waiting = asyncio.create_task(handle.wait())
        await asyncio.sleep(2 * AWAIT_FOR)
        assert store in cluster.awaiting
        await waiting
        await asyncio.sleep(AWAIT_FOR / 2)
        assert store in cluster.awaiting
        await asyncio.sleep(2 * AWAIT_FOR)
        assert store not in cluster.awaiting
        assert internals_of(worker).runtime.owner == await (await job.submit(1.0))
        assert store in cluster.awaiting
