"""The lab: one store, a manual clock, and short methods for the verbs.

It knows the protocol and nothing else. Every verb acts at `lab.now` with entropy that is never
the same twice; `lab.wakes` holds what the last verb woke.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol, TypedDict, TypeVar

import msgspec

from millpond.core import bounds
from millpond.core import control as orders
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Status, Transition
from millpond.core.retention import Retention
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import Backpressure, BudgetSpec, Order, PoolSpec, fifo
from millpond.core.task import Call, Dedupe, Fence, NewTask, Task
from millpond.store.protocol import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self, Unpack

    from millpond.core.adaptive import Adaptive
    from millpond.core.admit import Refusal
    from millpond.core.audit import Record
    from millpond.core.plan import Wake
    from millpond.core.rate import Rate
    from millpond.core.run import NewRun, RunView
    from millpond.store.protocol import (
        BatchAnswer,
        ControlAnswer,
        LeaseAnswer,
        PoolView,
        RecoverAnswer,
        RenewAnswer,
        SettleAnswer,
        Store,
        SubmitAnswer,
    )
    from millpond.store.view import View

INSTANT = 1e-6
"""The shortest time a store tells apart."""

POOL = "pool"
CALLBACKS = "pool~callbacks"
WORKER = "worker"
A_LONG_LEASE = bounds.MAX_SECONDS
DAY = 86_400.0


class TaskOptions(TypedDict, total=False):
    """What a test may say of a task."""

    id: int
    pool: str
    call: Call
    key: str | None
    share: str | None
    priority: int
    weight: int
    delay: float
    run_at: float | None
    expires_in: float | None
    timeout: float | None
    attempts: int
    idempotency_key: str | None
    dedupe: Dedupe
    fingerprint: int
    on_complete: Call | None
    owner: str | None
    run: int | None
    submitted_by: str
    options: bytes


class PoolOptions(TypedDict, total=False):
    """What a test may say of a pool."""

    max_concurrent: int
    order: Order
    backpressure: Backpressure | None
    max_per_key: int | None
    rates: tuple[Rate, ...]
    rate_per_key: Rate | None
    lanes: int | None
    ordered: bool
    prefetch: int
    max_callbacks: int
    budgets: tuple[str, ...]
    adaptive: Adaptive | None
    keep: Retention | None


class Moment(TypedDict):
    """When a verb acts, and with what chance."""

    now: float
    entropy: int


class Waking(Protocol):
    """An answer that may wake pools."""

    @property
    def wakes(self) -> tuple[Wake, ...]:
        """Which pools have something to start, and when."""
        ...


Answer = TypeVar("Answer", bound=Waking)


class Lab:
    """A store under test, and the test's own clock."""

    def __init__(self, store: Store, *, now: float = 1000.0) -> None:
        self.store = store
        self.now = now
        self.wakes: dict[str, float] = {}
        self._dice = random.Random(0)
        self._serial = 1 << 32

    @classmethod
    async def around(cls, store: Store) -> Self:
        """Return a lab whose store knows one worker, which never has to renew."""
        lab = cls(store)
        await lab.join(WORKER, lease=A_LONG_LEASE)
        return lab

    @property
    def view(self) -> View:
        """The store's reading side."""
        return self.store.view

    def later(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def serial(self) -> int:
        """Return an id never used before in this lab."""
        self._serial += 1
        return self._serial

    # Pools and workers

    async def declare(self, name: str = POOL, **options: Unpack[PoolOptions]) -> ControlAnswer:
        """Declare a pool: first come first served, four at once by default."""
        options.setdefault("order", fifo())
        options.setdefault("max_concurrent", options.get("lanes") or 4)
        return await self.control(orders.Declare(PoolSpec(name=name, **options)))

    async def budget(
        self, name: str, max_concurrent: int, rates: tuple[Rate, ...] = ()
    ) -> ControlAnswer:
        """Declare a budget for pools to share."""
        spec = BudgetSpec(name=name, max_concurrent=max_concurrent, rates=rates)
        return await self.control(orders.DeclareBudget(spec))

    async def join(
        self,
        worker: str,
        *,
        lease: float = 30.0,
        owner: str | None = None,
        functions: tuple[str, ...] | None = None,
    ) -> ControlAnswer:
        """Let a worker present itself."""
        return await self.control(orders.Register(worker, lease, owner, functions))

    async def control(self, order: orders.Command) -> ControlAnswer:
        """Give an order."""
        return self._heard(await self.store.control(order, **self._moment()))

    # Submit

    def new(self, name: str = "", **options: Unpack[TaskOptions]) -> NewTask:
        """Describe a task; a name is for the test to know it by."""
        options.setdefault("id", self.serial())
        options.setdefault("pool", POOL)
        options.setdefault("call", Call("work"))
        return NewTask(labels={"name": name} if name else {}, **options)

    async def submit(self, *tasks: NewTask, run: NewRun | None = None) -> BatchAnswer:
        """Submit one batch."""
        return (await self.submit_all(Batch(tasks=tasks, run=run))).batches[0]

    async def submit_all(self, *batches: Batch) -> SubmitAnswer:
        """Submit batches in one step."""
        return self._heard(await self.store.submit(batches, **self._moment()))

    async def refusal(self, *tasks: NewTask, run: NewRun | None = None) -> Refusal:
        """Submit one batch that must be refused; return why."""
        refusal = (await self.submit(*tasks, run=run)).refusal
        assert refusal is not None, "not refused"
        return refusal

    async def put(self, name: str = "", **options: Unpack[TaskOptions]) -> int:
        """Submit one task that must be accepted; return its id."""
        new = self.new(name, **options)
        answer = await self.submit(new)
        assert answer.refusal is None, f"refused: {answer.refusal}"
        assert Status.QUEUED == answer.admissions[0].status
        return new.id

    async def put_many(self, count: int, **options: Unpack[TaskOptions]) -> list[int]:
        """Submit so many tasks, one after another; return their ids."""
        return [await self.put(**options) for _ in range(count)]

    async def put_keys(self, keys: Iterable[str]) -> list[int]:
        """Submit one task for each letter: its key, its share and its name."""
        return [await self.put(key, key=key, share=key) for key in keys]

    # Lease and settle

    async def ask(
        self, want: int = 1, *, ahead: int = 0, worker: str = WORKER, pool: str = POOL
    ) -> LeaseAnswer:
        """Ask for tasks and return the whole answer."""
        ask = LeaseRequest(pool=pool, worker=worker, want=want, ahead=ahead)
        return self._heard(await self.store.lease(ask, **self._moment()))

    async def lease(
        self, want: int = 100, *, worker: str = WORKER, pool: str = POOL
    ) -> list[Leased]:
        """Ask for tasks and return those leased."""
        return list((await self.ask(want, worker=worker, pool=pool)).leased)

    async def claims(
        self, ahead: int = 100, *, worker: str = WORKER, pool: str = POOL
    ) -> list[Leased]:
        """Ask for tasks to hold ahead and return those claimed."""
        return list((await self.ask(0, ahead=ahead, worker=worker, pool=pool)).claimed)

    async def one(self, *, worker: str = WORKER, pool: str = POOL) -> Leased:
        """Lease the next task; there must be one."""
        leased = await self.lease(1, worker=worker, pool=pool)
        assert leased, f"nothing to lease from {pool}"
        return leased[0]

    async def settle(self, *settlements: Settlement) -> list[Settled]:
        """Settle attempts and return the result of each settlement."""
        return list((await self.settle_all(settlements)).settled)

    async def settle_all(
        self, settlements: Iterable[Settlement], *, then: LeaseRequest | None = None
    ) -> SettleAnswer:
        """Settle attempts, perhaps leasing the next, and return the whole answer."""
        moment = self._moment()
        return self._heard(await self.store.settle(tuple(settlements), then=then, **moment))

    async def applied(self, *settlements: Settlement) -> SettleAnswer:
        """Settle attempts, each of which must be accepted."""
        answer = await self.settle_all(settlements)
        assert [Settled.APPLIED] * len(settlements) == list(answer.settled)
        return answer

    async def complete(
        self, leased: Leased, *follow_ups: NewTask, result: bytes | None = None
    ) -> SettleAnswer:
        """Settle an attempt as completed, which must be accepted, as with the other ends below."""
        return await self.applied(completed(leased, *follow_ups, result=result))

    async def fail(self, leased: Leased) -> SettleAnswer:
        """Settle an attempt as failed for the last time."""
        return await self.applied(failed(leased))

    async def retry(
        self, leased: Leased, delay: float = 0.0, *, spend: bool = True
    ) -> SettleAnswer:
        """Settle an attempt that is to be tried again."""
        return await self.applied(retried(leased, delay, spend=spend))

    async def release(
        self, leased: Leased, *, parked: bool = False, begun: bool = True
    ) -> SettleAnswer:
        """Give a task back."""
        return await self.applied(released(leased, parked=parked, begun=begun))

    async def stop(self, leased: Leased) -> SettleAnswer:
        """Settle an attempt that ended because it was cancelled."""
        return await self.applied(stopped(leased))

    async def run_one(self, *, pool: str = POOL) -> int:
        """Lease the next task and complete it; return its id."""
        leased = await self.one(pool=pool)
        await self.complete(leased)
        return leased.fence.task

    async def serve(self, count: int, *, pool: str = POOL) -> str:
        """Run `count` tasks one after another; return their names in the order of their starts."""
        names = []
        for _ in range(count):
            leased = await self.one(pool=pool)
            names.append(name_of(leased))
            await self.complete(leased)
        return " ".join(names)

    async def renew(self, worker: str, lease: float = 30.0) -> RenewAnswer:
        """Renew what a worker holds."""
        return await self.store.renew(worker, lease, **self._moment())

    async def recover(self, limit: int = 1000, generation: int | None = None) -> RecoverAnswer:
        """Do what time alone does."""
        moment = self._moment()
        return self._heard(await self.store.recover(limit=limit, generation=generation, **moment))

    # Look

    async def task(self, task: int) -> Task:
        """Return a task that must be there."""
        found = await self.view.task(task)
        assert found is not None, f"task {task} is not there"
        return found

    async def status(self, task: int) -> Status:
        """Return the status of a task that must be there."""
        return (await self.task(task)).status

    async def statuses(self, *tasks: int) -> list[Status]:
        """Return the status of each task."""
        return [await self.status(task) for task in tasks]

    async def pool(self, name: str = POOL) -> PoolView:
        """Return a pool that must be there."""
        found = await self.view.pool(name, now=self.now)
        assert found is not None, f"pool {name} is not there"
        return found

    async def run_of(self, run: int) -> RunView:
        """Return a run that must be there."""
        found = await self.view.run(run)
        assert found is not None, f"run {run} is not there"
        return found

    async def records(self, task: int | None = None) -> Sequence[Record]:
        """Return the audit, or what it says of one task."""
        page = await self.view.audit(limit=1_000_000)
        return [each for each in page.records if task is None or each.task == task]

    async def events(self, task: int) -> list[Transition]:
        """Return the arrows a task took, in order."""
        return [each.event for each in await self.records(task) if each.event is not None]

    # How it is done

    def _moment(self) -> Moment:
        return Moment(now=self.now, entropy=self._dice.getrandbits(63))

    def _heard(self, answer: Answer) -> Answer:
        self.wakes = moments(answer.wakes)
        return answer


def moments(wakes: Iterable[Wake]) -> dict[str, float]:
    """Return when each pool was woken for."""
    return {wake.pool: wake.at for wake in wakes}


def name_of(leased: Leased) -> str:
    """Return the name a test gave to a task."""
    return leased.labels.get("name", "")


def names_of(leased: Iterable[Leased]) -> str:
    """Return the names of tasks in the order of their starts."""
    return " ".join(map(name_of, leased))


def ids_of(leased: Iterable[Leased]) -> list[int]:
    """Return the ids of tasks in the order of their starts."""
    return [each.fence.task for each in leased]


# How attempts end


def completed(leased: Leased, *follow_ups: NewTask, result: bytes | None = None) -> Settlement:
    """The handler returned, perhaps having submitted more."""
    return Settlement(
        fence=leased.fence, event=Transition.COMPLETE, result=result, follow_ups=follow_ups
    )


def retried(leased: Leased, delay: float = 0.0, *, spend: bool = True) -> Settlement:
    """The handler raised and is to be tried again."""
    return Settlement(
        fence=leased.fence, event=Transition.RETRY, delay=delay, spend=spend, error=b"again"
    )


def failed(leased: Leased) -> Settlement:
    """The handler raised for the last time."""
    return Settlement(fence=leased.fence, event=Transition.FAIL, error=b"broken")


def stopped(leased: Leased) -> Settlement:
    """The handler ended because it was cancelled."""
    return Settlement(fence=leased.fence, event=Transition.CANCEL)


def released(leased: Leased, *, parked: bool = False, begun: bool = True) -> Settlement:
    """The worker gives the task back, perhaps because it does not know the function."""
    return Settlement(
        fence=leased.fence, event=Transition.RELEASE, spend=False, parked=parked, begun=begun
    )


def corrupt(leased: Leased) -> Settlement:
    """The record could not be read."""
    return Settlement(fence=leased.fence, event=Transition.CORRUPT, spend=False)


def handing_over(settlement: Settlement, claim: Leased) -> Settlement:
    """Return a settlement whose slot a claim held ahead was started in."""
    return msgspec.structs.replace(settlement, successor=claim.fence)


def with_fence(
    settlement: Settlement, *, attempt: int | None = None, token: int | None = None
) -> Settlement:
    """Return a settlement that carries another fence for the same task."""
    fence = settlement.fence
    forged = Fence(
        fence.task,
        fence.attempt if attempt is None else attempt,
        fence.token if token is None else token,
    )
    return Settlement(fence=forged, event=settlement.event, result=settlement.result)
