"""One process leads maintenance: it recovers and prunes for all, until another takes over."""

import asyncio
from typing import Any

import pytest
from tests.runtime.durable import Cluster, ProcessStore

from millpond import Keep, Millpond
from millpond.core.control import ClaimLeadership, Prune, Register
from millpond.core.lease import LeaseRequest
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.store.protocol import Batch

LEASE = 6.0


def process(cluster: Cluster, *, keep: Keep | None = None) -> Millpond:
    """A process that works."""
    mp = cluster.millpond(work=True, lease=LEASE, keep=keep)
    pool = mp.pool("work", max_concurrent=5)

    @pool.task(name="job")
    async def job(seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)

    return mp


def store_of(mp: Millpond) -> ProcessStore:
    """The store as a process sees it."""
    store: Any = internals_of(mp).runtime.store
    return store  # type: ignore[no-any-return]


def leads(mp: Millpond) -> bool:
    """Whether a process thinks that it leads."""
    return internals_of(mp).runtime.maintenance.leadership.leads


async def dying(cluster: Cluster, *, lease: float) -> int:
    """Let a worker claim a task and never renew; return the task."""
    store, task = cluster.store, 4711
    await store.control(Register("ghost/1", lease, "ghost"))
    await store.submit([Batch(tasks=(NewTask(id=task, pool="work", call=Call("job", b"{}")),))])
    await store.lease(LeaseRequest(pool="work", worker="ghost/1", want=1))
    return task


@pytest.mark.rows("CX-04")
async def test_of_two_processes_one_recovers_and_prunes() -> None:
    """Each process renews its own leases; one process recovers and prunes for all."""
    cluster = Cluster(threads=False)
    first, second = process(cluster), process(cluster)
    async with first, second:
        await asyncio.sleep(300)
        assert [True, False] == [leads(first), leads(second)]
        one, other = store_of(first), store_of(second)
        assert one.calls["recover"]
        assert one.orders_of(Prune)
        assert 0 == other.calls["recover"]
        assert [] == other.orders_of(Prune)
        assert min(one.calls["renew"], other.calls["renew"]) > 100
        # Both claim the leadership again when half of its time is over.
        assert 300 / (LEASE / 3) + 3 > len(other.orders_of(ClaimLeadership)) > 300 / (LEASE / 3) - 3


@pytest.mark.rows("CX-04", "CX-T57")
async def test_another_process_takes_over_when_the_leader_stops_renewing() -> None:
    """The leadership expires; the next process that claims it leads, with a higher generation."""
    cluster = Cluster(threads=False)
    first, second = process(cluster), process(cluster)
    async with first, second:
        await asyncio.sleep(1)
        before = internals_of(first).runtime.maintenance.leadership.generation

        async def silence(_verb: str, _command: Any) -> None:
            await silent.wait()

        silent = asyncio.Event()
        store_of(first).before = silence
        await asyncio.sleep(LEASE)
        assert leads(second)
        assert before is not None
        after = internals_of(second).runtime.maintenance.leadership.generation
        assert after == before + 1
        store_of(first).before = None
        silent.set()
        await asyncio.sleep(LEASE)
        assert [False, True] == [leads(first), leads(second)]


@pytest.mark.rows("CX-T56")
async def test_a_leader_that_was_replaced_changes_nothing() -> None:
    """The store refuses its `recover`; only then does it learn that it lost the leadership."""
    cluster = Cluster(threads=False)
    mp = process(cluster)
    async with mp:
        await asyncio.sleep(1)
        assert leads(mp)
        task = await dying(cluster, lease=0.2)
        await asyncio.sleep(0.3)
        # Another process takes over without its knowledge.
        await cluster.store.control(Register("other/1", 1000.0, "other"))
        cluster.store._tables.leader.until = 0.0
        assert 1 == (await cluster.store.control(ClaimLeadership("other", 1000.0))).count
        before = store_of(mp).calls["recover"]
        internals_of(mp).runtime.maintenance.nudge()
        await asyncio.sleep(0.1)
        assert before + 1 == store_of(mp).calls["recover"]
        assert not leads(mp)
        assert ("running",) == await internals_of(mp).runtime.view.status((task,))


async def test_a_leader_that_closes_releases_the_leadership() -> None:
    """The others do not wait until the leadership expires."""
    cluster = Cluster(threads=False)
    first, second = process(cluster), process(cluster)
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


async def test_a_process_without_a_worker_does_not_lead() -> None:
    """The store knows only processes with a registered worker."""
    cluster = Cluster(threads=False)
    mp = cluster.millpond(lease=LEASE)
    mp.pool("work")
    async with mp:
        async with mp.worker():
            await asyncio.sleep(1)
            assert leads(mp)
        await asyncio.sleep(60)
        assert not leads(mp)
        calls = store_of(mp).calls.copy()
        await asyncio.sleep(60)
        assert {"changed"} == set(store_of(mp).calls - calls)


async def test_the_leader_recovers_the_task_of_a_silent_worker_when_its_lease_ends() -> None:
    """The leader knows that time, and recovers then."""
    cluster = Cluster(threads=False)
    mp = process(cluster)
    async with mp:
        await asyncio.sleep(1)
        task = await dying(cluster, lease=3.0)
        # The leader receives no hint; it sees that another process wrote.
        cluster.process_stores.append(_OtherProcess(cluster))
        await asyncio.sleep(2.9)
        assert ("running",) == await internals_of(mp).runtime.view.status((task,))
        await asyncio.sleep(0.5)
        assert ("completed",) == await internals_of(mp).runtime.view.status((task,))


class _OtherProcess(ProcessStore):
    """Another process that has written something."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.writes = 1


async def test_an_outage_of_the_store_costs_no_worker_its_tasks() -> None:
    """After an outage longer than a lease, workers may renew before recovery."""
    cluster = Cluster(threads=False)
    first, second = process(cluster), process(cluster)
    async with first, second:
        await second.tasks["job"].submit(200.0)
        await asyncio.sleep(1)
        held = [len(internals_of(one).runtime.workers[0].jobs) for one in (first, second)]
        blocked = asyncio.Event()

        async def block(_verb: str, _command: Any) -> None:
            await blocked.wait()

        for one in (first, second):
            store_of(one).before = block
        # Not so long that handlers stop by themselves.
        await asyncio.sleep(0.7 * LEASE)
        for one in (first, second):
            store_of(one).before = None
        blocked.set()
        await asyncio.sleep(30)
        assert held == [len(internals_of(one).runtime.workers[0].jobs) for one in (first, second)]
        assert [0, 0] == [one.counts.leases_lost for one in (first, second)]


async def test_a_leader_that_waited_for_the_store_delays_recovery() -> None:
    """The claim of the leadership took long: it recovers one renewal interval later."""
    cluster = Cluster(threads=False)
    mp = process(cluster)
    async with mp:
        await asyncio.sleep(1)
        task = await dying(cluster, lease=1.0)
        answered: list[float] = []

        async def slow(_verb: str, command: Any) -> None:
            if isinstance(command, ClaimLeadership) and not answered:
                await asyncio.sleep(0.2 * LEASE)
                answered.append(asyncio.get_running_loop().time())

        store_of(mp).before = slow
        async with asyncio.timeout(60):
            while not answered:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.05)
        internals_of(mp).runtime.maintenance.nudge()
        await asyncio.sleep(LEASE / 3 - 0.2)
        assert ("running",) == await internals_of(mp).runtime.view.status((task,))
        await asyncio.sleep(0.5)
        assert ("completed",) == await internals_of(mp).runtime.view.status((task,))


async def test_a_leader_on_a_slow_store_still_recovers_dead_workers() -> None:
    """The delay is one lease in all, however often the store is slow."""
    cluster = Cluster(threads=False)
    mp = process(cluster)
    async with mp:
        await asyncio.sleep(1)
        task = await dying(cluster, lease=1.0)

        async def slow(_verb: str, _command: Any) -> None:
            await asyncio.sleep(0.15 * LEASE)

        store_of(mp).before = slow
        await asyncio.sleep(1.0 + 2 * LEASE)
        assert ("completed",) == await internals_of(mp).runtime.view.status((task,))


async def test_a_standby_that_saw_an_outage_delays_recovery_when_it_leads() -> None:
    """An earlier delay, from its time on standby, does not count any more."""
    cluster = Cluster(threads=False)
    first, second = process(cluster), process(cluster)
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


async def test_the_leader_prunes_tasks_that_other_processes_completed() -> None:
    """The leader applies retention to every task, also to those it did not run."""
    cluster = Cluster(threads=False)
    keep = Keep(completed=100.0)
    first, second = process(cluster, keep=keep), process(cluster, keep=keep)
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
