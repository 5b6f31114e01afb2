"""Calls that the event loop sends and whose answers it reads, and those it leaves to the thread."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import msgspec
import pytest
from tests.store.postgres.stores import opened
from tests.waiting import eventually
from verify.servers.schemas import Schema

from millpond.core.control import Declare
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, NewTask
from millpond.errors import OutcomeUnknown, StoreClosed
from millpond.store.postgres import writer as module
from millpond.store.postgres.connect import connect
from millpond.store.postgres.lock import to_write
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import Address
from millpond.store.postgres.writer import PostgresWriter
from millpond.store.protocol import Batch, SubmitAnswer

pytestmark = pytest.mark.real_loop

SECONDS = 30
"""For which something is waited for that happens at once."""


@pytest.fixture
def address(schema: Schema) -> Address:
    """Give their address."""
    return schema.address


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often the loop took in an answer, and how often the thread had to do something."""
    counted: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., Any]:
        method = getattr(PostgresWriter, name)

        def noted(writer: PostgresWriter, *given: Any) -> Any:
            counted[name.lstrip("_")] += 1
            return method(writer, *given)

        return noted

    for name in ("_complete", "_finish", "_do_group"):
        monkeypatch.setattr(PostgresWriter, name, counting(name))
    return counted


def submitted(store: PostgresStore, first: int, count: int = 1) -> "asyncio.Task[SubmitAnswer]":
    """Submit some tasks."""
    tasks = tuple(NewTask(id=first + n, pool="p", call=Call("f", b"x")) for n in range(count))
    return asyncio.ensure_future(store.submit([Batch(tasks=tasks)]))


@contextmanager
def held_up(address: Address) -> Iterator[Callable[[], None]]:
    """Hold the lock of writers until the given function is called."""
    connection = connect(address, durability="normal")
    connection.execute("BEGIN")
    connection.execute(to_write(address.schema).encode())
    try:
        yield connection.close
    finally:
        connection.close()


async def until_flying(store: PostgresStore) -> None:
    """Wait until a call is under way."""
    writer = store._writer
    assert isinstance(writer, PostgresWriter)
    async with asyncio.timeout(SECONDS):
        while writer._pending is None or not writer._pending.in_flight:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)


async def test_a_plain_life_needs_no_thread(address: Address, done: Counter[str]) -> None:
    """What the server does by itself is sent and heard by the loop, in the order it was asked."""
    async with opened(address) as store:
        await submitted(store, 1)
        done.clear()
        many = [submitted(store, number) for number in (2, 3, 4)]
        sequences = [(await one).batches[0].admissions[0].sequence for one in many]
        lease = await store.lease(LeaseRequest(pool="p", worker="w", want=3))
        ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in lease.leased]
        answer = await store.settle(ends, then=LeaseRequest(pool="p", worker="w", want=3))
        assert [1, 2, 3] == [one.fence.task for one in lease.leased]
        assert sequences == sorted(sequences)
        assert (Settled.APPLIED,) * 3 == answer.settled
        # Three submits are two calls: those that come while the first is under way go together.
        assert {"complete": 4} == done


async def test_jobs_keep_their_order(address: Address) -> None:
    """Whether the loop or the thread does them, none overtakes another."""
    async with opened(address) as store:
        order: list[int] = []

        def noted(number: int) -> Callable[[Any], None]:
            return lambda _: order.append(number)

        waiting: list[Any] = []
        for number in range(0, 30, 3):
            task = submitted(store, 100 + number)
            task.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
            await asyncio.sleep(0)  # it is in line
            waiting += [task, asyncio.ensure_future(store._do(noted(number + 1)))]
            await asyncio.sleep(0)
            waiting.append(asyncio.ensure_future(store._do(noted(number + 2))))
            await asyncio.sleep(0)
        answers = await asyncio.gather(*waiting)
        submits = [one for one in answers if isinstance(one, SubmitAnswer)]
        sequences = [one.batches[0].admissions[0].sequence for one in submits]
        assert sorted(sequences) == sequences
        verbs = [number for number in order if number % 3]
        assert sorted(verbs) == verbs


async def test_the_loop_leaves_a_slow_call_to_the_thread(
    address: Address, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits there as long as it may, and the answer is the same."""
    monkeypatch.setattr(module, "_A_MOMENT", 0.01)
    async with opened(address) as store:
        await submitted(store, 1)
        done.clear()
        with held_up(address) as let_go:
            task = submitted(store, 2)
            await eventually(lambda: done["finish"], within=SECONDS)
            assert not task.done()
            let_go()
            assert [2] == [one.task for one in (await task).batches[0].admissions]


async def test_a_thread_that_the_loop_waits_for_does_not_wait_for_the_loop(
    address: Address,
) -> None:
    """A caller that blocks the loop until a job is done gets it done, whatever call is pending."""
    async with opened(address) as store:
        await submitted(store, 1)
        with held_up(address) as let_go:
            task = submitted(store, 2)
            await until_flying(store)
            threading.Timer(0.05, let_go).start()
            assert store._do_now(lambda _: "done") == "done"
            await task


async def test_closing_waits_for_the_pending_call(address: Address) -> None:
    """It is answered; a later call raises an error that says the store is closed."""
    async with opened(address) as store:
        await submitted(store, 1)
        with held_up(address) as let_go:
            task = submitted(store, 2)
            await until_flying(store)
            closing = asyncio.ensure_future(store.close())
            await asyncio.sleep(0)
            with pytest.raises(StoreClosed):
                await submitted(store, 3)
            let_go()
            await closing
            assert [2] == [one.task for one in (await task).batches[0].admissions]


async def test_a_lost_connection_is_found_before_anything_is_sent(
    address: Address, schema: Schema, done: Counter[str]
) -> None:
    """The next call goes over a new one, by the thread; the one after that by the loop again."""
    async with opened(address) as store:
        for number in range(1, 4):
            await submitted(store, 10 * number)
            done.clear()
            _end_session(store, schema)
            await submitted(store, 10 * number + 1)
            assert done["finish"] == 1
            await submitted(store, 10 * number + 2)
            assert done["complete"] == 1


async def test_a_connection_lost_under_way_leaves_a_doubt(address: Address, schema: Schema) -> None:
    """Its outcome is unknown, and the next call succeeds."""
    async with opened(address) as store:
        await submitted(store, 1)
        with held_up(address):
            task = submitted(store, 2)
            await until_flying(store)
            # Before the server has begun it, there is no doubt: the verbs would do it again.
            await eventually(lambda: _waits_for_a_lock(store, schema), within=SECONDS)
            _end_session(store, schema)
            with pytest.raises(OutcomeUnknown):
                await task
        await submitted(store, 3)


def _waits_for_a_lock(store: PostgresStore, schema: Schema) -> bool:
    """Return whether the session that the store writes over waits for a lock."""
    question = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    return _is_so(schema, question, store)


def _end_session(store: PostgresStore, schema: Schema) -> None:
    """Let the server end the connection that the store writes over, and wait until it has."""
    assert _is_so(schema, "SELECT pg_terminate_backend(%s, 30000)", store)


def _is_so(schema: Schema, question: LiteralString, store: PostgresStore) -> bool:
    """Return the answer of the server to a question about the writing session of a store."""
    transactor: Any = store._writing
    pid = transactor._connection._driver.info.backend_pid
    other = connect(schema.address)
    try:
        row = other.execute(question, [pid]).fetchone()
        return row is not None and bool(row[0])
    finally:
        other.close()


async def test_a_refusal_goes_to_the_verbs(address: Address, done: Counter[str]) -> None:
    """So does a refusal after which the server rolls back what it had begun."""
    async with opened(address) as store:
        await submitted(store, 1)
        done.clear()
        again = await submitted(store, 1)
        assert again.batches[0].admissions[0].sequence == 1
        assert done["do_group"] == 1


async def test_without_socket_readers_the_thread_does_every_call(
    address: Address, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of Windows do."""

    def never(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", never)
    async with opened(address) as store:
        for number in range(3):
            await submitted(store, number + 1)
        assert not done["complete"]


async def test_a_large_submit_is_put_into_words_by_the_thread(
    address: Address, done: Counter[str]
) -> None:
    """The loop has other things to do meanwhile."""
    async with opened(address) as store:
        await submitted(store, 1)
        done.clear()
        answer = await submitted(store, 10, 1001)
        assert len(answer.batches[0].admissions) == 1001
        assert {"finish": 1} == done


def test_another_loop_goes_on_where_the_first_one_ended(address: Address) -> None:
    """Also if that ended while something was under way."""

    async def begun() -> PostgresStore:
        opening = PostgresStore(address)
        await opening.control(Declare(PoolSpec(name="p", max_concurrent=5)))
        await submitted(opening, 1)
        return opening

    async def left_under_way(store: PostgresStore) -> None:
        submitted(store, 2)
        await until_flying(store)

    async def last(store: PostgresStore) -> None:
        answer = await submitted(store, 3)
        assert answer.batches[0].admissions[0].sequence == 3
        await store.close()

    store = asyncio.run(begun())
    with held_up(address) as let_go:
        asyncio.run(left_under_way(store))
        let_go()
    asyncio.run(last(store))


async def test_behind_a_pooler_a_call_is_one_transaction(
    address: Address, done: Counter[str]
) -> None:
    """It has its settings before it and a commit behind it; the loop still reads the answer."""
    behind = msgspec.structs.replace(address, pooler=True)
    async with opened(behind) as store:
        await submitted(store, 1)
        done.clear()
        answer = await submitted(store, 2)
        again = await submitted(store, 2)
        assert [2, 2] == [one.batches[0].admissions[0].sequence for one in (answer, again)]
        assert done["complete"] == 1
        assert [1, 2] == [one.new.id for one in (await store.view.tasks("p", limit=5)).tasks]


async def test_the_thread_sends_a_call_that_does_not_fit_into_the_socket(
    address: Address, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop only reads: it must not wait until the rest is sent."""
    monkeypatch.setattr(module, "_A_MOMENT", 3600.0)
    async with opened(address) as store:
        await submitted(store, 1)
        done.clear()
        large = NewTask(id=2, pool="p", call=Call("f", b"x" * 20_000_000))
        answer = await store.submit([Batch(tasks=(large,))])
        assert answer.batches[0].admissions[0].sequence == 2
        assert {"finish": 1} == done
