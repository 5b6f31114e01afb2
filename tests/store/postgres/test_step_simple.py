"""Calls of workers in simple pools have their own function, which refuses the rest."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from verify.servers.schemas import InlinePostgresStore, Schema, Schemas

from millpond.core import control as orders
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.rate import Rate
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, fair_round_robin, fifo, lifo, priority
from millpond.core.task import Call, NewTask
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Batch

pytestmark = pytest.mark.real_loop

SPEC = PoolSpec(name="p", order=priority(), max_concurrent=4)
SIMPLE, ANY = "step_simple", "step"


class Watched(InlinePostgresStore):
    """A store that counts its calls of the two functions, and chooses as stores do."""

    in_full_every = 1 << 40

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, lambda: 1000.0)
        self.calls: Counter[str] = Counter()

    def _stepping(self, steps: list[Any]) -> Any:
        prepared = super()._stepping(steps)
        sql = self._schema.sql
        self.calls[SIMPLE if prepared.statement == sql[SIMPLE] else ANY] += 1
        return prepared


class Both:
    """A store on the server and one in memory, which must give the same answers."""

    def __init__(self, schema: Schema) -> None:
        self.server = Watched(schema)
        self.memory = MemoryStore()
        self.now = 1000.0
        self._entropy = 0

    async def do(self, verb: str, *given: Any, **more: Any) -> Any:
        """Carry out a verb on both."""
        self._entropy += 1
        answers = [
            await getattr(store, verb)(*given, now=self.now, **more)
            if verb in {"control", "recover"}
            else await getattr(store, verb)(*given, now=self.now, entropy=self._entropy, **more)
            for store in (self.server, self.memory)
        ]
        assert answers[0] == answers[1]
        return answers[0]

    async def lease(self, want: int = 2, worker: str = "w") -> list[Leased]:
        """Lease tasks on both."""
        answer = await self.do("lease", LeaseRequest(pool="p", worker=worker, want=want))
        return list(answer.leased)

    async def complete(self, ended: list[Leased], want: int = 2, worker: str = "w") -> list[Leased]:
        """Complete attempts and lease the next tasks, on both."""
        ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in ended]
        ask = LeaseRequest(pool="p", worker=worker, want=want)
        answer = await self.do("settle", ends, then=ask)
        assert answer.lease is not None
        return list(answer.lease.leased)

    async def same_history(self) -> None:
        """Compare the audit and the state of both."""
        pages = [(await one.view.audit(limit=1000)).records for one in (self.server, self.memory)]
        assert pages[0] == pages[1]
        views = [await one.view.pool("p", now=self.now) for one in (self.server, self.memory)]
        assert views[0] == views[1]


@pytest.fixture
def schema(postgres_schemas: Schemas) -> Iterator[Schema]:
    """Give empty tables; in the end what they say of each other must fit."""
    taken = postgres_schemas.take()
    yield taken
    wrong = taken.wrong()
    postgres_schemas.give_back(taken)
    assert [] == wrong


def batch(first: int, count: int = 1, **options: Any) -> list[Batch]:
    """Return tasks as one batch."""
    call = Call("work", b"{}")
    new = [NewTask(id=first + n, pool="p", call=call, **options) for n in range(count)]
    return [Batch(tasks=tuple(new))]


async def knowing(schema: Schema, spec: PoolSpec = SPEC, tasks: int = 20) -> Both:
    """Return stores with queued tasks, of which that on the server has learned its pool."""
    both = Both(schema)
    await both.do("control", orders.Declare(spec))
    await both.do("control", orders.Register("w", 1e6))
    await both.do("submit", batch(1, tasks))
    await both.lease(want=0)
    both.server.calls.clear()
    return both


@pytest.mark.parametrize("order", [priority(), fifo(), lifo()], ids=lambda order: order.kind)
async def test_a_simple_pool_is_drained_by_its_own_function(schema: Schema, order: Any) -> None:
    both = await knowing(schema, PoolSpec(name="p", order=order, max_concurrent=4))
    held = await both.lease()
    while held:
        held = await both.complete(held)
    assert both.server.calls == {SIMPLE: 11}
    assert not both.server.detour_counts()
    await both.same_history()
    await both.server.close()


async def test_some_of_several_leases_may_end(schema: Schema) -> None:
    """Handlers take their time: what ends together was seldom leased together."""
    both = await knowing(schema)
    held = [*await both.lease(), *await both.lease()]
    for _ in range(5):
        held = [*held[2:3], *held[:1], *await both.complete([held[1], held[3]])]
    assert both.server.calls == {SIMPLE: 7}
    await both.same_history()
    await both.server.close()


@pytest.mark.parametrize(
    "spec",
    [
        PoolSpec(name="p", order=fifo(), max_concurrent=4, prefetch=2),
        PoolSpec(name="p", order=fair_round_robin(), max_concurrent=4),
        PoolSpec(name="p", order=fifo(), max_concurrent=4, lanes=5),
        PoolSpec(name="p", order=fifo(), max_concurrent=4, max_per_key=1),
        PoolSpec(name="p", order=fifo(), max_concurrent=4, rates=(Rate(100, per=1.0),)),
    ],
    ids=["prefetch", "fair", "lanes", "max_per_key", "rate"],
)
async def test_other_pools_are_not_simple(schema: Schema, spec: PoolSpec) -> None:
    both = await knowing(schema, spec)
    await both.complete(await both.lease())
    assert both.server.calls == {ANY: 2}
    await both.server.close()


@pytest.mark.parametrize(
    "command",
    [
        orders.Pause(pool="p"),
        orders.Resize("p", 1),
        orders.Resize("p", 9),
        orders.Cancel(tasks=(3,)),
        orders.Register("w", 1.0),
    ],
    ids=["pause", "shrink", "grow", "cancel", "expires"],
)
async def test_a_command_holds_from_the_next_call_on(schema: Schema, command: Any) -> None:
    both = await knowing(schema)
    held = await both.lease()
    await both.do("control", command)
    both.now += 5.0
    await both.complete(held, want=3)
    await both.same_history()
    await both.server.close()


@pytest.mark.parametrize(
    "options",
    [{"delay": 4.0}, {"delay": 40.0}, {"expires_in": 4.0}, {"expires_in": 40.0}, {"priority": 5}],
    ids=str,
)
async def test_tasks_that_are_not_plain_start_when_they_may(
    schema: Schema, options: dict[str, float]
) -> None:
    both = await knowing(schema, tasks=3)
    held = await both.lease()
    await both.do("submit", batch(100, 2, **options))
    both.now += 5.0
    for _ in range(3):
        held = await both.complete(held, want=2)
    await both.same_history()
    await both.server.close()


@pytest.mark.parametrize("known", ["other", "work"])
async def test_a_worker_gets_only_what_it_knows(schema: Schema, known: str) -> None:
    both = await knowing(schema)
    await both.do("control", orders.Register("v", 1e6, functions=(known,)))
    both.server.calls.clear()
    await both.complete(await both.lease(worker="v"), worker="v")
    assert both.server.calls[SIMPLE] == (2 if known == "work" else 1)
    await both.same_history()
    await both.server.close()


async def test_a_callback_is_not_lost(schema: Schema) -> None:
    """Nothing but its body says that a task has one: it is not plain."""
    both = await knowing(schema, tasks=1)
    await both.do("submit", batch(100, on_complete=Call("notify")))
    await both.complete(await both.complete(await both.lease(want=1), want=1))
    await both.same_history()
    assert await both.server.view.pools() == await both.memory.view.pools()
    await both.server.close()


async def test_a_task_that_was_tried_before_keeps_its_row(schema: Schema) -> None:
    both = await knowing(schema, tasks=2)
    first, second = await both.lease()
    retry = Settlement(fence=first.fence, event=Transition.RETRY, delay=0.0)
    await both.do("settle", [retry], then=None)
    (again,) = await both.complete([second])
    assert again.fence.attempt == 2
    await both.complete([again])
    await both.same_history()
    await both.server.close()


async def test_a_worker_that_gets_nothing_is_helped(schema: Schema) -> None:
    """Another one holds all slots: it is asked to give some back."""
    both = await knowing(schema)
    await both.lease(want=4)
    await both.do("control", orders.Register("v", 1e6))
    assert not await both.lease(worker="v")
    await both.same_history()
    await both.server.close()


async def test_a_stale_fence_ends_nothing(schema: Schema) -> None:
    both = await knowing(schema)
    (first, *_) = await both.lease()
    forged = replace(first.fence, token=first.fence.token + 1)
    stale = Settlement(fence=forged, event=Transition.COMPLETE)
    ask = LeaseRequest(pool="p", worker="w", want=1)
    answer = await both.do("settle", [stale], then=ask)
    assert not any(answer.after)
    await both.same_history()
    await both.server.close()


async def test_after_a_refusal_some_calls_go_in_full(schema: Schema) -> None:
    """A pool whose tasks are seldom plain must not pay for two calls each time."""
    both = await knowing(schema)
    await both.do("submit", batch(100, delay=40.0))
    for _ in range(8):
        await both.lease(want=0)
    assert both.server.calls == {SIMPLE: 3, ANY: 8}
    assert not both.server.detour_counts()
    await both.server.close()
