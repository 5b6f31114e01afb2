"""One process leads maintenance: it recovers and forgets for all, and steps back when deposed."""

import asyncio
from typing import Any

import pytest
from tests.runtime.durable import Harbour, Ship

from millpond import Keep, Millpond
from millpond.core.control import ClaimLeadership, Prune, Register
from millpond.core.lease import LeaseRequest
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.store.protocol import Batch

LEASE = 6.0


def process(harbour: Harbour, *, keep: Keep | None = None) -> Millpond:
    """A process that works."""
    mp = harbour.millpond(work=True, lease=LEASE, keep=keep)
    pool = mp.pool("work", max_concurrent=5)

    @pool.task(name="job")
    async def job(seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)

    return mp


def ship_of(mp: Millpond) -> Ship:
    """The store as a process sees it."""
    ship: Any = internals_of(mp).runtime.store
    return ship  # type: ignore[no-any-return]


def leads(mp: Millpond) -> bool:
    """Whether a process thinks that it leads."""
    return internals_of(mp).runtime.maintenance.leadership.leads


async def dying(harbour: Harbour, *, lease: float) -> int:
    """A worker that takes a task and is never heard of again; return the task."""
    store, task = harbour.store, 4711
    await store.control(Register("ghost/1", lease, "ghost"))
    await store.submit([Batch(tasks=(NewTask(id=task, pool="work", call=Call("job", b"{}")),))])
    await store.lease(LeaseRequest(pool="work", worker="ghost/1", want=1))
    return task


@pytest.mark.rows("CX-04")
async def test_of_two_processes_one_recovers_and_prunes() -> None:
    """Renewals are everybody's own; what time alone does is done once."""
    harbour = Harbour(threads=False)
    first, second = process(harbour), process(harbour)
    async with first, second:
        await asyncio.sleep(300)
        assert [True, False] == [leads(first), leads(second)]
        one, other = ship_of(first), ship_of(second)
        assert one.asked["recover"]
        assert one.told(Prune)
        assert 0 == other.asked["recover"]
        assert [] == other.told(Prune)
        assert min(one.asked["renew"], other.asked["renew"]) > 100
        # Asked for again when half of the time is over, by both.
        assert 300 / (LEASE / 3) + 3 > len(other.told(ClaimLeadership)) > 300 / (LEASE / 3) - 3


@pytest.mark.rows("CX-04", "CX-T57")
async def test_another_takes_over_when_the_leader_falls_silent() -> None:
    """Its time runs out, the next one who asks leads, under a higher generation."""
    harbour = Harbour(threads=False)
    first, second = process(harbour), process(harbour)
    async with first, second:
        await asyncio.sleep(1)
        before = internals_of(first).runtime.maintenance.leadership.generation

        async def silence(_verb: str, _asked: Any) -> None:
            await silent.wait()

        silent = asyncio.Event()
        ship_of(first).before = silence
        await asyncio.sleep(LEASE)
        assert leads(second)
        assert before is not None
        after = internals_of(second).runtime.maintenance.leadership.generation
        assert after == before + 1
        ship_of(first).before = None
        silent.set()
        await asyncio.sleep(LEASE)
        assert [False, True] == [leads(first), leads(second)]


@pytest.mark.rows("CX-T56")
async def test_a_deposed_leader_changes_nothing_and_stands_by() -> None:
    """Its `recover` is refused: it thinks that it leads until then, and does not any more."""
    harbour = Harbour(threads=False)
    mp = process(harbour)
    async with mp:
        await asyncio.sleep(1)
        assert leads(mp)
        task = await dying(harbour, lease=0.2)
        await asyncio.sleep(0.3)
        # Somebody else takes over behind its back.
        await harbour.store.control(Register("other/1", 1000.0, "other"))
        harbour.store._tables.leader.until = 0.0
        assert 1 == (await harbour.store.control(ClaimLeadership("other", 1000.0))).count
        before = ship_of(mp).asked["recover"]
        internals_of(mp).runtime.maintenance.nudge()
        await asyncio.sleep(0.1)
        assert before + 1 == ship_of(mp).asked["recover"]
        assert not leads(mp)
        assert ("running",) == await internals_of(mp).runtime.view.status((task,))


async def test_the_lead_is_free_once_its_holder_has_left() -> None:
    """A leader that closes in good order does not keep the others waiting for long."""
    harbour = Harbour(threads=False)
    first, second = process(harbour), process(harbour)
    async with second:
        async with first:
            await asyncio.sleep(1)
            assert leads(second)
            assert not leads(first)
        await asyncio.sleep(LEASE)
        assert leads(second)
    async with first:
        await asyncio.sleep(0.1)
        assert leads(first)


async def test_who_has_no_worker_does_not_lead() -> None:
    """A process that holds nothing in the store is not known there."""
    harbour = Harbour(threads=False)
    mp = harbour.millpond(lease=LEASE)
    mp.pool("work")
    async with mp:
        async with mp.worker():
            await asyncio.sleep(1)
            assert leads(mp)
        await asyncio.sleep(60)
        assert not leads(mp)
        asked = ship_of(mp).asked.copy()
        await asyncio.sleep(60)
        assert {"changed"} == set(ship_of(mp).asked - asked)


async def test_what_a_silent_worker_held_is_recovered_when_its_lease_is_over() -> None:
    """The leader knows when that is, and asks then."""
    harbour = Harbour(threads=False)
    mp = process(harbour)
    async with mp:
        await asyncio.sleep(1)
        task = await dying(harbour, lease=3.0)
        # Nobody told the leader of it: it sees that something was written.
        harbour.ships.append(_Somebody(harbour))
        await asyncio.sleep(2.9)
        assert ("running",) == await internals_of(mp).runtime.view.status((task,))
        await asyncio.sleep(0.5)
        assert ("completed",) == await internals_of(mp).runtime.view.status((task,))


class _Somebody(Ship):
    """Another process that has written something."""

    def __init__(self, harbour: Harbour) -> None:
        super().__init__(harbour)
        self.writes = 1


async def test_nobody_is_given_up_because_the_store_was_away() -> None:
    """It did not answer for longer than a lease: everybody may renew before anybody is dead."""
    harbour = Harbour(threads=False)
    first, second = process(harbour), process(harbour)
    async with first, second:
        await second.tasks["job"].submit(200.0)
        await asyncio.sleep(1)
        held = [len(internals_of(one).runtime.workers[0].jobs) for one in (first, second)]
        blocked = asyncio.Event()

        async def block(_verb: str, _asked: Any) -> None:
            await blocked.wait()

        for one in (first, second):
            ship_of(one).before = block
        # Not so long that handlers stop by themselves.
        await asyncio.sleep(0.7 * LEASE)
        for one in (first, second):
            ship_of(one).before = None
        blocked.set()
        await asyncio.sleep(30)
        assert held == [len(internals_of(one).runtime.workers[0].jobs) for one in (first, second)]
        assert [0, 0] == [one.counts.leases_lost for one in (first, second)]


async def test_a_leader_that_had_to_wait_for_the_store_gives_the_others_time() -> None:
    """Asking for the lead took long: it recovers one renewal interval later, not at once."""
    harbour = Harbour(threads=False)
    mp = process(harbour)
    async with mp:
        await asyncio.sleep(1)
        task = await dying(harbour, lease=1.0)
        answered: list[float] = []

        async def slow(_verb: str, asked: Any) -> None:
            if isinstance(asked, ClaimLeadership) and not answered:
                await asyncio.sleep(0.2 * LEASE)
                answered.append(asyncio.get_running_loop().time())

        ship_of(mp).before = slow
        async with asyncio.timeout(60):
            while not answered:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)
        internals_of(mp).runtime.maintenance.nudge()
        await asyncio.sleep(LEASE / 3 - 0.2)
        assert ("running",) == await internals_of(mp).runtime.view.status((task,))
        await asyncio.sleep(0.5)
        assert ("completed",) == await internals_of(mp).runtime.view.status((task,))


async def test_where_the_store_is_always_slow_the_dead_are_given_up_all_the_same() -> None:
    """Everybody is given time, but not again and again: a lease in all."""
    harbour = Harbour(threads=False)
    mp = process(harbour)
    async with mp:
        await asyncio.sleep(1)
        task = await dying(harbour, lease=1.0)

        async def slow(_verb: str, _asked: Any) -> None:
            await asyncio.sleep(0.15 * LEASE)

        ship_of(mp).before = slow
        await asyncio.sleep(1.0 + 2 * LEASE)
        assert ("completed",) == await internals_of(mp).runtime.view.status((task,))


async def test_who_was_slow_long_ago_gives_time_when_it_leads() -> None:
    """What it waited for as one who only stands by is forgotten by then."""
    harbour = Harbour(threads=False)
    first, second = process(harbour), process(harbour)
    async with first, second:
        await asyncio.sleep(1)
        internals_of(second).runtime.maintenance.delay.store_was_away(LEASE)
        await asyncio.sleep(10 * LEASE)
        internals_of(second).runtime.maintenance.delay.store_was_away(LEASE)
        left = (
            internals_of(second).runtime.maintenance.delay.until
            - internals_of(second).runtime.steady()
        )
        assert LEASE / 3 == pytest.approx(left)


async def test_the_leader_forgets_what_others_completed() -> None:
    """Retention is the leader's, whoever ran the task."""
    harbour = Harbour(threads=False)
    keep = Keep(completed=100.0)
    first, second = process(harbour, keep=keep), process(harbour, keep=keep)
    async with first:
        await asyncio.sleep(1)
        async with second:
            await first.get_pool("work").pause()
            handle = await second.tasks["job"].submit()
            await first.get_pool("work").resume()
            await handle
        assert leads(first)
        await asyncio.sleep(300)
        assert ["expired"] == await first.status([handle.id])
