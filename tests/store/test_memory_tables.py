"""What the memory store keeps, and that a record is the same whenever it is read."""

from typing import Any

import pytest

from millpond.core.control import Cancel, Declare, DeclareDead, Hold, Prune, Redrive, Register
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Status, Transition
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, bounded, fifo, priority
from millpond.core.task import Call, NewTask
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Batch


def new_task(identifier: int, **fields: Any) -> NewTask:
    """A task of pool `p` with a payload, options and labels."""
    given = {"call": Call("work", b"x" * 500), "options": b"o" * 500, "labels": {"a": "b"}}
    return NewTask(id=identifier, pool="p", **{**given, **fields})


async def opened(spec: PoolSpec | None = None, **options: Any) -> MemoryStore:
    """A store with pool `p` and worker `w`."""
    store = MemoryStore(**options)
    await store.control(Declare(spec or PoolSpec(name="p", max_concurrent=9)), now=0.0)
    await store.control(Register("w", 1e6, owner="me"), now=0.0)
    return store


async def submit(store: MemoryStore, *tasks: NewTask, now: float = 1.0) -> None:
    """Submit tasks in one batch."""
    await store.submit([Batch(tasks=tasks)], now=now)


async def lease(store: MemoryStore, want: int = 9, now: float = 2.0) -> tuple[Leased, ...]:
    """Claim tasks for `w`."""
    return (await store.lease(LeaseRequest(pool="p", worker="w", want=want), now=now)).leased


async def run(
    store: MemoryStore, event: Transition = Transition.COMPLETE, now: float = 3.0
) -> None:
    """Claim everything and end it."""
    ended = [Settlement(fence=one.fence, event=event, result=b"r") for one in await lease(store)]
    await store.settle(ended, now=now)


async def test_a_record_is_the_same_after_its_task_was_forgotten() -> None:
    """Retention removes the task, and the audit keeps its records."""
    store = await opened()
    await submit(store, new_task(1, key="k", idempotency_key="i", on_complete=Call("notify")))
    await run(store)
    before = (await store.view.audit()).records
    await store.control(Prune("p", 1e9, 1e9), now=4.0)
    assert await store.view.task(1) is None
    assert before == (await store.view.audit()).records


async def test_a_record_is_the_same_after_a_redrive() -> None:
    """What a task was in its first life is not overwritten by its second."""
    store = await opened()
    await submit(store, new_task(1), new_task(2))
    await run(store, Transition.FAIL)
    before = (await store.view.audit()).records
    await store.control(Redrive((1,)), now=4.0)
    await run(store, now=5.0)
    after = (await store.view.audit()).records
    assert before == after[: len(before)]
    assert [1, 1, 3, 3, 3] == [each.seq for each in after if each.task == 1 and each.event][1:]


async def test_the_audit_does_not_keep_what_was_forgotten_alive() -> None:
    """Notes of a forgotten task hold on to none of its payload, options, labels or result."""
    store = await opened()
    await submit(store, *(new_task(number) for number in range(1, 6)))
    await run(store)
    await store.control(Prune("p", 1e9, 1e9), now=4.0)
    noted = [one[0] for one in store._tables._records if isinstance(one, tuple)]
    assert 15 == len(noted)
    assert {(b"", b"", None)} == {(t.new.call.payload, t.new.options, t.result) for t in noted}
    assert not any(task.new.labels for task in noted)


async def test_a_redriven_task_is_pruned_by_its_last_end() -> None:
    """Its place among those that ended before is passed over, and takes nothing of the limit."""
    store = await opened()
    await submit(store, new_task(1), new_task(2))
    await run(store, Transition.FAIL)
    await store.control(Redrive((1,)), now=4.0)
    await run(store, Transition.FAIL, now=5.0)
    assert 1 == (await store.control(Prune("p", 0.0, 4.0), now=6.0)).count
    assert [True, False] == [await store.view.task(task) is not None for task in (1, 2)]
    assert 1 == (await store.control(Prune("p", 0.0, 9.0, limit=1), now=10.0)).count


async def test_after_prune_nothing_is_left_of_a_thousand_tasks() -> None:
    """No index of the store remembers a task that ended and was pruned."""
    store = await opened(PoolSpec(name="p", order=priority(), max_concurrent=9), audit_limit=0)
    tasks = [new_task(n, key=f"k{n % 7}", owner="me" if n % 2 else None) for n in range(1, 1001)]
    await submit(store, *tasks)
    while await store.view.ready("p", "w", now=2.0):
        await run(store)
    await store.control(Prune("p", 1e9, 1e9, limit=2000), now=4.0)
    tables, pool = store._tables, store._tables.pools.require("p")
    left: list[Any] = [
        [one for one in tasks if tables.tasks.get(one.id)],
        tables.owned,
        tables._run_queued,
        tables._records,
        pool.holding,
    ]
    left += [pool.succeeded or (), pool.unsuccessful or (), pool.fresh, [*pool.backlog]]
    assert not any(map(len, left))
    assert not tables.workers.require("w").holding


@pytest.mark.parametrize("per_key", [None, 2])
async def test_a_bound_declared_over_a_backlog_knows_the_oldest(per_key: int | None) -> None:
    """Tasks that came before the bound did are evicted in the order in which they came."""
    store = await opened()
    await submit(store, *(new_task(number, key="k") for number in range(1, 4)))
    bound = bounded(3, "drop_oldest", per_key)
    await store.control(Declare(PoolSpec(name="p", backpressure=bound)), now=2.0)
    await submit(store, new_task(4, key="k"), now=3.0)
    first = await store.view.task(1)
    assert first is not None
    assert (Status.REJECTED, "drop_oldest_queue_full") == (first.status, first.reason)
    pool = await store.view.pool("p")
    assert pool is not None
    assert 3 == pool.fresh


async def test_a_limit_declared_over_running_tasks_counts_them() -> None:
    """It counts keys from then on that had no limit when their tasks started."""
    store = await opened(PoolSpec(name="p", order=fifo(), max_concurrent=9))
    await submit(store, *(new_task(number, key="ab"[number % 2]) for number in range(1, 9)))
    assert [1, 2] == [one.fence.task for one in await lease(store, want=2)]
    limited = PoolSpec(name="p", order=fifo(), max_concurrent=9, max_per_key=2)
    await store.control(Declare(limited), now=3.0)
    assert [3, 4] == [one.fence.task for one in await lease(store, now=3.0)]


async def test_a_key_is_held_where_keys_did_not_matter() -> None:
    """The others go on in order; the held ones come at their places when the hold is over."""
    store = await opened(PoolSpec(name="p", order=fifo(), max_concurrent=99))
    await submit(store, *(new_task(number, key="ab"[number % 2]) for number in range(1, 7)))
    await store.control(Hold("p", 10.0, "a"), now=2.0)
    assert [1, 3] == [one.fence.task for one in await lease(store, want=2)]
    assert [2, 4, 5] == [one.fence.task for one in await lease(store, want=3, now=12.0)]


async def test_a_process_that_goes_leaves_no_closure_waiting() -> None:
    """Its queued closures fail, and only its own: other tasks stay as they are."""
    store = await opened()
    await store.control(Register("v", 1e6, owner="you"), now=0.0)
    owners = ("me", "you", None, "me")
    await submit(store, *(new_task(n, owner=owner) for n, owner in enumerate(owners, 1)))
    await store.control(Cancel((4,)), now=1.5)
    await store.control(DeclareDead("w"), now=2.0)
    tasks = [await store.view.task(number) for number in (1, 2, 3, 4)]
    assert ["failed", "queued", "queued", "cancelled"] == [t and t.status for t in tasks]


async def test_a_dead_worker_is_removed_once_its_closures_have_completed() -> None:
    """Closures that completed together are no longer counted for their process."""
    store = await opened()
    await submit(store, *(new_task(number, owner="me") for number in (1, 2, 3)))
    await run(store)
    await store.control(DeclareDead("w"), now=4.0)
    assert frozenset() == await store.view.workers()


async def test_closures_start_together_unless_other_tasks_wait_as_well() -> None:
    """In both cases the order is that of the queue."""
    store = await opened(PoolSpec(name="p", max_concurrent=9, order=fifo()))
    await store.control(Register("other", 1e6, owner="you"), now=0.0)
    await submit(store, *(new_task(number, owner="me") for number in (1, 2)), new_task(3))
    await submit(store, new_task(4, owner="me"), new_task(5, owner="you"), new_task(6))
    assert [1, 2, 3, 4, 6] == [one.fence.task for one in await lease(store)]
    await submit(store, *(new_task(number, owner="me") for number in (7, 8, 9)))
    assert [7, 8, 9] == [one.fence.task for one in await lease(store, now=3.0)]


@pytest.mark.parametrize("limit", [0, 1, 5])
async def test_the_audit_keeps_its_limit_to_twice_that(limit: int) -> None:
    """Positions count every record ever written, also those that are gone."""
    store = await opened(audit_limit=limit)
    for number in range(1, 40):
        await submit(store, new_task(number))
        page = await store.view.audit()
        assert number + 1 == page.next
        assert min(limit, number) <= len(page.records) <= 2 * limit
        assert all(each.task == number for each in page.records[-1:])


@pytest.mark.parametrize("ended_before", range(60, 70))
async def test_a_redriven_task_is_not_swept_out_with_the_ended(ended_before: int) -> None:
    """Whenever what has ended is cleared away from among the living."""
    store = await opened()
    await submit(store, *(new_task(one) for one in range(1, ended_before + 1)))
    await store.control(Cancel(tuple(range(1, ended_before + 1))), now=2.0)

    await store.control(Redrive((1,)), now=3.0)

    page = await store.view.tasks("p", status=Status.QUEUED)
    assert [1] == [task.new.id for task in page.tasks]
