"""A submit of one task does not read the settings of its pool, and still keeps to them."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from tests.store.postgres.test_step_simple_guards import SUBMIT, on_the_server, session
from verify.servers.schemas import InlinePostgresStore, Schema

from millpond.core import control as orders
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Status, Transition
from millpond.core.run import NewRun
from millpond.core.settle import Settlement
from millpond.core.spec import Backpressure, OnFull, Order, PoolSpec, fifo, lifo, priority
from millpond.core.task import Call, Dedupe, NewTask
from millpond.store.memory import MemoryStore
from millpond.store.postgres.server_functions import versioned
from millpond.store.protocol import Admission, Batch

pytestmark = pytest.mark.real_loop

SPEC = PoolSpec(name="p", order=priority(), max_concurrent=3)
ONE, MANY = "take_one", "take"


class Watched(InlinePostgresStore):
    """A store that counts its calls of the two functions, and chooses as stores do."""

    in_full_every = 1 << 40

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, lambda: 1000.0)
        self.calls: Counter[str] = Counter()

    def _taking(self, submits: list[Any]) -> Any:
        prepared = super()._taking(submits)
        sql = self._schema.sql
        self.calls[ONE if prepared.statement == sql[ONE] else MANY] += 1
        return prepared


def task(number: int, **options: Any) -> NewTask:
    """Return a task."""
    return NewTask(id=number, pool="p", call=Call("work", b"{}"), **options)


async def submit(store: Any, *tasks: NewTask, now: float = 1000.0) -> Any:
    """Submit tasks as one batch; return its answer."""
    answer = await store.submit([Batch(tasks=tasks)], now=now, entropy=1)
    return answer.batches[0]


@asynccontextmanager
async def knowing(schema: Schema, spec: PoolSpec = SPEC) -> AsyncIterator[Watched]:
    """Yield a store that has declared a pool, and learned what its settings bound."""
    store = Watched(schema)
    await store.control(orders.Declare(spec), now=1000.0)
    await submit(store, task(1))
    store.calls.clear()
    try:
        yield store
    finally:
        await store.close()


async def test_the_second_submit_of_one_task_knows_its_pool(schema: Schema) -> None:
    async with knowing(schema) as store:
        assert (await submit(store, task(2))).admissions == (
            Admission(task=2, status=Status.QUEUED, sequence=2, depth=2),
        )
        await submit(store, task(3), task(4))
        assert store.calls == {ONE: 1, MANY: 1}
        assert not store.detour_counts()


@pytest.mark.parametrize(
    "option",
    [{"delay": 5.0}, {"run_at": 2000.0}, {"expires_in": 5.0}],
    ids=lambda one: next(iter(one)),
)
async def test_a_task_that_is_delayed_or_may_expire_is_submitted_as_a_batch(
    schema: Schema, option: dict[str, float]
) -> None:
    async with knowing(schema) as store:
        await submit(store, task(2, **option))
        assert store.calls == {MANY: 1}


@pytest.mark.parametrize("order", [lifo(), fifo()], ids=lambda order: order.kind)
async def test_a_fifo_pool_takes_one_task_alone_and_a_lifo_pool_a_batch(
    schema: Schema, order: Order
) -> None:
    async with knowing(schema, PoolSpec(name="p", order=order, max_concurrent=3)) as store:
        answer = await submit(store, task(2))
        assert answer.admissions[0].position == (1 if order == fifo() else None)
        assert store.calls == ({ONE: 1} if order == fifo() else {MANY: 1})


async def test_a_bound_that_another_process_has_set_holds_at_once(schema: Schema) -> None:
    async with knowing(schema) as store:
        other = InlinePostgresStore(schema, lambda: 1000.0)
        bound = Backpressure(on_full=OnFull.FAIL_SUBMITTER, depth=1)
        bounded = PoolSpec(name="p", order=priority(), max_concurrent=3, backpressure=bound)
        await other.control(orders.Declare(bounded), now=1000.0)
        await other.close()
        refused = await submit(store, task(2))
        assert refused.refusal is not None
        assert refused.refusal.bound == 1
        # Now it knows the pool: it refuses nothing further.
        await submit(store, task(3))
        assert store.calls == {ONE: 1, MANY: 2}


async def test_a_known_key_is_answered_with_its_task_in_two_calls(schema: Schema) -> None:
    async with knowing(schema) as store:
        first = await submit(store, task(2, idempotency_key="k", fingerprint=7))
        again = await submit(store, task(3, idempotency_key="k", fingerprint=7))
        assert [one.duplicate for one in (*first.admissions, *again.admissions)] == [False, True]
        assert again.admissions[0].task == 2
        assert store.calls == {ONE: 2, MANY: 1}
        assert not store.detour_counts()


async def test_a_key_whose_task_has_ended_may_be_used_again(schema: Schema) -> None:
    async with knowing(schema) as store:
        options = {"idempotency_key": "k", "fingerprint": 7, "dedupe": Dedupe.INFLIGHT}
        await submit(store, task(2, **options))
        await store.control(orders.Cancel(tasks=(2,)), now=1000.0)
        again = await submit(store, task(3, **options))
        assert [one.duplicate for one in again.admissions] == [False]


@pytest.mark.parametrize(
    "command",
    [orders.Pause(pool="p"), orders.Close(pool="p")],
    ids=lambda command: type(command).__name__,
)
async def test_a_pool_that_an_operator_stopped(schema: Schema, command: Any) -> None:
    async with knowing(schema) as store:
        model = MemoryStore()
        await model.control(orders.Declare(SPEC), now=1000.0)
        await submit(model, task(1))
        answers: list[object] = []
        for one in (store, model):
            await one.control(command, now=1000.0)
            try:
                answers.append(await one.submit([Batch(tasks=(task(2),))], now=1000.0, entropy=1))
            except Exception as error:  # noqa: BLE001 - the same of both
                answers.append(repr(error))
        assert answers[0] == answers[1]


async def test_a_task_stands_behind_those_that_run_are_parked_or_delayed(schema: Schema) -> None:
    """Its position and the depth of the queue are those of the memory store."""
    spec = PoolSpec(name="p", order=fifo(), max_concurrent=3)
    model = MemoryStore()
    await model.control(orders.Declare(spec), now=1000.0)
    await submit(model, task(1))
    async with knowing(schema, spec) as store:
        answers: list[list[Admission]] = [[], []]
        stores: tuple[Any, Any] = (store, model)
        for given, one in zip(answers, stores, strict=True):
            await one.control(orders.Register("w", 1e6), now=1000.0)
            await submit(one, task(2), task(3), task(4, delay=5.0))
            ask = LeaseRequest(worker="w", pool="p", want=2)
            (_, second) = (await one.lease(ask, now=1000.0, entropy=1)).leased
            parked = Settlement(
                fence=second.fence, event=Transition.RELEASE, spend=False, parked=True
            )
            await one.settle([parked], now=1000.0, entropy=1)
            given.extend((await submit(one, task(5))).admissions)
        assert answers[0] == answers[1]
        assert [(3, 4)] == [(one.position, one.depth) for one in answers[0]]
        assert store.calls == {MANY: 1, ONE: 1}


async def test_a_key_of_a_run_is_another_than_that_of_a_pool(schema: Schema) -> None:
    """A task of the run had the key: a submit to the pool makes a new task, in one call."""
    async with knowing(schema) as store:
        options = {"idempotency_key": "k", "fingerprint": 7}
        await store.submit(
            [
                Batch(
                    tasks=(task(2, run=7, dedupe=Dedupe.RUN, **options),),
                    run=NewRun(id=7, pool="p"),
                )
            ],
            now=1000.0,
            entropy=1,
        )
        store.calls.clear()
        assert not (await submit(store, task(3, **options))).admissions[0].duplicate
        assert store.calls == {ONE: 1}


async def test_priorities_are_found_in_their_order(schema: Schema) -> None:
    async with knowing(schema) as store:
        for number, level in enumerate((5, 0, 5, 9, -3), start=2):
            await submit(store, task(number, priority=level, key=f"k{number}"))
        assert store.calls == {ONE: 5}
        await store.control(orders.Register("w", 1e6), now=1000.0)
        leased = await store.lease(
            LeaseRequest(worker="w", pool="p", want=9), now=1000.0, entropy=1
        )
        assert [one.fence.task for one in leased.leased] == [5, 2, 4]


@pytest.mark.parametrize("ahead", [0, 2])
async def test_a_submit_wakes_workers_while_the_pool_has_room(schema: Schema, ahead: int) -> None:
    spec = PoolSpec(name="p", order=priority(), max_concurrent=2, prefetch=ahead)
    model = MemoryStore()
    await model.control(orders.Declare(spec), now=1000.0)
    await submit(model, task(1))
    async with knowing(schema, spec) as store:
        answers: list[list[object]] = [[], []]
        stores: tuple[Any, Any] = (store, model)
        for given, one in zip(answers, stores, strict=True):
            await one.control(orders.Register("w", 1e6), now=1000.0)
            for number in range(2, 9):
                batch = Batch(tasks=(task(number),))
                given.append(await one.submit([batch], now=1000.0, entropy=1))
                ask = LeaseRequest(worker="w", pool="p", want=1, ahead=ahead and 1)
                given.append(await one.lease(ask, now=1000.0, entropy=number))
        assert answers[0] == answers[1]
        assert {bool(one.wakes) for one in answers[0][::2]} == {True, False}  # type: ignore[attr-defined]
        assert store.calls == {ONE: 7}


async def test_tasks_in_the_inbox_are_queued_before_a_later_submit(schema: Schema) -> None:
    async with knowing(schema) as store:
        connection = schema.connection()
        put = f"SELECT {schema.address.schema}.submit('p', 'work', '{{}}')"
        connection.driver.execute(put.encode())
        connection.driver.commit()
        connection.close()
        assert (await submit(store, task(2))).admissions[0].sequence == 3
        assert store.detour_counts() == {("submit", "inbox"): 1}


async def test_a_callers_long_transaction_is_queued_before_a_later_submit(schema: Schema) -> None:
    """The store remembers which transactions were open when it last looked through the inbox."""
    async with knowing(schema) as store:
        with session(schema) as slow:
            slow.execute("BEGIN")
            slow.execute(SUBMIT)
            on_the_server(schema, SUBMIT)
            assert (await submit(store, task(2))).admissions[0].sequence == 3
            assert (await submit(store, task(3))).admissions[0].sequence == 4
            slow.execute("COMMIT")
        assert (await submit(store, task(4))).admissions[0].sequence == 6
        assert store.detour_counts() == {("submit", "inbox"): 2}


async def test_no_message_is_sent_where_there_is_no_worker(schema: Schema) -> None:
    """One that joins later asks for work first."""
    with psycopg.connect(schema.address.conninfo, autocommit=True) as listener:
        listener.execute("LISTEN here")
        listener.execute(f"SET search_path = {schema.address.schema}".encode())
        notify = versioned("SELECT millpond_notify('here', 'come')")
        async with knowing(schema) as store:
            assert listener.execute(notify.encode()).fetchone() == (False,)
            await store.control(orders.Register("w", 1e6), now=1000.0)
            assert listener.execute(notify.encode()).fetchone() == (True,)
        assert [one.payload for one in listener.notifies(timeout=1.0, stop_after=1)] == ["come"]
        assert not list(listener.notifies(timeout=0.0))


async def test_the_caller_sends_none_either(schema: Schema) -> None:
    async with knowing(schema) as store:
        for sends in (False, True):
            for tasks in ((task(2),), (task(3), task(4))):
                batch = Batch(tasks=tuple([replace(one, id=one.id + 10 * sends) for one in tasks]))
                answer = await store.submit([batch], now=1000.0, entropy=1)
                hint = store._hint([answer])
                assert hint is not None
                assert hint.wakes == (answer.wakes if sends else ())
            await store.control(orders.Register("w", 1e6), now=1000.0)
