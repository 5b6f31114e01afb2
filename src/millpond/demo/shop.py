"""A store under watch and the simulated workers on it.

There is no pool object yet, so a worker here is the loop of one in a few lines: plan, lease, run,
settle.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

from millpond.core import control as orders
from millpond.core.backoff import Retry
from millpond.core.invariants import Judge, Violated
from millpond.core.lease import LeaseAsk, Leased
from millpond.core.lifecycle import Event, Status
from millpond.core.plan import IdleUntil, Watch, Work
from millpond.core.settle import Outcome, Settled, Succeeded, settle
from millpond.core.task import Call, NewTask
from millpond.demo.story import Camera
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Batch, BatchAnswer
from millpond.testing.history import Stage, Verb

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine

    from millpond.core.audit import Record
    from millpond.core.spec import PoolSpec
    from millpond.core.witness import Step

RETRY = Retry(attempts=4, initial=0.5, factor=2.0)


class Onlooker(Judge):
    """A judge that writes down what is broken and lets the show go on."""

    def __init__(self) -> None:
        super().__init__()
        self.violations: list[str] = []

    def see(self, step: Step, known_workers: frozenset[str]) -> None:
        """Check one step of a history against every promise."""
        try:
            super().see(step, known_workers)
        except Violated as broken:
            self.violations.append(str(broken))


Running: TypeAlias = tuple[float, Outcome]
"""How long an attempt takes and how it ends."""


class Shop:
    """One pool, its workers, and a tally kept from the audit alone."""

    def __init__(self, spec: PoolSpec, dice: random.Random, lease: float = 2.0) -> None:
        self.spec = spec
        self.dice = dice
        self.lease = lease
        self.judge = Onlooker()
        self.stage = Stage(MemoryStore(audit_limit=None), self.judge)
        self.camera = Camera()
        self.workers: list[Worker] = []
        self.running: dict[int, str] = {}
        self.waiting: Counter[str] = Counter()
        self.most = 0
        self.most_of: Counter[str] = Counter()
        self.started: list[tuple[float, Record]] = []
        self.ended: list[Record] = []
        self.take: Callable[[], None] = lambda: None
        self.work: Callable[[Leased], Running] = lambda _: (1.0, Succeeded())
        self.idle = asyncio.Event()
        self.lost = asyncio.Event()
        self._ids = 0

    @property
    def now(self) -> float:
        """Virtual seconds of the pool's clock."""
        return self.camera.at

    async def do(self, name: str, asked: Any) -> Any:  # noqa: ANN401 - each verb has its own answer
        """Carry out one verb, count what it did, spread its wake-ups."""
        answer = await self.stage.do(Verb(name, asked, self.now, self.dice.getrandbits(64)))
        for record in self.stage.steps[-1].records:
            self._count(record)
        for wake in getattr(answer, "wakes", ()):
            for worker in self.workers:
                worker.watch.woken(wake)
                worker.bell.set()
        if self.stage.steps[-1].records:
            self.take()
        return answer

    def _count(self, record: Record) -> None:
        if record.task is None:
            return
        key = record.key or ""
        if record.after is Status.QUEUED:
            self.waiting[key] += 1
        if record.before is Status.QUEUED:
            self.waiting[key] -= 1
        if record.event is Event.LEASE:
            self.running[record.task] = key
            self.started.append((self.now, record))
            self.most = max(self.most, len(self.running))
            mine = list(self.running.values()).count(key)
            self.most_of[key] = max(self.most_of[key], mine)
        if record.before is Status.RUNNING:
            self.running.pop(record.task)
            self.ended.append(record)
        if record.event is Event.LOSE:
            self.lost.set()
        if not self.running and not self.waiting.total():
            self.idle.set()

    async def submit(self, key: str, name: str = "", many: int = 1) -> BatchAnswer:
        """Submit a batch of one tenant."""
        first = self._ids + 1
        self._ids += many
        batch = Batch(
            tasks=tuple(
                NewTask(
                    id=number,
                    pool=self.spec.name,
                    call=Call(name or "review"),
                    key=key,
                    share=key,
                    attempts=RETRY.attempts,
                )
                for number in range(first, self._ids + 1)
            )
        )
        answer: BatchAnswer = (await self.do("submit", (batch,))).batches[0]
        return answer

    def hire(self, name: str, slots: int) -> Worker:
        """Let a worker begin; it stays until the shop closes."""
        worker = Worker(self, name, slots)
        self.workers.append(worker)
        worker.begin()
        return worker

    async def declare(self) -> None:
        """Tell the store about the pool."""
        await self.do("control", orders.Declare(self.spec))

    async def until_idle(self) -> None:
        """Wait until nothing waits and nothing runs, doing meanwhile what time alone does."""
        recovering = asyncio.create_task(self._recover())
        await self.idle.wait()
        recovering.cancel()
        for worker in self.workers:
            worker.end()
        self.take()

    async def _recover(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            await self.do("recover", 1000)


class Worker:
    """Plans, leases, runs and settles; may die, or freeze and come back."""

    def __init__(self, shop: Shop, name: str, slots: int) -> None:
        self.shop = shop
        self.name = name
        self.slots = slots
        self.watch = Watch()
        self.bell = asyncio.Event()
        self.awake = asyncio.Event()
        self.awake.set()
        self.dead = False
        self.retired = False
        self.carrying: dict[int, str] = {}
        self.answers: dict[int, Settled] = {}
        self.settled = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Join and go to work."""
        self._spawn(self._work())

    def end(self) -> None:
        """Stop everything it does; the store is not told."""
        for task in self._tasks:
            task.cancel()

    def die(self) -> None:
        """Be gone, with all it carries."""
        self.dead = True
        self.end()

    def freeze(self) -> None:
        """Stop renewing, asking and settling, and know nothing of it."""
        self.awake.clear()

    def thaw(self) -> None:
        """Go on as if nothing had happened."""
        self.awake.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        shop = self.shop
        await shop.do("control", orders.Join(self.name, shop.lease))
        self._spawn(self._renew())
        while True:
            await self.awake.wait()
            match self.watch.plan(free=self.slots - len(self.carrying), now=shop.now):
                case Work(want):
                    if not await self._lease(want):
                        return
                case IdleUntil(moment):
                    await self._rest(moment)

    async def _lease(self, want: int) -> bool:
        """Ask for work; False once the store no longer knows this worker."""
        shop = self.shop
        ask = LeaseAsk(pool=shop.spec.name, worker=self.name, want=want)
        self.watch.asking()
        answer = await shop.do("lease", ask)
        if answer.fenced:
            self.retired = True
            return False
        got = len(answer.leased)
        self.watch.seen(asked=want, got=got, next_at=answer.next_at, now=shop.now)
        for leased in answer.leased:
            self.carrying[leased.fence.task] = leased.key or ""
            self._spawn(self._carry(leased))
        shop.take()
        return True

    async def _rest(self, moment: float | None) -> None:
        # A clock of floats may stop a hair short of the moment; then it would never get there.
        delay = None if moment is None else max(0.0, moment - self.shop.now) + 1e-6
        try:
            async with asyncio.timeout(delay):
                await self.bell.wait()
        except TimeoutError:
            return
        self.bell.clear()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.shop.lease / 4)
            await self.awake.wait()
            await self.shop.do("renew", (self.name, self.shop.lease))

    async def _carry(self, leased: Leased) -> None:
        shop = self.shop
        seconds, outcome = shop.work(leased)
        await asyncio.sleep(seconds)
        await self.awake.wait()
        settlement = settle(leased, outcome, RETRY, jitter=shop.dice.random())
        del self.carrying[leased.fence.task]
        answer = await shop.do("settle", ((settlement,), None))
        self.answers[leased.fence.task] = answer.settled[0]
        self.settled.set()
        self.bell.set()
