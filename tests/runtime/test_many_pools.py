"""A worker of thousands of pools leases only from those with work."""

import asyncio
from pathlib import Path

import pytest
from tests.runtime.durable import Cluster
from tests.waiting import eventually

from millpond import Millpond
from millpond.errors import StoreError
from millpond.store.sql.transactions import Transactor

MANY = 3000


@pytest.mark.rows("TR-19")
async def test_a_worker_of_many_pools_leases_only_from_those_with_work() -> None:
    """One read finds the pools with tasks; the worker calls lease for no other pool."""
    cluster = Cluster(threads=False)
    mp = cluster.millpond()
    pools = [mp.pool(f"p{number}") for number in range(MANY)]
    ran: list[int] = []

    @pools[17].task
    async def work(number: int) -> None:
        ran.append(number)

    async with mp:
        await work.submit(1)
        async with mp.worker():
            await eventually(lambda: ran)
            (store,) = cluster.process_stores
            assert 1 == store.calls["due"]
            assert store.calls["lease"] <= 2
            # A later submit wakes its queue, as in a process with few pools.
            await work.submit(2)
            await eventually(lambda: 2 in ran)


@pytest.mark.rows("TR-19")
async def test_a_worker_repeats_a_failed_read_of_pools_with_work() -> None:
    """The store is away during the first read; the worker finds the task later."""
    cluster = Cluster(threads=False)
    mp = cluster.millpond()
    pools = [mp.pool(f"p{number}") for number in range(40)]
    ran: list[int] = []

    @pools[17].task
    async def work(number: int) -> None:
        ran.append(number)

    async with mp:
        (store,) = cluster.process_stores
        seen, looks = store.view.due, [StoreError("away"), StoreError("away")]

        async def due(**moment: float) -> tuple[str, ...]:
            if looks:
                raise looks.pop()
            return await seen(**moment)  # type: ignore[no-any-return]

        store.view.due = due  # type: ignore[attr-defined]
        await work.submit(1)
        async with mp.worker():
            await eventually(lambda: ran)
    assert not looks


@pytest.mark.rows("TR-19")
@pytest.mark.stores("sqlite")
@pytest.mark.real_loop
async def test_the_first_task_of_thousands_of_pools_runs_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file: pools are declared by the batch, and hardly a transaction is for a worker's looks.

    Before, each of its 6,000 queues was asked, and each ask was a commit of its own.
    """
    mp = Millpond(f"sqlite:///{tmp_path}/work.db")
    pools = [mp.pool(f"p{number}") for number in range(MANY)]

    @pools[1500].task
    async def double(number: int) -> int:
        return 2 * number

    begun = 0
    begin = Transactor.begin

    def counted(transactor: Transactor) -> object:  # type: ignore[type-arg]
        nonlocal begun
        begun += 1
        return begin(transactor)

    monkeypatch.setattr(Transactor, "begin", counted)
    async with mp:
        assert begun <= MANY / 10
        handle, before = await double.submit(21), begun
        async with mp.worker():
            async with asyncio.timeout(30):
                assert 42 == await handle
            assert begun - before < 60
