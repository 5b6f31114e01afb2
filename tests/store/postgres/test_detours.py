"""Detours from the fast path: each is counted by verb and reason, and `doctor` shows them."""

import pytest
from verify.servers.schemas import InlinePostgresStore, Schema

from millpond.core import control as orders
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, fifo
from millpond.core.task import Call, NewTask
from millpond.store.postgres.connect import connect
from millpond.store.postgres.detours import Detours
from millpond.store.postgres.health import health
from millpond.store.protocol import Batch


async def opened(schema: Schema) -> InlinePostgresStore:
    """Return a store with a pool and a worker."""
    store = InlinePostgresStore(schema)
    await store.control(orders.Declare(PoolSpec(name="p", order=fifo(), max_concurrent=7)))
    await store.control(orders.Register("one", 60.0))
    return store


def batch(first: int, count: int = 1, **options: object) -> list[Batch]:
    """Return a batch of tasks."""
    tasks = [
        NewTask(id=first + n, pool="p", call=Call("work", b"x"), **options)  # type: ignore[arg-type]
        for n in range(count)
    ]
    return [Batch(tasks=tuple(tasks))]


async def test_the_fast_path_counts_no_detour(schema: Schema) -> None:
    """Nothing is counted where the server does it all."""
    store = await opened(schema)
    await store.submit(batch(1, 3))
    ask = LeaseRequest(pool="p", worker="one", want=3)
    leased = (await store.lease(ask)).leased
    ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in leased]
    await store.settle(ends, then=ask)
    assert {} == store.detour_counts()
    await store.close()


async def test_each_detour_is_counted_by_its_reason_and_shown_by_the_doctor(schema: Schema) -> None:
    """Those that Python knows, those that the server answers, and those that are skipped after."""
    store = await opened(schema)
    await store.submit(batch(1, owner="another"))
    await store.submit(batch(2, 2))
    await store.control(orders.Pause("p"))
    ask = LeaseRequest(pool="p", worker="one", want=1)
    for _ in range(4):
        await store.lease(ask)
    await store.control(orders.Resume("p"))
    (leased,) = (await store.lease(ask)).leased
    end = Settlement(fence=leased.fence, event=Transition.COMPLETE, weight=3)
    await store.settle([end])
    counted = store.detour_counts()
    assert 1 == counted["submit", "closure"]
    assert 4 <= counted["lease", "paused"]
    assert 1 == counted["settle", "weight"]
    await store.close()
    with connect(schema.address) as connection:
        shown = {(one.verb, one.reason) for one in health(connection, schema.address, 3).detours}
    assert ("submit", "closure") in shown


async def test_a_refusal_by_an_error_has_its_reason(schema: Schema) -> None:
    """The server had ended the attempts before it saw that something is not plain."""
    store = await opened(schema)
    await store.submit(batch(1, 2))
    leased = (await store.lease(LeaseRequest(pool="p", worker="one", want=2))).leased
    await store.control(orders.Cancel((leased[0].fence.task,)))
    ends = [Settlement(fence=one.fence, event=Transition.RETRY) for one in leased]
    await store.settle(ends)
    assert {("settle", "cancelled"): 1} == store.detour_counts()
    await store.close()


def test_detours_are_stored_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with every transaction, and each count once."""
    now = 100.0
    monkeypatch.setattr("millpond.store.postgres.detours.time.monotonic", lambda: now)
    detours = Detours()
    assert [] == detours.to_save()
    detours.add("submit", "delay")
    assert [("submit", "delay", 1)] == detours.to_save()
    detours.add("submit", "delay")
    assert [] == detours.to_save()
    now += 5.0
    assert [("submit", "delay", 1)] == detours.to_save()
    assert {("submit", "delay"): 2} == detours.counts()
