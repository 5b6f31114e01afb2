"""Rest: a process that receives every hint polls seldom, and still sees everything in time."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from tests.runtime.durable import Cluster
from tests.runtime.test_fleet_hints import AT_ONCE, FLOOR, declared, now, store_of

from millpond import Millpond
from millpond.pool.internals import internals_of
from millpond.runtime.fleet.poll import IDLE_FLOOR
from millpond.store.protocol import Hint

RESTED = 96.0
"""Seconds after which a resting process has just polled; the next poll is nine seconds later."""


def calls_of(*mps: Millpond) -> Counter[str]:
    """Return the calls of these processes to the store so far."""
    total: Counter[str] = Counter()
    for mp in mps:
        total += store_of(mp).calls
    return total


def cluster_with_reliable_hints() -> Cluster:
    """Make a cluster where no hint is lost, and each process knows that."""
    cluster = Cluster(threads=False)
    cluster.hints_are_reliable = True
    return cluster


async def test_an_idle_client_polls_seldom() -> None:
    """The interval grows to a limit."""
    mp = cluster_with_reliable_hints().millpond(work=False)
    declared(mp)
    async with mp:
        await asyncio.sleep(60)
        before = calls_of(mp)
        await asyncio.sleep(20 * IDLE_FLOOR)
        calls = calls_of(mp) - before
        assert {"changed"} == set(calls)
        assert 19 <= calls["changed"] <= 21


async def test_an_idle_fleet_of_ten_makes_less_than_ten_calls_a_second() -> None:
    """This includes renewals, and each renewal is a write that the other processes notice."""
    cluster = cluster_with_reliable_hints()
    fleet = [cluster.millpond(work=True) for _ in range(10)]
    for mp in fleet:
        declared(mp)
    async with AsyncExitStack() as stack:
        for mp in fleet:
            await stack.enter_async_context(mp)
        await asyncio.sleep(100)
        before = calls_of(*fleet)
        await asyncio.sleep(300)
        per_second = {name: count / 300 for name, count in (calls_of(*fleet) - before).items()}
        assert 0.9 <= per_second["renew"] <= 1.1
        assert 0.9 <= per_second["control"] <= 1.1
        assert per_second["changed"] <= 2.0
        assert sum(per_second.values()) < 8


async def test_a_resting_process_receives_work_at_once() -> None:
    """And a waiting client sees the end at once."""
    cluster = cluster_with_reliable_hints()
    client, worker = cluster.millpond(work=False), cluster.millpond(work=True)
    declared(client)
    declared(worker)
    async with client, worker:
        await asyncio.sleep(RESTED)
        began = now()
        handle = await client.tasks["job"].submit()
        assert internals_of(worker).runtime.owner == (await handle.wait(timeout=60)).result
        assert now() - began <= 2 * AT_ONCE


async def test_a_process_that_waits_for_a_task_does_not_rest() -> None:
    """It sees an end within one poll interval when the hint was lost."""
    cluster = cluster_with_reliable_hints()
    client, worker = cluster.millpond(work=False), cluster.millpond(work=True)
    declared(client)
    declared(worker)
    async with client, worker:
        handle = await client.tasks["job"].submit(20.5)
        await asyncio.sleep(15)  # no wait has begun yet
        before = calls_of(client)
        waiting = asyncio.ensure_future(handle.wait(timeout=60))
        await asyncio.sleep(3.5)
        assert 3 <= (calls_of(client) - before)["changed"] <= 5
        cluster.hints = False
        began = now()
        await waiting
        assert now() - began <= 2.0 + FLOOR


async def test_a_process_whose_hints_may_be_lost_stops_resting() -> None:
    """Within a second, though its next poll was ten seconds away."""
    cluster = cluster_with_reliable_hints()
    mp = cluster.millpond(work=False)
    declared(mp)
    async with mp:
        await asyncio.sleep(RESTED)
        cluster.hints_are_reliable = False
        before = calls_of(mp)
        await asyncio.sleep(10.5)
        assert 10 <= (calls_of(mp) - before)["changed"] <= 12


async def test_a_hint_makes_a_resting_process_poll_soon() -> None:
    """More may have happened than the hint can carry."""
    cluster = cluster_with_reliable_hints()
    mp, other = cluster.millpond(work=False), cluster.millpond(work=False)
    declared(mp)
    async with mp, other:
        await asyncio.sleep(RESTED)
        before = calls_of(mp)
        cluster.deliver(store_of(other), Hint(ended=(1,)))
        await asyncio.sleep(FLOOR)
        assert 1 == (calls_of(mp) - before)["changed"]


async def test_a_lost_hint_delays_a_resting_fleet_by_one_poll_interval() -> None:
    """The leader polls every second and finds the task."""
    cluster = cluster_with_reliable_hints()
    client = cluster.millpond(work=False)
    fleet = [cluster.millpond(work=True) for _ in range(3)]
    for mp in (client, *fleet):
        declared(mp)
    async with AsyncExitStack() as stack:
        for mp in (client, *fleet):
            await stack.enter_async_context(mp)
        await asyncio.sleep(RESTED)
        cluster.hints = False
        began = now()
        handle = await client.tasks["job"].submit()
        await handle.wait(timeout=60)
        assert now() - began <= 2 * FLOOR


async def test_the_leader_expires_the_tasks_of_other_processes_in_time() -> None:
    """A leader does not rest: no hint says what it must expire."""
    cluster = cluster_with_reliable_hints()
    client, worker = cluster.millpond(work=False), cluster.millpond(work=True)
    declared(client)
    declared(worker)
    async with client, worker:
        await client.get_pool("work").pause()
        await asyncio.sleep(RESTED)
        handle = await client.tasks["job"].options(expires_in=3.0).submit()
        began = now()
        await handle.wait(timeout=60)
        assert 3.0 <= now() - began <= 3.0 + FLOOR
