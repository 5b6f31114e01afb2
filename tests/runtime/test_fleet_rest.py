"""Rest: a process that is sure to be told looks seldom, and nothing comes later for it."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from tests.runtime.durable import Harbour
from tests.runtime.test_fleet_hints import AT_ONCE, FLOOR, declared, now, ship_of

from millpond import Millpond
from millpond.pool.internals import internals_of
from millpond.runtime.fleet.poll import IDLE_FLOOR
from millpond.store.protocol import Hint

RESTED = 96.0
"""Seconds after which who rests has just looked, and does so next some nine seconds later."""


def asked_of(*mps: Millpond) -> Counter[str]:
    """All that these processes have asked the store so far."""
    total: Counter[str] = Counter()
    for mp in mps:
        total += ship_of(mp).asked
    return total


def harbour_that_is_heard() -> Harbour:
    """One where no hint is lost, and everybody knows it."""
    harbour = Harbour(threads=False)
    harbour.hears = True
    return harbour


async def test_a_client_that_rests_asks_seldom() -> None:
    """Less and less often, to a limit."""
    mp = harbour_that_is_heard().millpond(work=False)
    declared(mp)
    async with mp:
        await asyncio.sleep(60)
        before = asked_of(mp)
        await asyncio.sleep(20 * IDLE_FLOOR)
        asked = asked_of(mp) - before
        assert {"changed"} == set(asked)
        assert 19 <= asked["changed"] <= 21


async def test_an_idle_fleet_of_ten_asks_less_than_ten_things_a_second() -> None:
    """With all that keeps it alive, and though everybody's renewal is a write to the others."""
    harbour = harbour_that_is_heard()
    fleet = [harbour.millpond(work=True) for _ in range(10)]
    for mp in fleet:
        declared(mp)
    async with AsyncExitStack() as stack:
        for mp in fleet:
            await stack.enter_async_context(mp)
        await asyncio.sleep(100)
        before = asked_of(*fleet)
        await asyncio.sleep(300)
        per_second = {name: count / 300 for name, count in (asked_of(*fleet) - before).items()}
        assert 0.9 <= per_second["renew"] <= 1.1
        assert 0.9 <= per_second["control"] <= 1.1
        assert per_second["changed"] <= 2.0
        assert sum(per_second.values()) < 8


async def test_who_rests_hears_of_work_at_once() -> None:
    """And its end is heard of at once where somebody waits."""
    harbour = harbour_that_is_heard()
    client, worker = harbour.millpond(work=False), harbour.millpond(work=True)
    declared(client)
    declared(worker)
    async with client, worker:
        await asyncio.sleep(RESTED)
        began = now()
        handle = await client.tasks["job"].submit()
        assert internals_of(worker).runtime.owner == (await handle.wait(timeout=60)).result
        assert now() - began <= 2 * AT_ONCE


async def test_who_waits_for_something_does_not_rest() -> None:
    """An end whose hint was lost is seen as soon as ever."""
    harbour = harbour_that_is_heard()
    client, worker = harbour.millpond(work=False), harbour.millpond(work=True)
    declared(client)
    declared(worker)
    async with client, worker:
        handle = await client.tasks["job"].submit(20.5)
        await asyncio.sleep(15)  # nobody waits yet
        before = asked_of(client)
        waiting = asyncio.ensure_future(handle.wait(timeout=60))
        await asyncio.sleep(3.5)
        assert 3 <= (asked_of(client) - before)["changed"] <= 5
        harbour.hints = False
        began = now()
        await waiting
        assert now() - began <= 2.0 + FLOOR


async def test_one_who_is_told_nothing_any_more_stops_resting() -> None:
    """Within a second, though it had just begun to look ten seconds ahead."""
    harbour = harbour_that_is_heard()
    mp = harbour.millpond(work=False)
    declared(mp)
    async with mp:
        await asyncio.sleep(RESTED)
        harbour.hears = False
        before = asked_of(mp)
        await asyncio.sleep(10.5)
        assert 10 <= (asked_of(mp) - before)["changed"] <= 12


async def test_who_hears_something_looks_soon() -> None:
    """It may be the first of many things, of which not all can be told."""
    harbour = harbour_that_is_heard()
    mp, other = harbour.millpond(work=False), harbour.millpond(work=False)
    declared(mp)
    async with mp, other:
        await asyncio.sleep(RESTED)
        before = asked_of(mp)
        harbour.sent(ship_of(other), Hint(ended=(1,)))
        await asyncio.sleep(FLOOR)
        assert 1 == (asked_of(mp) - before)["changed"]


async def test_a_lost_hint_costs_one_who_rests_no_more_than_its_floor() -> None:
    """Of several workers the one that leads looks every second: it is found by then."""
    harbour = harbour_that_is_heard()
    client = harbour.millpond(work=False)
    fleet = [harbour.millpond(work=True) for _ in range(3)]
    for mp in (client, *fleet):
        declared(mp)
    async with AsyncExitStack() as stack:
        for mp in (client, *fleet):
            await stack.enter_async_context(mp)
        await asyncio.sleep(RESTED)
        harbour.hints = False
        began = now()
        handle = await client.tasks["job"].submit()
        await handle.wait(timeout=60)
        assert now() - began <= 2 * FLOOR


async def test_what_expires_of_others_is_seen_to_in_time() -> None:
    """Whoever leads does not rest: nobody tells it what it will have to expire."""
    harbour = harbour_that_is_heard()
    client, worker = harbour.millpond(work=False), harbour.millpond(work=True)
    declared(client)
    declared(worker)
    async with client, worker:
        await client.get_pool("work").pause()
        await asyncio.sleep(RESTED)
        handle = await client.tasks["job"].options(expires_in=3.0).submit()
        began = now()
        await handle.wait(timeout=60)
        assert 3.0 <= now() - began <= 3.0 + FLOOR
