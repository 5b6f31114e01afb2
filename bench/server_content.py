"""What the dashboard's requests are measured on: a small and a large store that differ in one way.

Both have the same pools, and the same number of waiting tasks, dead letters, runs and orders. The
large store has more completed tasks, and their audit. So what a request reads is the same in both,
and a request that is slower on the large store is slower because of its size.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millpond import Millpond
from millpond.core.control import Register, Resize
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.run import NewRun
from millpond.core.settle import Settlement
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.store.protocol import Batch

POOLS = 100
DEAD = 500
"""Dead letters of the first pool: more than a page of them reads."""

WAITING = 1000
"""Waiting tasks of the first pool."""

RUNS = 60
"""Open runs of the first pool, and as many finished ones: more than a page."""

ORDERS = 100
"""Orders of an operator, each an audit record."""

BATCH = 1000
WORKER = "filler"
ERROR = msgspec.msgpack.encode({"type": "ValueError", "message": "no such order 17"})
NAMES = tuple(f"pool-{number:03}" for number in range(POOLS))


class Filler:
    """Stores tasks the way workers do: submit, lease, settle."""

    def __init__(self, mp: Millpond) -> None:
        self._runtime = internals_of(mp).runtime
        self._store = self._runtime.store
        self.ids: list[int] = []
        """Some of the tasks that have completed."""
        self.run = 0
        """A run that has finished."""

    async def register(self) -> None:
        """Register the worker that completes tasks."""
        await self._store.control(Register(WORKER, 3600.0, "filler-1-00000000", None))

    async def complete(self, pool: str, count: int) -> None:
        """Store tasks that have completed."""
        new = self._new(pool, count)
        await self._store.submit([Batch(tasks=new)])
        await self._settle(pool, count, Transition.COMPLETE)
        self.ids += [*(one.id for one in new[:4]), new[-1].id]

    async def fail(self, pool: str, count: int) -> None:
        """Store dead letters."""
        await self._store.submit([Batch(tasks=self._new(pool, count))])
        await self._settle(pool, count, Transition.FAIL)

    async def finish_runs(self, pool: str, count: int) -> None:
        """Store runs of one completed task each."""
        self.run = await self.open_runs(pool, count)
        await self._settle(pool, count, Transition.COMPLETE)

    async def open_runs(self, pool: str, count: int) -> int:
        """Store runs of one waiting task each; return the last."""
        run = 0
        for _ in range(count):
            run = self._runtime.new_id()
            opened = NewRun(id=run, pool=pool, name=f"run-{run}")
            await self._store.submit([Batch(tasks=self._new(pool, 1, run=run), run=opened)])
        return run

    async def order(self, pool: str, count: int) -> None:
        """Store orders of an operator."""
        for number in range(count):
            await self._store.control(Resize(pool, BATCH + number % 2, by="operator"))

    async def wait(self, pool: str, count: int) -> int:
        """Store tasks that wait; return the first."""
        new = self._new(pool, count)
        await self._store.submit([Batch(tasks=new)])
        return new[0].id

    def _new(self, pool: str, count: int, run: int | None = None) -> tuple[NewTask, ...]:
        return tuple(
            NewTask(
                id=self._runtime.new_id(),
                pool=pool,
                call=Call(f"function_{number % 7}", b'{"order":12345,"customer":"ann-smith"}'),
                key=f"customer-{number % 50}",
                labels={"tenant": f"t{number % 5}"},
                attempts=1,
                run=run,
            )
            for number in range(count)
        )

    async def _settle(self, pool: str, count: int, event: Transition) -> None:
        answer = await self._store.lease(LeaseRequest(pool=pool, worker=WORKER, want=count))
        assert len(answer.leased) == count
        said: dict[str, Any] = {"error": ERROR} if event is Transition.FAIL else {"result": b"true"}
        await self._store.settle(
            [Settlement(fence=one.fence, event=event, **said) for one in answer.leased]
        )


async def fill(url: str, tasks: int) -> tuple[list[int], int, int]:
    """Fill a store; return some of its completed tasks, one that waits, and a finished run."""
    mp = Millpond(url, work=False)
    for name in NAMES:
        mp.pool(name, max_concurrent=BATCH, max_per_key=BATCH)
    first = NAMES[0]
    async with mp:
        filler = Filler(mp)
        await filler.register()
        completed = tasks - DEAD - 2 * RUNS - WAITING
        # Half of the tasks are in one pool: a page of it must not be slower than others.
        for start in range(0, completed, BATCH):
            number = start // BATCH
            pool = first if number % 2 else NAMES[number % POOLS]
            await filler.complete(pool, min(BATCH, completed - start))
        # Last, so that the page of the latest audit records shows the same on both stores.
        await filler.fail(first, DEAD)
        await filler.finish_runs(first, RUNS)
        await filler.open_runs(first, RUNS)
        await filler.order(first, ORDERS)
        return filler.ids, await filler.wait(first, WAITING), filler.run
