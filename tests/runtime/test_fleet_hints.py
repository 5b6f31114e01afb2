"""Changes by other processes: hints report them at once, and polling finds them without hints."""

import asyncio
from typing import Any

import pytest
from tests.runtime.durable import Cluster, ProcessStore

from millpond import Context, Millpond, Pool, bounded
from millpond.pool.internals import internals_of
from millpond.runtime.fleet.lease_times import RENEWALS_PER_LEASE
from millpond.store.protocol import Hint

AT_ONCE = 0.05
FLOOR = 1.1
LEASE = 30.0


def declared(mp: Millpond) -> Pool:
    """The same pools and tasks in every process."""
    pool = mp.pool("work", max_concurrent=5)

    @pool.task(name="job")
    async def job(seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return internals_of(mp).runtime.owner

    @pool.task(name="grow")
    async def grow(ctx: Context, depth: int) -> int:
        if depth:
            await ctx.submit_many([grow.bind(depth - 1), grow.bind(depth - 1)])
        return depth

    @pool.task(name="report_progress")
    async def report_progress(ctx: Context) -> None:
        for step in range(1, 4):
            await ctx.progress(step / 4, f"step {step}")
            await asyncio.sleep(5)

    @pool.task(name="wait_for_cancel")
    async def wait_for_cancel(ctx: Context) -> str:
        await ctx.cancelled.wait()
        return "saw the cancel"

    @pool.task(name="cleans_up")
    async def cleans_up() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(2 * LEASE)
        return "clean"

    return pool


def two(cluster: Cluster) -> tuple[Millpond, Millpond]:
    """A client and a worker."""
    client, worker = cluster.millpond(work=False), cluster.millpond(work=True)
    declared(client)
    declared(worker)
    return client, worker


def store_of(mp: Millpond) -> ProcessStore:
    """The store as a process sees it."""
    store: Any = internals_of(mp).runtime.store
    return store  # type: ignore[no-any-return]


def now() -> float:
    """The time of the loop."""
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(("hints", "late"), [(True, 2 * AT_ONCE), (False, 2 * FLOOR)])
async def test_work_and_its_end_reach_the_other_process(hints: bool, late: float) -> None:
    """At once with hints; without, one poll interval finds the work and one more its end."""
    cluster = Cluster(threads=False, hints=hints)
    client, worker = two(cluster)
    async with client, worker:
        await asyncio.sleep(10)
        began = now()
        handle = await client.tasks["job"].submit()
        assert internals_of(worker).runtime.owner == (await handle.wait(timeout=60)).result
        assert now() - began <= late


async def test_an_idle_process_polls_once_per_interval_and_does_nothing_else() -> None:
    """The one call asks whether another process wrote."""
    cluster = Cluster(threads=False)
    mp = cluster.millpond(work=False)
    declared(mp)
    async with mp:
        await asyncio.sleep(5)
        before = store_of(mp).calls.copy()
        await asyncio.sleep(100)
        calls = store_of(mp).calls - before
        assert {"changed"} == set(calls)
        assert 99 <= calls["changed"] <= 101


async def test_an_idle_worker_also_renews_its_lease_and_its_leadership() -> None:
    """One write for each per interval; it reads no pool."""
    cluster = Cluster(threads=False)
    mp = cluster.millpond(work=True, lease=30.0)
    declared(mp)
    async with mp:
        await asyncio.sleep(100)
        before = store_of(mp).calls.copy()
        await asyncio.sleep(300)
        calls = store_of(mp).calls - before
        assert 299 <= calls.pop("changed") <= 301
        assert 29 <= calls.pop("renew") <= 31
        assert 29 <= calls.pop("control") <= 31
        # Now and then it checks that no lease ran out.
        assert calls.pop("recover", 0) <= 20
        assert {} == dict(calls)


async def test_a_delayed_task_whose_hint_was_lost_starts_in_time() -> None:
    """Nothing is written when it becomes due: the worker saw the submit and knows the time."""
    cluster = Cluster(threads=False, hints=False)
    client, worker = two(cluster)
    async with client, worker:
        await asyncio.sleep(10)
        handle = await client.tasks["job"].options(delay=20.0).submit()
        began = now()
        await handle.wait(timeout=60)
        assert 20 <= now() - began <= 20 + FLOOR


async def test_a_worker_notices_that_another_process_resumed_the_pool() -> None:
    """Polling finds it when the hint was lost."""
    cluster = Cluster(threads=False, hints=False)
    client, worker = two(cluster)
    async with client, worker:
        await client.get_pool("work").pause()
        handle = await client.tasks["job"].submit()
        await asyncio.sleep(10)
        await client.get_pool("work").resume()
        began = now()
        await handle.wait(timeout=60)
        assert now() - began <= 2 * FLOOR


async def test_a_handler_sees_a_cancel_from_another_process_at_once() -> None:
    """The hint is ten seconds faster than the next renewal."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    async with client, worker:
        handle = await client.tasks["wait_for_cancel"].submit()
        await asyncio.sleep(1)
        await client.cancel(handle.id)
        began = now()
        assert "saw the cancel" == (await handle.wait(timeout=60)).result
        assert now() - began <= AT_ONCE


@pytest.mark.parametrize("hints", [True, False])
async def test_an_interrupt_cancels_the_handler_where_it_runs(hints: bool) -> None:
    """At once by a hint, else by the next renewal; also after a cooperative cancel."""
    cluster = Cluster(threads=False, hints=hints)
    client, worker = two(cluster)
    async with client, worker:
        handle = await client.tasks["job"].submit(1000.0)
        await asyncio.sleep(1)
        assert await client.cancel(handle.id)
        await asyncio.sleep(1)
        assert ["running"] == await worker.status([handle.id])
        began = now()
        assert await client.cancel(handle.id, mode="interrupt")
        assert "cancelled" == (await handle.wait(timeout=60)).status
        assert now() - began <= (AT_ONCE if hints else LEASE / RENEWALS_PER_LEASE + 1.0)


async def test_cancel_all_interrupts_a_task_that_another_process_runs() -> None:
    """The hint reaches the process that runs it."""
    client, worker = two(Cluster(threads=False))
    async with client, worker:
        handle = await client.tasks["job"].submit(1000.0)
        await asyncio.sleep(1)
        assert 1 == await client.get_pool("work").cancel_all(mode="interrupt")
        await asyncio.sleep(AT_ONCE)
        assert ["cancelled"] == await worker.status([handle.id])


async def test_a_handler_that_cleans_up_is_interrupted_only_once() -> None:
    """Renewals and hints that repeat the interrupt have no effect."""
    client, worker = two(Cluster(threads=False))
    async with client, worker:
        handle = await client.tasks["cleans_up"].submit()
        await asyncio.sleep(1)
        await client.cancel(handle.id, mode="interrupt")
        on_hint = store_of(worker).on_hint
        assert on_hint is not None
        on_hint(Hint(cancelled=(handle.id,), interrupted=(handle.id,)))
        assert "clean" == (await handle.wait(timeout=1000)).result


@pytest.mark.parametrize("hints", [True, False])
async def test_a_prefetched_task_that_another_process_cancelled_does_not_start(hints: bool) -> None:
    """The worker gives it back, and the store ends it."""
    cluster = Cluster(threads=False, hints=hints)
    client, worker = cluster.millpond(work=False), cluster.millpond(work=True)
    ran: list[str] = []
    for mp in (client, worker):

        @mp.pool("work", max_concurrent=1, prefetch=2).task(name="note")
        async def note(name: str) -> None:
            ran.append(name)
            await asyncio.sleep(20)

    async with client, worker:
        await client.tasks["note"].submit("first")
        held = await client.tasks["note"].submit("second")
        await client.tasks["note"].submit("third")
        await asyncio.sleep(2)
        assert held.id in internals_of(worker).runtime.workers[0].prefetch.tasks()
        await client.cancel(held.id)
        await asyncio.sleep(50)
        assert ["cancelled"] == await worker.status([held.id])
    assert ["first", "third"] == ran


async def test_a_hint_without_details_makes_a_process_poll() -> None:
    """The hint says only that there is more; the worker finds the work at once."""
    cluster = Cluster(threads=False, hints=False)
    client, worker = two(cluster)
    async with client, worker:
        await asyncio.sleep(10.5)
        handle = await client.tasks["job"].submit()
        on_hint = store_of(worker).on_hint
        assert on_hint is not None
        on_hint(Hint(more=True))
        await asyncio.sleep(AT_ONCE)
        assert ["completed"] == await worker.status([handle.id])


async def test_a_hint_calls_no_hooks() -> None:
    """on_dead_letter and observers run in the process that caused the event."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    seen: list[str] = []
    client.observe(lambda happened: seen.append(happened.kind))
    async with client, worker:
        await (await client.tasks["job"].submit())
        await asyncio.sleep(5)
    assert [] == seen


async def test_as_completed_and_wait_see_tasks_end_in_another_process() -> None:
    """In the order of their ends."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    job = client.tasks["job"]
    async with client, worker:
        handles = [await job.submit(float(seconds)) for seconds in (3, 1, 2)]
        ended = [handle.id async for handle in client.as_completed(handles)]
        assert [handles[1].id, handles[2].id, handles[0].id] == ended
        assert handles == await client.wait(handles)


@pytest.mark.parametrize("hints", [True, False])
async def test_a_drain_in_a_client_counts_the_tasks_that_other_processes_ran(hints: bool) -> None:
    """The run grows and ends in another process; its drain brings a worker, and both work."""
    cluster = Cluster(threads=False, hints=hints)
    client, worker = two(cluster)
    async with client, worker:
        report = await client.get_pool("work").drain([client.tasks["grow"].bind(4)])
        assert (31, 31) == (report.total, report.completed)
        began = now()
        await worker.tasks["job"].submit(7.0)
        await client.get_pool("work").drain()
        assert 7 <= now() - began <= 7 + 2 * FLOOR


@pytest.mark.parametrize("hints", [True, False])
async def test_a_stream_yields_the_outcomes_of_other_processes(hints: bool) -> None:
    """Each outcome once, wherever its task ended, follow-ups of other processes too."""
    cluster = Cluster(threads=False, hints=hints)
    client, worker = two(cluster)
    pool, seen = client.get_pool("work"), []
    async with client, worker:
        # Other tasks run in the same pool: the stream must not yield their outcomes.
        noise = [await worker.tasks["job"].submit(0.3) for _ in range(5)]
        async with pool.stream([client.tasks["grow"].bind(5)]) as outcomes:
            async for outcome in outcomes:
                seen.append((outcome.task_id, outcome.result))  # noqa: PERF401 - one by one, as they come
        assert outcomes.report is not None
        assert 63 == outcomes.report.completed == len(seen) == len(dict(seen))
        assert 32 == sum(result == 0 for _, result in seen)
        assert not {handle.id for handle in noise} & dict(seen).keys()


async def test_a_stream_that_joins_a_run_yields_only_later_outcomes() -> None:
    """A second process takes up the same run by its name."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    job = client.tasks["job"]
    async with client, worker:
        seed = [job.bind(float(seconds)) for seconds in (1, 3, 4)]
        first = asyncio.ensure_future(client.get_pool("work").drain(seed, run="nightly"))
        await asyncio.sleep(2)
        async with worker.get_pool("work").stream([], run="nightly") as outcomes:
            assert 2 == len([one async for one in outcomes])
        assert 3 == (await first).completed


async def test_progress_reported_in_another_process_arrives() -> None:
    """Within one poll interval, each report once, until the task ends."""
    cluster = Cluster(threads=False)
    client, worker = two(cluster)
    async with client, worker:
        handle = await client.tasks["report_progress"].submit()
        texts = [text async for _, text in handle.progress()]
    assert ["step 1", "step 2", "step 3"] == texts


@pytest.mark.parametrize("hints", [True, False])
async def test_a_parked_submit_soon_finds_room_made_by_another_process(hints: bool) -> None:
    """No hint announces a claim: a parked submit polls more often than once per interval."""
    cluster = Cluster(threads=False, hints=hints)
    client, worker = cluster.millpond(work=False), cluster.millpond(work=True)
    for mp in (client, worker):
        pool = mp.pool("narrow", max_concurrent=1, backpressure=bounded(1))

        @pool.task(name="short")
        async def short() -> None:
            await asyncio.sleep(0.2)

    async with client, worker:
        task, began = client.tasks["short"], now()
        handles = [await task.submit() for _ in range(20)]
        await client.wait(handles)
        # Twenty run one after another, without a poll interval for each.
        assert now() - began < (20 if not hints else 8)


async def test_a_poll_that_failed_is_repeated() -> None:
    """The process reads the change as soon as the store answers again."""
    cluster = Cluster(threads=False, hints=False)
    client, worker = two(cluster)
    async with client, worker:
        await asyncio.sleep(10)
        view: Any = internals_of(worker).runtime.view
        handle = await client.tasks["job"].submit()
        due = view.due
        failed: list[Any] = []

        async def fail_once(**kwargs: Any) -> Any:
            if not failed:
                failed.append(kwargs)
                raise ConnectionError("away")
            return await due(**kwargs)

        view.due = fail_once
        await handle.wait(timeout=60)
    assert failed


async def test_a_process_drops_a_closure_that_another_process_cancelled() -> None:
    """It finds out by polling when hints are lost."""
    cluster = Cluster(threads=False, hints=False)
    client, worker = two(cluster)

    async def closure() -> None: ...

    async with client, worker:
        handle = await client.get_pool("work").submit(closure, delay=1000.0)
        assert [handle.id] == list(internals_of(client).runtime.closures)
        await worker.cancel(handle.id)
        await asyncio.sleep(FLOOR)
        assert {} == internals_of(client).runtime.closures
