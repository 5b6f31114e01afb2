"""A pool under random calls: its invariants hold after calls in any order.

Hypothesis plays submitters, operators and workers of one pool on virtual time. What is measured is
measured inside handlers; what is compared at the end is every map of the runtime.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.pool.stores import Watched, memory
from tests.stores import DURABLE

from millpond import Millpond, Pool, Retry, bounded, fail_fast, fifo, priority, ring_buffer
from millpond.errors import MillpondError
from millpond.pool.handle import Handle
from millpond.pool.internals import internals_of
from millpond.pool.snapshot import Snapshot
from millpond.pool.task import BoundCall
from millpond.runtime.observe.hooks import Observed
from millpond.runtime.runtime import Runtime
from millpond.testing.clock import VirtualLoop

T = TypeVar("T")

FIRM = {"completed", "failed", "cancelled", "rejected"}

KEYS = st.sampled_from(["a", "b", None])
SECONDS = st.sampled_from([0.0, 0.5, 2.0, 10.0])
HOW = st.sampled_from(["returns", "returns", "returns", "raises", "does not care"])
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "timeout": st.sampled_from([0.25, 1.0]),
        "priority": st.integers(-1, 1),
        "delay": st.sampled_from([0.1, 3.0]),
        "expires_in": st.sampled_from([0.5, 4.0]),
    },
)
BACKPRESSURE = st.sampled_from(
    [
        None,
        bounded(2, on_full="block_submitter"),
        bounded(3, on_full="block_submitter", per_key=1),
        bounded(2, on_full="drop_oldest"),
        bounded(2, on_full="drop_newest"),
        bounded(2, on_full="fail_submitter"),
        ring_buffer(2),
        fail_fast(),
    ]
)


def keyed(key: str | None) -> Any:
    """The option that gives a task its key, if it has one."""
    return {} if key is None else {"key": key}


class PoolMachine(RuleBasedStateMachine):
    """One Millpond with one pool, and every call that a test may make on it."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.at_work: Counter[str | None] = Counter()
        self.workers: list[AsyncExitStack] = []
        self.submitters: list[asyncio.Task[Any]] = []
        self.accepted: dict[int, Handle[Any]] = {}
        self.ends: Counter[int] = Counter()
        self.redriven: Counter[int] = Counter()
        self.broken: list[str] = []
        self.limit = self.ceiling = 0
        """The limit in force, and how many tasks started under a higher one may still run."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @property
    def runtime(self) -> Runtime:
        return internals_of(self.mp).runtime

    # Its parts

    @initialize(
        limit=st.integers(1, 3),
        per_key=st.sampled_from([None, 1, 2]),
        backpressure=BACKPRESSURE,
        queue=st.sampled_from([priority(), fifo()]),
        prefetch=st.sampled_from([0, 0, 2]),
        concurrency=st.sampled_from([None, 1, 2]),
        pauses=st.sampled_from([None, None, 1, 3]),
    )
    def open(
        self,
        limit: int,
        concurrency: int | None,
        per_key: int | None,
        pauses: int | None,
        **given: Any,
    ) -> None:
        self.mp = Millpond(work=False)
        internals_of(self.mp).owner.seed = 7
        if pauses is not None:
            # A shared store that answers slowly.
            internals_of(self.mp).owner.make_store = lambda: Watched(memory(), pauses=pauses)
        self.limit = self.ceiling = limit
        self.per_key = per_key
        self.concurrency = concurrency
        self.pool: Pool = self.mp.pool(
            "p",
            max_concurrent=limit,
            max_per_key=per_key,
            retry=Retry(attempts=2, initial=1.0, jitter=0.0),
            **given,
        )
        self.work = self.mp.task(name="work")(self.handler)
        self.mp.observe(self.observed)
        self.run(self.mp.__aenter__())
        self.open_worker()

    async def handler(self, key: str | None, seconds: float, how: str) -> None:
        self.at_work[key] += 1
        busy = self.at_work.total()
        if busy > max(self.limit, self.ceiling):
            self.broken.append(f"{busy} at work, {self.limit} allowed")
        if key is not None and self.per_key is not None and self.at_work[key] > self.per_key:
            self.broken.append(f"{self.at_work[key]} of key {key} at work")
        try:
            await asyncio.sleep(seconds)
            if how == "raises":
                raise ValueError
        except asyncio.CancelledError:
            if how != "does not care":
                raise
        finally:
            self.at_work[key] -= 1

    def observed(self, seen: Observed) -> None:
        if seen.kind in FIRM and seen.task_id is not None:
            self.ends[seen.task_id] += 1

    def call(self, key: str | None, seconds: float, how: str) -> BoundCall[None]:
        return self.work.bind(key, seconds, how)

    def took(self, *handles: Handle[Any]) -> None:
        for handle in handles:
            if handle.status != "rejected":
                self.accepted[handle.id] = handle

    # Submitters

    @rule(key=KEYS, seconds=SECONDS, how=HOW, options=OPTIONS, closure=st.booleans())
    def submit(
        self,
        key: str | None,
        seconds: float,
        how: str,
        options: dict[str, Any],
        closure: bool,
    ) -> None:
        async def code() -> None:
            await self.handler(key, seconds, how)

        async def submit() -> None:
            work: Any = code if closure else self.call(key, seconds, how)
            with suppress(MillpondError):
                self.took(await self.pool.submit(work, **keyed(key), **options))

        async def begin() -> None:
            self.submitters.append(asyncio.create_task(submit()))
            await asyncio.sleep(0)

        self.run(begin())

    @rule(key=KEYS, seconds=SECONDS, how=HOW)
    def try_submit(self, key: str | None, seconds: float, how: str) -> None:
        answer = self.run(self.pool.try_submit(self.call(key, seconds, how), **keyed(key)))
        if isinstance(answer, Handle):
            self.took(answer)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4), seconds=SECONDS, how=HOW)
    def submit_many(self, keys: list[str | None], seconds: float, how: str) -> None:
        calls = [self.call(key, seconds, how).options(**keyed(key)) for key in keys]
        with suppress(MillpondError):
            self.took(*self.run(self.pool.submit_many(calls, wait=0.5)))

    @precondition(lambda self: self.submitters)
    @rule(data=st.data())
    def cancel_a_submitter(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.submitters))

        async def cancel() -> None:
            chosen.cancel()
            await asyncio.gather(chosen, return_exceptions=True)

        self.run(cancel())

    # Operators

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), mode=st.sampled_from(["cooperative", "interrupt"]))
    def cancel(self, data: st.DataObject, mode: Any) -> None:
        handle = self.accepted[data.draw(st.sampled_from(sorted(self.accepted)))]
        self.run(handle.cancel(mode))

    @rule(key=KEYS)
    def pause(self, key: str | None) -> None:
        self.run(self.pool.pause(key=key))

    @rule(key=KEYS)
    def resume(self, key: str | None) -> None:
        self.run(self.pool.resume(key=key))

    @rule(limit=st.sampled_from([None, 0, 1, 2, 4]))
    def resize(self, limit: int | None) -> None:
        async def resize() -> None:
            await self.pool.resize(limit)
            # In the same step, so no task starts unseen under the new limit.
            self.limit = self.pool.spec.max_concurrent if limit is None else limit
            self.ceiling = max(self.ceiling, self.limit)

        before, self.ceiling = self.ceiling, max(self.ceiling, 4)
        self.run(resize())
        self.ceiling = max(before, self.limit)

    @rule(key=KEYS)
    def purge(self, key: str | None) -> None:
        self.run(self.pool.purge(key=key))

    @rule()
    def redrive(self) -> None:
        async def redrive() -> None:
            # A submit in the background may be accepted meanwhile.
            for task in list(self.accepted):
                if await self.pool.redrive([task]):
                    self.redriven[task] += 1

        self.run(redrive())

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 5.0]))
    def advance(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    # Workers

    @precondition(lambda self: self.workers)
    @rule()
    def close_worker(self) -> None:
        self.run(self.workers.pop().aclose())

    @precondition(lambda self: len(self.workers) < 2)
    @rule()
    def open_worker(self) -> None:
        stack = AsyncExitStack()
        worker = self.mp.worker(concurrency=self.concurrency)
        self.run(stack.enter_async_context(worker))
        self.workers.append(stack)

    # Invariants

    @invariant()
    def limits_hold(self) -> None:
        assert [] == self.broken
        if not hasattr(self, "mp"):
            return
        view = self.run(self.runtime.view.pool("p", measured=False))
        assert view is not None
        assert self.at_work.total() <= view.running
        assert view.running <= max(self.limit, self.ceiling)
        # Tasks started under a higher limit may run until they end, and count only until then.
        self.ceiling = max(self.limit, min(self.ceiling, view.running))

    @invariant()
    def counts_add_up(self) -> None:
        if not hasattr(self, "mp"):
            return

        async def look() -> tuple[Snapshot, int, list[str]]:
            live = len(await self.mp.unsettled())
            return await self.pool.snapshot(), live, await self.mp.status(self.accepted)

        seen, live, known = self.run(look())
        assert live == seen.running + seen.queued
        # It does not count a submit whose answer comes later, or was lost.
        assert live >= sum(one in ("queued", "running") for one in known)
        ended = seen.completed + seen.failed + seen.cancelled
        assert ended >= sum(one in ("completed", "failed", "cancelled") for one in known)

    def teardown(self) -> None:
        with self.runner:
            if hasattr(self, "mp"):
                try:
                    self.run(self.wind_up())
                finally:
                    self.run(self.mp.__aexit__(None, None, None))

    async def wind_up(self) -> None:
        """Let every task end, and check that each ended once and left nothing behind."""
        for key in ("a", "b", None):
            await self.pool.resume(key=key)
        self.ceiling = max(self.ceiling, self.pool.spec.max_concurrent)
        await self.pool.resize(None)
        self.limit = self.pool.spec.max_concurrent
        if not self.workers:
            self.workers.append(stack := AsyncExitStack())
            await stack.enter_async_context(self.mp.worker(concurrency=self.concurrency))
        async with asyncio.timeout(3_600):
            await asyncio.gather(*self.submitters, return_exceptions=True)
            await self.pool.drain()
        # Not at the time of a timer: its turn would be under way.
        await asyncio.sleep(1.2345)
        assert [] == self.broken
        statuses = dict(zip(self.accepted, await self.mp.status(self.accepted), strict=True))
        assert {task: str(s) for task, s in statuses.items() if s not in FIRM} == {}
        once = {task: 1 + self.redriven[task] for task in self.accepted}
        assert once == {task: self.ends[task] for task in self.accepted}
        self.nothing_is_left()
        for worker in self.workers:
            await worker.aclose()

    def nothing_is_left(self) -> None:
        # Only private state shows that no entry is left for ended tasks.
        runtime, submitter = self.runtime, self.runtime.submitter
        assert 0 == self.at_work.total()
        assert {} == runtime.closures
        assert not runtime.waiting.any_waiting
        assert {} == runtime.env.background
        assert ({}, [], set()) == (submitter._lines, submitter._sender._next, submitter._offering)
        assert not any((submitter._sender._sending, runtime.env.inline))
        for worker in runtime.workers:
            assert ({}, {}, {}) == (worker.jobs, worker.stuck_since, worker.prefetch.held)
            assert ({}, [], []) == (
                worker.attempts.batches.calls,
                worker.ended,
                worker.quiet.waiting,
            )
            assert 0 == len(worker.slots.ready)
            assert not any((worker.schedule.turning, worker.scheduled, worker.schedule.pause))
            assert {slot.job for slot in worker.slots.all} <= {None}
            assert set(worker.slots.idle) == worker.slots.all


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=10 if DURABLE else 60, stateful_step_count=40, deadline=None
)
