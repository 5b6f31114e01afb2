"""What other processes do: heard of at once by hints, and found without them by one question."""

import asyncio
from typing import Any

import pytest
from tests.runtime.durable import Harbour, Ship

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

    @pool.task(name="tell")
    async def tell(ctx: Context) -> None:
        for step in range(1, 4):
            await ctx.progress(step / 4, f"step {step}")
            await asyncio.sleep(5)

    @pool.task(name="heed")
    async def heed(ctx: Context) -> str:
        await ctx.cancelled.wait()
        return "heeded"

    @pool.task(name="cleans_up")
    async def cleans_up() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(2 * LEASE)
        return "clean"

    return pool


def two(harbour: Harbour) -> tuple[Millpond, Millpond]:
    """A client and a worker."""
    client, worker = harbour.millpond(work=False), harbour.millpond(work=True)
    declared(client)
    declared(worker)
    return client, worker


def ship_of(mp: Millpond) -> Ship:
    """The store as a process sees it."""
    ship: Any = internals_of(mp).runtime.store
    return ship  # type: ignore[no-any-return]


def now() -> float:
    """The time of the loop."""
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(("hints", "late"), [(True, 2 * AT_ONCE), (False, 2 * FLOOR)])
async def test_work_and_its_end_reach_the_other_process(hints: bool, late: float) -> None:
    """With hints at once; without, one floor for the work to be found and one for its end."""
    harbour = Harbour(threads=False, hints=hints)
    client, worker = two(harbour)
    async with client, worker:
        await asyncio.sleep(10)
        began = now()
        handle = await client.tasks["job"].submit()
        assert internals_of(worker).runtime.owner == (await handle.wait(timeout=60)).result
        assert now() - began <= late


async def test_an_idle_process_asks_one_question_per_floor_and_nothing_else() -> None:
    """With nothing to do and nobody else about: whether anything was written."""
    harbour = Harbour(threads=False)
    mp = harbour.millpond(work=False)
    declared(mp)
    async with mp:
        await asyncio.sleep(5)
        before = ship_of(mp).asked.copy()
        await asyncio.sleep(100)
        asked = ship_of(mp).asked - before
        assert {"changed"} == set(asked)
        assert 99 <= asked["changed"] <= 101


async def test_an_idle_worker_renews_besides_and_keeps_its_lead() -> None:
    """One write for each per interval; no look at any pool."""
    harbour = Harbour(threads=False)
    mp = harbour.millpond(work=True, lease=30.0)
    declared(mp)
    async with mp:
        await asyncio.sleep(100)
        before = ship_of(mp).asked.copy()
        await asyncio.sleep(300)
        asked = ship_of(mp).asked - before
        assert 299 <= asked.pop("changed") <= 301
        assert 29 <= asked.pop("renew") <= 31
        assert 29 <= asked.pop("control") <= 31
        # Now and then it sees that nobody's lease ran out.
        assert asked.pop("recover", 0) <= 20
        assert {} == dict(asked)


async def test_a_delayed_task_whose_hint_was_lost_starts_in_time() -> None:
    """When it is due nothing is written any more: whoever saw that it came knows when to look."""
    harbour = Harbour(threads=False, hints=False)
    client, worker = two(harbour)
    async with client, worker:
        await asyncio.sleep(10)
        handle = await client.tasks["job"].options(delay=20.0).submit()
        began = now()
        await handle.wait(timeout=60)
        assert 20 <= now() - began <= 20 + FLOOR


async def test_a_pool_that_was_resumed_elsewhere_is_found() -> None:
    """Also where the hint was lost."""
    harbour = Harbour(threads=False, hints=False)
    client, worker = two(harbour)
    async with client, worker:
        await client.get_pool("work").pause()
        handle = await client.tasks["job"].submit()
        await asyncio.sleep(10)
        await client.get_pool("work").resume()
        began = now()
        await handle.wait(timeout=60)
        assert now() - began <= 2 * FLOOR


async def test_a_cancelled_task_is_told_at_once_where_it_runs() -> None:
    """Its renewal would tell it ten seconds later."""
    harbour = Harbour(threads=False)
    client, worker = two(harbour)
    async with client, worker:
        handle = await client.tasks["heed"].submit()
        await asyncio.sleep(1)
        await client.cancel(handle.id)
        began = now()
        assert "heeded" == (await handle.wait(timeout=60)).result
        assert now() - began <= AT_ONCE


@pytest.mark.parametrize("hints", [True, False])
async def test_an_interrupt_cancels_the_handler_where_it_runs(hints: bool) -> None:
    """At once, or by a renewal if nobody told; a word said before is no hindrance."""
    harbour = Harbour(threads=False, hints=hints)
    client, worker = two(harbour)
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


async def test_cancel_all_interrupts_wherever_it_runs() -> None:
    """Also what another process runs."""
    client, worker = two(Harbour(threads=False))
    async with client, worker:
        handle = await client.tasks["job"].submit(1000.0)
        await asyncio.sleep(1)
        assert 1 == await client.get_pool("work").cancel_all(mode="interrupt")
        await asyncio.sleep(AT_ONCE)
        assert ["cancelled"] == await worker.status([handle.id])


async def test_a_handler_that_cleans_up_is_interrupted_only_once() -> None:
    """Every renewal says it again, and so may a hint."""
    client, worker = two(Harbour(threads=False))
    async with client, worker:
        handle = await client.tasks["cleans_up"].submit()
        await asyncio.sleep(1)
        await client.cancel(handle.id, mode="interrupt")
        tell = ship_of(worker).tell
        assert tell is not None
        tell(Hint(cancelled=(handle.id,), interrupted=(handle.id,)))
        assert "clean" == (await handle.wait(timeout=1000)).result


@pytest.mark.parametrize("hints", [True, False])
async def test_a_claim_ahead_that_others_cancelled_is_not_started(hints: bool) -> None:
    """It goes back, and ends there."""
    harbour = Harbour(threads=False, hints=hints)
    client, worker = harbour.millpond(work=False), harbour.millpond(work=True)
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


async def test_more_than_could_be_told_makes_everybody_look() -> None:
    """The hint says only that there is more: the work is found at once all the same."""
    harbour = Harbour(threads=False, hints=False)
    client, worker = two(harbour)
    async with client, worker:
        await asyncio.sleep(10.5)
        handle = await client.tasks["job"].submit()
        tell = ship_of(worker).tell
        assert tell is not None
        tell(Hint(more=True))
        await asyncio.sleep(AT_ONCE)
        assert ["completed"] == await worker.status([handle.id])


async def test_a_hint_calls_no_hooks() -> None:
    """on_dead_letter and observers belong to the process whose doing it was."""
    harbour = Harbour(threads=False)
    client, worker = two(harbour)
    seen: list[str] = []
    client.observe(lambda happened: seen.append(happened.kind))
    async with client, worker:
        await (await client.tasks["job"].submit())
        await asyncio.sleep(5)
    assert [] == seen


async def test_as_completed_and_wait_see_ends_made_elsewhere() -> None:
    """In the order of their ends."""
    harbour = Harbour(threads=False)
    client, worker = two(harbour)
    job = client.tasks["job"]
    async with client, worker:
        handles = [await job.submit(float(seconds)) for seconds in (3, 1, 2)]
        ended = [handle.id async for handle in client.as_completed(handles)]
        assert [handles[1].id, handles[2].id, handles[0].id] == ended
        assert handles == await client.wait(handles)


@pytest.mark.parametrize("hints", [True, False])
async def test_a_drain_of_a_client_counts_what_others_ran(hints: bool) -> None:
    """The run grows and ends in another process; its drain brings a worker, and both work."""
    harbour = Harbour(threads=False, hints=hints)
    client, worker = two(harbour)
    async with client, worker:
        report = await client.get_pool("work").drain([client.tasks["grow"].bind(4)])
        assert (31, 31) == (report.total, report.completed)
        began = now()
        await worker.tasks["job"].submit(7.0)
        await client.get_pool("work").drain()
        assert 7 <= now() - began <= 7 + 2 * FLOOR


@pytest.mark.parametrize("hints", [True, False])
async def test_a_stream_yields_what_others_ran(hints: bool) -> None:
    """Each outcome once, wherever its task ended, follow-ups of other processes too."""
    harbour = Harbour(threads=False, hints=hints)
    client, worker = two(harbour)
    pool, seen = client.get_pool("work"), []
    async with client, worker:
        # Others run in the same pool: their ends are none of the stream's.
        noise = [await worker.tasks["job"].submit(0.3) for _ in range(5)]
        async with pool.stream([client.tasks["grow"].bind(5)]) as outcomes:
            async for outcome in outcomes:
                seen.append((outcome.task_id, outcome.result))  # noqa: PERF401 - one by one, as they come
        assert outcomes.report is not None
        assert 63 == outcomes.report.completed == len(seen) == len(dict(seen))
        assert 32 == sum(result == 0 for _, result in seen)
        assert not {handle.id for handle in noise} & dict(seen).keys()


async def test_a_stream_of_a_run_under_way_yields_what_ends_from_now_on() -> None:
    """A second process takes up the same run by its name."""
    harbour = Harbour(threads=False)
    client, worker = two(harbour)
    job = client.tasks["job"]
    async with client, worker:
        seed = [job.bind(float(seconds)) for seconds in (1, 3, 4)]
        first = asyncio.ensure_future(client.get_pool("work").drain(seed, run="nightly"))
        await asyncio.sleep(2)
        async with worker.get_pool("work").stream([], run="nightly") as outcomes:
            assert 2 == len([one async for one in outcomes])
        assert 3 == (await first).completed


async def test_progress_told_elsewhere_is_seen() -> None:
    """Within a floor, each word once, until the end."""
    harbour = Harbour(threads=False)
    client, worker = two(harbour)
    async with client, worker:
        handle = await client.tasks["tell"].submit()
        told = [text async for _, text in handle.progress()]
    assert ["step 1", "step 2", "step 3"] == told


@pytest.mark.parametrize("hints", [True, False])
async def test_room_made_elsewhere_is_found_soon(hints: bool) -> None:
    """Nobody tells of a claim: whoever stands in line looks more often than once per floor."""
    harbour = Harbour(threads=False, hints=hints)
    client, worker = harbour.millpond(work=False), harbour.millpond(work=True)
    for mp in (client, worker):
        pool = mp.pool("narrow", max_concurrent=1, backpressure=bounded(1))

        @pool.task(name="short")
        async def short() -> None:
            await asyncio.sleep(0.2)

    async with client, worker:
        task, began = client.tasks["short"], now()
        handles = [await task.submit() for _ in range(20)]
        await client.wait(handles)
        # Twenty after one another, and no floor for each of them.
        assert now() - began < (20 if not hints else 8)


async def test_a_look_that_failed_is_made_up_for() -> None:
    """What the store said had changed is looked at as soon as it can be."""
    harbour = Harbour(threads=False, hints=False)
    client, worker = two(harbour)
    async with client, worker:
        await asyncio.sleep(10)
        view: Any = internals_of(worker).runtime.view
        handle = await client.tasks["job"].submit()
        due = view.due
        failed: list[Any] = []

        async def fail_once(**asked: Any) -> Any:
            if not failed:
                failed.append(asked)
                raise ConnectionError("away")
            return await due(**asked)

        view.due = fail_once
        await handle.wait(timeout=60)
    assert failed


async def test_a_closure_that_others_cancelled_is_let_go_of() -> None:
    """Also if nobody told."""
    harbour = Harbour(threads=False, hints=False)
    client, worker = two(harbour)

    async def closure() -> None: ...

    async with client, worker:
        handle = await client.get_pool("work").submit(closure, delay=1000.0)
        assert [handle.id] == list(internals_of(client).runtime.closures)
        await worker.cancel(handle.id)
        await asyncio.sleep(FLOOR)
        assert {} == internals_of(client).runtime.closures
