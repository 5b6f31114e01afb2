"""Forged hints: they cause a few reads of the store and nothing else."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.durable import Cluster, ProcessStore
from tests.runtime.test_fleet_hints import declared, store_of, two

from millpond import Millpond
from millpond.core.plan import Wake
from millpond.pool.internals import internals_of
from millpond.store.protocol import Hint

pytestmark = pytest.mark.rows("TR-14")


def forge(mp: Millpond, hint: Hint) -> None:
    """Send a process a hint that no commit caused."""
    on_hint: Callable[[Hint], None] | None = store_of(mp).on_hint
    assert on_hint is not None
    on_hint(hint)


def calls_of(store: ProcessStore) -> int:
    """Count the calls of a process to the store so far."""
    return sum(store.calls.values())


async def test_a_forged_cancel_stops_no_task() -> None:
    """Neither the cancel nor the interrupt reaches the handler; a real cancel does."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    async with client, worker:
        handle = await client.tasks["wait_for_cancel"].submit()
        await asyncio.sleep(1)
        job = internals_of(worker).runtime.job_of(handle.id)
        assert job is not None
        forge(worker, Hint(cancelled=(handle.id,), interrupted=(handle.id,)))
        await asyncio.sleep(1)
        assert not job.cancel_asked
        assert not job.interrupted
        await handle.cancel()
        assert "saw the cancel" == await handle


async def test_a_forged_end_drops_no_closure_and_ends_no_wait() -> None:
    """The closure runs, and its value arrives."""
    cluster = Cluster(threads=False)
    mp = cluster.millpond(work=False)
    pool = declared(mp)
    async with mp:
        await pool.pause()

        async def closure() -> str:
            return "done"

        handle = await pool.submit(closure)
        waiting = asyncio.create_task(handle.wait(timeout=60))
        await asyncio.sleep(1)
        forge(mp, Hint(ended=(handle.id,)))
        await asyncio.sleep(1)
        assert handle.id in internals_of(mp).runtime.closures
        await pool.resume()
        assert "done" == (await waiting).result


async def test_a_forged_end_does_not_end_a_stream_of_progress() -> None:
    """The client receives every report of the task."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    async with client, worker:
        handle = await client.tasks["report_progress"].submit()
        seen = []
        async for one in handle.progress():
            seen.append(one[1])
            forge(client, Hint(ended=(handle.id,)))
        assert ["step 1", "step 2", "step 3"] == seen


@pytest.mark.parametrize(
    "make",
    [
        lambda _: Hint(wakes=(Wake("work", 0.0),)),
        lambda task: Hint(cancelled=(task,), interrupted=(task,)),
        lambda task: Hint(ended=(task,)),
        lambda _: Hint(ended=tuple(range(1, 300))),
        lambda _: Hint(finished_runs=tuple(range(1, 300))),
        lambda _: Hint(more=True),
    ],
)
async def test_a_flood_of_hints_is_no_flood_of_queries(make: Callable[[int], Hint]) -> None:
    """Ten thousand hints in ten seconds cost a few hundred queries."""
    cluster = Cluster(threads=False)
    mp = cluster.millpond(work=True)
    declared(mp)
    async with mp:
        handle = await mp.tasks["wait_for_cancel"].submit()
        waiting = asyncio.create_task(handle.wait(timeout=1000))
        await asyncio.sleep(5)
        before = calls_of(store_of(mp))
        for _ in range(10_000):
            forge(mp, make(handle.id))
            await asyncio.sleep(0.001)
        assert calls_of(store_of(mp)) - before < 1_000
        await handle.cancel()
        assert "saw the cancel" == (await waiting).result


async def test_a_worker_finds_work_at_once_after_a_flood_of_forged_wakes() -> None:
    """A wake that is held back is sent a moment later."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    async with client, worker:
        for _ in range(1_000):
            forge(worker, Hint(wakes=(Wake("work", 0.0), Wake("no such pool", 0.0))))
            await asyncio.sleep(0.001)
        began = asyncio.get_running_loop().time()
        handle: Any = await client.tasks["job"].submit()
        await handle.wait(timeout=60)
        assert asyncio.get_running_loop().time() - began <= 0.2
        assert "no such pool" not in internals_of(worker).runtime.hint_listener._wakes


async def test_a_process_that_awaits_nothing_polls_no_more_often_for_hints() -> None:
    """A process that only serves a dashboard receives hints of every commit of a busy fleet."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    async with client, worker:
        await asyncio.sleep(1)
        before = calls_of(store_of(client))
        for _ in range(100):
            forge(client, Hint(more=True))
            await asyncio.sleep(0.01)
        assert calls_of(store_of(client)) - before <= 3
