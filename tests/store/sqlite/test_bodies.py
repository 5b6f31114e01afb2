"""Bodies of what a process holds are kept in memory, and of nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.core.control import Declare, Register
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, NewTask
from millpond.store.protocol import Batch
from millpond.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path


async def test_the_body_of_a_task_that_is_retried_is_dropped(tmp_path: Path) -> None:
    """Another process may run it; kept bodies would fill the memory of a busy worker."""
    store = SqliteStore(tmp_path / "work.db", inline=True)
    await store.control(Declare(PoolSpec(name="work", max_concurrent=2)))
    await store.control(Register("worker", 60.0, owner="owner"))
    tasks = tuple(NewTask(id=i, pool="work", call=Call("job"), attempts=3) for i in (1, 2))
    await store.submit([Batch(tasks=tasks)])
    first, second = (await store.lease(LeaseRequest(pool="work", worker="worker", want=2))).leased
    assert {1, 2} == set(store._bodies)
    await store.settle(
        [
            Settlement(fence=first.fence, event=Transition.RETRY, delay=5.0),
            Settlement(fence=second.fence, event=Transition.COMPLETE),
        ]
    )
    assert set() == set(store._bodies)
    await store.close()
