"""The PostgreSQL store: its writer, its clock, other writers, and servers that come and go."""

import asyncio
import contextlib
import threading
import time
from typing import Any, cast

import msgspec
import psycopg
import pytest
from tests.store.postgres.stores import opened
from tests.waiting import eventually
from verify.live import simulate_live
from verify.servers.postgres import OwnServer
from verify.servers.schemas import InlinePostgresStore, Schema
from verify.servers.sqlite_files import TakingTurns

from millpond.core.control import Cancel, ClaimLeadership, Declare, Deregister, Pause, Register
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Status, Transition
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, NewTask
from millpond.errors import (
    OutcomeUnknown,
    StoreClosed,
    StoreLocked,
    StoreNotWritable,
    StoreUnreachable,
    TransactionAborted,
    UnknownPool,
    UnstorableText,
)
from millpond.store.clock import ServerClock
from millpond.store.postgres import store as module
from millpond.store.postgres.connect import Connection, Patience, connect
from millpond.store.postgres.dialect import dialect_of
from millpond.store.postgres.lock import to_write
from millpond.store.postgres.notify import PostgresHintChannel
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.quoting import qualified
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.transactions import PostgresTransactor
from millpond.store.postgres.url import Address, address_of
from millpond.store.protocol import Batch, Hint
from millpond.store.sql import read_ahead
from millpond.store.sql import store as sql_store
from millpond.store.sql.consistency import check_rows
from millpond.store.sql.unit_of_work import SqlTables
from millpond.testing.simulation.history import Verb
from millpond.testing.simulation.seeded import (
    FLOW_SEEDS,
    FLOW_STEPS,
    flow_specs,
    memory_store,
    same_story,
    simulate_on,
)

pytestmark = pytest.mark.real_loop


@pytest.fixture
def address(schema: Schema) -> Address:
    """Give their address."""
    return schema.address


def task(identifier: int, **options: Any) -> Batch:
    """A batch of one task."""
    return Batch(tasks=(NewTask(id=identifier, pool="p", call=Call("work"), **options),))


ASK = LeaseRequest(pool="p", worker="w", want=5)


async def test_a_task_is_submitted_leased_settled_and_seen(address: Address) -> None:
    """Through the writer's thread and the reader's."""
    async with opened(address) as store:
        await asyncio.gather(*(store.submit([task(n)]) for n in range(1, 41)))
        leased = (await store.lease(ASK)).leased
        assert [1, 2, 3, 4, 5] == sorted(one.fence.task for one in leased)
        ended = [
            Settlement(fence=one.fence, event=Transition.COMPLETE, result=b"1") for one in leased
        ]
        answer = await store.settle(ended, then=ASK)
        assert (Settled.APPLIED,) * 5 == answer.settled
        assert answer.lease is not None
        assert 5 == len(answer.lease.leased)
        assert ("completed", "running", "queued", "unknown") == await store.view.status(
            [1, 6, 11, 99]
        )
        view = await store.view.pool("p")
        assert view is not None
        assert (30, 5, 5) == (view.queued, view.running, view.kept)


async def test_a_store_that_is_opened_again_has_its_tasks(address: Address) -> None:
    """By a store that may not migrate, too: there is nothing to migrate."""
    async with opened(address) as store:
        await store.submit([task(1)])
    async with opened(address, may_migrate=False) as store:
        assert ("queued",) == await store.view.status([1])


async def test_an_error_of_one_is_not_that_of_the_others(address: Address) -> None:
    """Though they were in one transaction: a NUL cannot be stored, and the rest can."""
    async with opened(address) as store:
        answers = await asyncio.gather(
            store.submit([task(1)]),
            store.control(Register("a\0b", 60.0)),
            store.control(Pause("nowhere")),
            store.submit([task(2)]),
            return_exceptions=True,
        )
        kinds = [type(one) for one in answers if isinstance(one, Exception)]
        assert [UnstorableText, UnknownPool] == kinds
        assert ("queued", "queued") == await store.view.status([1, 2])
        assert {"w"} == await store.view.workers()


async def test_a_closed_store_raises_an_error(address: Address) -> None:
    """It does so for writes and for reads."""
    async with opened(address) as store:
        pass
    with pytest.raises(StoreClosed):
        await store.submit([task(1)])
    with pytest.raises(StoreClosed):
        await store.view.status([1])
    await store.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("verbs_each", [1, 3])
async def test_two_stores_in_turns_do_what_one_store_does(
    schema: Schema, seed: int, verbs_each: int
) -> None:
    """Each sees what the other wrote: answers and audit are those of the memory store."""
    lived = await simulate_on(seed, memory_store(), steps=60)
    both = TakingTurns([InlinePostgresStore(schema) for _ in range(2)], verbs_each=verbs_each)
    try:
        await same_story(lived.history, memory_store(), both)
    finally:
        await both.close()


@pytest.mark.parametrize("seed", FLOW_SEEDS[2:])
async def test_two_stores_in_turns_share_rates_and_budgets(schema: Schema, seed: int) -> None:
    """I12 where every start asks rates, by count, by weight and by key, and a shared budget."""
    lived = await simulate_on(seed, memory_store(), steps=FLOW_STEPS, make_specs=flow_specs)
    both = TakingTurns([InlinePostgresStore(schema) for _ in range(2)], verbs_each=1)
    try:
        await same_story(lived.history, memory_store(), both)
    finally:
        await both.close()


@pytest.fixture(scope="module")
def story_of_events() -> list[Verb]:
    """The first verbs of a simulation whose processes emit events."""
    return simulate_live(2).history[:250]


async def test_two_stores_in_turns_share_events_and_triggers(
    schema: Schema, story_of_events: list[Verb]
) -> None:
    """I12 for what emit, dispatch and delivery are made of."""
    assert 20 < sum("~trigger/" in repr(verb.asked) for verb in story_of_events)
    both = TakingTurns([InlinePostgresStore(schema) for _ in range(2)], verbs_each=1)
    try:
        await same_story(story_of_events, memory_store(), both)
    finally:
        await both.close()


async def test_a_store_keeps_its_rows_until_another_process_writes(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps them after its own writes, and reads again after those of another."""
    mine, other = InlinePostgresStore(schema), InlinePostgresStore(schema)
    made: list[object] = []
    new_unit = PostgresStore._new_unit

    def noted(store: PostgresStore, *arguments: Any) -> Any:
        made.append(store)
        return new_unit(store, *arguments)

    monkeypatch.setattr(PostgresStore, "_new_unit", noted)
    await mine.control(Declare(PoolSpec(name="p", max_concurrent=5)))
    await mine.submit([task(1, on_complete=Call("work"))])
    await mine.submit([task(2, on_complete=Call("work"))])
    await mine.view.status([1])
    await mine.recover()
    assert [mine] == made
    await other.control(Cancel((1,)))
    await mine.control(Register("w", 60.0))
    assert [mine, other, mine] == made
    assert [2] == [one.fence.task for one in (await mine.lease(ASK)).leased]
    assert [mine, other, mine] == made
    await mine.close()
    await other.close()


async def test_changed_is_true_after_another_process_wrote(
    address: Address, schema: Schema
) -> None:
    """One call reports all writes; a verb that changes nothing is no write."""
    async with opened(address) as store:
        other = InlinePostgresStore(schema)
        await store.changed()
        assert not await store.changed()
        await other.submit([task(1)])
        await other.submit([task(2)])
        assert await store.changed()
        assert not await store.changed()
        await other.recover()
        assert not await store.changed()
        await other.close()


@pytest.mark.listens
async def test_other_processes_get_a_hint_after_a_commit(address: Address) -> None:
    """The writer sends it after its commit; the sender does not get it."""
    async with opened(address, owner="one") as one, opened(address, owner="two") as two:
        heard: asyncio.Queue[Hint] = asyncio.Queue()
        own: list[Hint] = []
        one.listen(own.append)
        two.listen(heard.put_nowait)
        while not (
            one.receives_hints and two.receives_hints
        ):  # what each sends has come back to it
            await one.submit([])
            await two.submit([])
        own.clear()
        await one.submit([task(1)])
        while not any(wake.pool == "p" for wake in (await heard.get()).wakes):
            pass
        assert [] == own


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> list[Hint]:
    """The hints that would be sent to other processes, one for each commit that has any."""
    sent: list[Hint] = []

    def take(_: PostgresHintChannel, hint: Hint | None = None) -> None:
        if hint is not None and hint != Hint():
            sent.append(hint)

    monkeypatch.setattr(PostgresHintChannel, "post", take)
    monkeypatch.setattr(PostgresHintChannel, "send", take)
    monkeypatch.setattr(PostgresHintChannel, "along", lambda *_: None)
    return sent


async def _completed(store: PostgresStore, leased: Leased) -> None:
    end = Settlement(fence=leased.fence, event=Transition.COMPLETE)
    await store.settle([end], then=None)


@pytest.mark.listens
async def test_an_end_gives_a_hint_only_while_a_process_waits_for_one(
    address: Address, hints: list[Hint]
) -> None:
    """A process that begins to wait reads what ended before that."""
    async with opened(address, owner="one") as one, opened(address, owner="two") as two:
        heard: asyncio.Queue[Hint] = asyncio.Queue()
        two.listen(heard.put_nowait)
        await one.submit([task(number) for number in (1, 2, 3)])
        first, second, third = (await one.lease(msgspec.structs.replace(ASK, want=3))).leased
        assert (await heard.get()).more
        hints.clear()
        await _completed(one, first)
        assert [] == hints
        await cast("asyncio.Future[None]", two.await_ends(wanted=True))
        await _completed(one, second)
        assert [Hint(ended=(2,))] == hints
        two.await_ends(wanted=False)
        two.await_ends(wanted=True)
        two.await_ends(wanted=False)
        with connect(address) as connection:
            await eventually(lambda: not _waiters(connection))
        await _completed(one, third)
        assert [Hint(ended=(2,))] == hints


def _waiters(connection: Connection) -> int:
    statement = b"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
    ((count,),) = connection.execute(statement).fetchall()
    return int(count)


async def test_room_gives_a_hint_only_if_there_was_none(
    address: Address, hints: list[Hint]
) -> None:
    """Otherwise no other worker sleeps because the pool was full."""
    async with opened(address, owner="one") as one:
        await one.control(Declare(PoolSpec(name="p", max_concurrent=2)))
        await one.submit([task(number) for number in range(1, 6)])
        ask = msgspec.structs.replace(ASK, want=1)
        (first,) = (await one.lease(ask)).leased
        hints.clear()
        await _completed(one, first)
        assert [] == hints
        (second,) = (await one.lease(ask)).leased
        (third,) = (await one.lease(ask)).leased
        end = Settlement(fence=second.fence, event=Transition.COMPLETE)
        await one.settle([end], then=ask)
        assert [] == hints
        await _completed(one, third)
        assert ["p"] == [wake.pool for hint in hints for wake in hint.wakes]


async def test_a_task_that_goes_back_to_the_queue_gives_a_hint(
    address: Address, hints: list[Hint]
) -> None:
    """A worker may sleep because the queue was empty."""
    async with opened(address, owner="one") as one:
        await one.control(Declare(PoolSpec(name="p", max_concurrent=2)))
        await one.submit([task(1)])
        (leased,) = (await one.lease(ASK)).leased
        hints.clear()
        await one.settle([Settlement(fence=leased.fence, event=Transition.RELEASE)])
        assert ["p"] == [wake.pool for hint in hints for wake in hint.wakes]


async def test_the_store_uses_the_servers_clock(address: Address) -> None:
    """Whatever the clock of this machine says: it is heard with every transaction."""
    clock = ServerClock()
    async with opened(address, clock=clock) as store:
        clock.set_to(clock() + 1_000_000.0)
        with connect(address) as connection:
            query = "SELECT extract(epoch FROM clock_timestamp())::double precision"
            ((before,),) = connection.execute(query).fetchall()
            await store.submit([task(1)])
            ((after,),) = connection.execute(query).fetchall()
        found = await store.view.task(1)
        assert found is not None
        assert before - 0.001 <= found.submitted_at <= after + 0.001


async def test_a_writer_that_cannot_get_the_lock_gets_an_error(address: Address) -> None:
    """Its task is not stored."""
    async with opened(address, patience=Patience(lock=0.2)) as store:
        with connect(address) as connection:
            connection.execute("BEGIN")
            connection.execute(to_write(address.schema).encode())
            with pytest.raises(StoreLocked, match="pg_stat_activity") as caught:
                await store.submit([task(1)])
            assert 0.2 == caught.value.waited
            assert ("unknown",) == await store.view.status([1])
        await store.submit([task(1)])


async def test_a_writer_that_is_frozen_loses_the_lock(address: Address) -> None:
    """Other writers go on, and it repeats its own job."""
    begun, thawed, done = threading.Event(), threading.Event(), []

    def job(_: SqlTables) -> None:
        done.append("job")
        begun.set()
        assert len(done) > 1 or thawed.wait(30)

    async with opened(address, patience=Patience(turn=0.4)) as frozen, opened(address) as other:
        doing = asyncio.create_task(frozen._do(job))
        await asyncio.to_thread(begun.wait)
        async with asyncio.timeout(5):
            await other.submit([task(1)])
        thawed.set()
        await doing
    assert ["job", "job"] == done


async def test_long_transactions_get_more_time_to_hold_the_lock(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a handler's function, a held transaction, or many tasks at once."""
    slow = 0.9
    monkeypatch.setattr(module, "_LONGEST_PER_TASK", 3 * slow)
    async with opened(address, patience=Patience(turn=0.4)) as store:
        expect = read_ahead.expect_submit

        def slowly(*given: Any) -> None:
            time.sleep(slow)  # longer than a turn may take, as below
            expect(*given)

        with monkeypatch.context() as patch:
            patch.setattr(sql_store, "expect_submit", slowly)
            # What may expire is nothing that the server takes in by itself.
            await store.submit([task(1, expires_in=600.0), task(2, expires_in=600.0)])
        first, second = (await store.lease(ASK)).leased
        ended = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in (first, second)]
        # A handler takes longer than that, too.
        answer, _ = await store.settle_with(ended[0], lambda _: time.sleep(slow))
        assert (Settled.APPLIED,) == answer.settled
        held = store.handler_transaction(5.0)
        held.begin()
        await asyncio.sleep(slow)  # and so does a transaction that is held
        assert (Settled.APPLIED,) == held.settle(ended[1]).settled


def end_all(address: Address) -> None:
    """End every session of a database but the one that asks."""
    with connect(address) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.fixture
def alone(postgres_url: str) -> Address:
    """Give the address of a database whose sessions are all ours to end."""
    return address_of(postgres_url)


async def test_connections_that_ended_while_idle_are_replaced(alone: Address) -> None:
    """Writes, reads and renewals connect again, and no caller gets an error."""
    async with opened(alone) as store:
        await store.submit([task(1)])
        await store.view.status([1])
        renewer = store.renewer()
        assert (await asyncio.to_thread(renewer.renew, "w", 60.0)).alive
        end_all(alone)
        await store.submit([task(2)])
        assert ("queued", "queued") == await store.view.status([1, 2])
        assert (await asyncio.to_thread(renewer.renew, "w", 60.0)).alive
        renewer.close()


async def test_a_renewal_keeps_leases_and_notifies_no_process(address: Address) -> None:
    """It is written, and makes no other process poll."""
    async with opened(address) as store:
        renewer = store.renewer()
        await store.changed()
        with connect(address) as connection:
            query = qualified("SELECT expires_at FROM millpond_worker", address.schema).encode()
            before = connection.execute(query).fetchone()
            assert (await asyncio.to_thread(renewer.renew, "w", 1e6)).alive
            after = connection.execute(query).fetchone()
        assert before is not None
        assert after is not None
        assert after[0] > before[0] + 1e5
        assert not await store.changed()
        assert not (await asyncio.to_thread(renewer.renew, "unknown", 1e6)).alive
        renewer.close()


async def test_a_server_that_comes_back_is_used_again(own: OwnServer) -> None:
    """Verbs raise StoreUnreachable meanwhile, and succeed afterwards."""
    with OwnServer(own.programs) as spare:
        async with opened(address_of(spare.url)) as store:
            await store.submit([task(1)])
            spare.crash()
            with pytest.raises(StoreUnreachable):
                await store.submit([task(2)])
            with pytest.raises(StoreUnreachable):
                await store.view.status([1])
            spare.start()
            await store.submit([task(2)])
            assert ("queued", "queued") == await store.view.status([1, 2])


@pytest.mark.parametrize(
    ("what", "options"), [("commit", {"on_complete": Call("work")}), ("call", {})]
)
async def test_a_commit_whose_answer_is_lost_has_an_unknown_outcome(
    schema: Schema, monkeypatch: pytest.MonkeyPatch, what: str, options: dict[str, Any]
) -> None:
    """The next verb reads the tables again."""
    store = InlinePostgresStore(schema)
    await store.control(Declare(PoolSpec(name="p", max_concurrent=5)))
    happens = getattr(PostgresConnection, what)

    def lost(connection: PostgresConnection, *arguments: Any) -> None:
        happens(connection, *arguments)
        connection.in_doubt = True
        connection.driver.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, what, lost)
        with pytest.raises(OutcomeUnknown, match="idempotency key"):
            await store.submit([task(1, **options)])
    assert ("queued",) == await store.view.status([1])
    await store.submit([task(2)])
    assert ("queued", "queued") == await store.view.status([1, 2])
    await store.close()


class Unit:
    """One that has nothing to write."""

    def write(self) -> None:
        """Write nothing."""

    def committed(self) -> None:
        """Hear nothing."""


def transactor_of(schema: Schema) -> PostgresTransactor[Unit]:
    """What writes to a schema."""
    dialect = dialect_of(schema.address.schema)
    return PostgresTransactor(
        schema.address, dialect, schema.connection, lambda _: Unit(), patience=1.0
    )


def test_an_ignored_error_is_not_committed(schema: Schema) -> None:
    """The transaction has failed, even if its job suppresses the error."""
    transactor = transactor_of(schema)

    def job(_: Unit) -> None:
        with contextlib.suppress(psycopg.Error):
            transactor.connection.execute("SELECT 1 / 0").fetchall()

    with pytest.raises(TransactionAborted):
        transactor.once(job)
    assert not transactor.connection.in_transaction
    transactor.close()


@pytest.mark.parametrize("kind", [psycopg.errors.DeadlockDetected, psycopg.errors.AdminShutdown])
def test_an_error_that_may_pass_is_retried_once(schema: Schema, kind: type[psycopg.Error]) -> None:
    """After a deadlock, and after a lost connection."""

    transactor = transactor_of(schema)
    calls: list[int] = []

    def job(_: Unit) -> str:
        calls.append(1)
        if len(calls) < 2:
            code = {"DeadlockDetected": "40P01", "AdminShutdown": "57P01"}[kind.__name__]
            transactor.connection.execute(
                f"DO $$ BEGIN RAISE EXCEPTION 'try again' USING ERRCODE = '{code}'; END $$"
            ).fetchall()
        return "done"

    assert "done" == transactor.run(job)
    assert [1, 1] == calls
    transactor.close()


def test_a_session_that_turned_read_only_is_closed(schema: Schema) -> None:
    """Its server may be a standby by now: a new connection can find the primary."""
    transactor = transactor_of(schema)

    def job(_: Unit) -> None:
        transactor.connection.execute("SET TRANSACTION READ ONLY")
        transactor.connection.execute("CREATE TABLE public.no ()")

    with pytest.raises(StoreNotWritable, match="all hosts as host1,host2"):
        transactor.once(job)
    assert transactor.driver is None
    transactor.close()


async def test_repair_makes_inconsistent_rows_consistent(address: Address) -> None:
    """While it is open."""
    async with opened(address) as store:
        await store.submit([task(1)])
        with connect(address) as connection:
            wrong = "UPDATE millpond_pool SET live = 7, ready = 3"
            connection.execute(qualified(wrong, address.schema).encode())
        found = await store.repair()
        assert any("7 live" in said for said in found)
        assert () == await store.repair()
        assert 1 == len((await store.lease(ASK)).leased)


async def test_the_writes_of_a_handler_are_committed_with_its_completion(address: Address) -> None:
    """They are rolled back if it raises."""
    add = "INSERT INTO public.own VALUES (%s)"
    with connect(address) as connection:
        connection.execute("CREATE TABLE public.own (value bigint)")
    async with opened(address) as store:
        await store.submit([task(1), task(2)])
        first, second = (await store.lease(ASK)).leased

        def failing(lent: Any) -> None:
            lent.execute(add, [1])
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await store.settle_with(
                Settlement(fence=first.fence, event=Transition.COMPLETE), failing
            )
        answer, value = await store.settle_with(
            Settlement(fence=second.fence, event=Transition.COMPLETE),
            lambda lent: lent.execute(add + " RETURNING value", [2]).fetchone(),
        )
        assert ((Status.COMPLETED,), (2,)) == (answer.after, value)
        assert ("running", "completed") == await store.view.status([1, 2])
    with connect(address) as connection:
        found = connection.execute("SELECT value FROM public.own").fetchall()
        connection.execute("DROP TABLE public.own")
    assert [(2,)] == found


async def test_names_with_quotes_and_of_63_bytes_are_names(own_url: str) -> None:
    """Of the schema."""
    for name in ('it\'s "mine"; --', "ü" * 31 + "x"):
        address = msgspec.structs.replace(address_of(own_url), schema=name)
        async with opened(address) as store:
            await store.submit([task(1)])
            assert 1 == len((await store.lease(ASK)).leased)
            assert () == await store.repair()
            connection = store._open()
            assert [] == check_rows(connection, dialect_of(name))
            connection.close()


async def test_writers_in_threads_of_many_stores_take_turns(address: Address) -> None:
    """Each task is leased once, by one of them."""
    async with opened(address) as store:
        await store.submit(
            [Batch(tasks=tuple(NewTask(id=n, pool="p", call=Call("w")) for n in range(1, 101)))]
        )
        got: list[int] = []

        async def work(name: str) -> None:
            mine = PostgresStore(address)
            await mine.control(Register(name, 60.0))
            ask = LeaseRequest(pool="p", worker=name, want=2)
            leased = (await mine.lease(ask)).leased
            while leased or len(got) < 100:
                got.extend(one.fence.task for one in leased)
                ended = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in leased]
                answer = await mine.settle(ended, then=ask)
                assert answer.lease is not None
                leased = answer.lease.leased
            await mine.close()

        await asyncio.gather(*(work(f"w{n}") for n in range(3)))
        assert list(range(1, 101)) == sorted(got)


async def test_each_poll_of_an_idle_fleet_is_one_statement(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether another leads, whether a process wrote, and whether a task waits."""
    store = InlinePostgresStore(schema)
    await store.control(Declare(PoolSpec(name="p", max_concurrent=5)))
    for worker, owner in (("w", "leader"), ("v", "other")):
        await store.control(Register(worker, 60.0, owner=owner))
    led = await store.control(ClaimLeadership("leader", 60.0))
    sent: list[str] = []
    send = PostgresConnection._send

    def noted(
        connection: PostgresConnection, statement: str, arguments: Any, **options: Any
    ) -> Any:
        sent.append(statement)
        return send(connection, statement, arguments, **options)

    monkeypatch.setattr(PostgresConnection, "_send", noted)
    refused = await store.control(ClaimLeadership("other", 60.0))
    assert (0, led.revision) == (refused.count, refused.revision)
    assert () == await store.view.due(now=time.time())
    await store.changed()
    assert len(sent) == 3
    await store.submit([task(1)])
    assert await store.view.due(now=time.time()) == ("p",)
    await store.control(Deregister("w"))
    assert (await store.control(ClaimLeadership("other", 60.0))).count == 1
    await store.close()


async def test_recovery_reads_leases_that_the_server_renewed(address: Address) -> None:
    """A renewal changes no version, so a store must not trust the leases it keeps in memory."""
    now = 1000.0
    async with opened(address, clock=lambda: now) as store:
        await store.control(Register("other", 30.0, owner="you"))
        await store.recover()
        renewer = store.renewer()
        now += 25.0
        assert renewer.renew("other", 30.0).alive
        now += 10.0
        await store.recover()
        assert renewer.renew("other", 30.0).alive
        now += 31.0
        await store.recover()
        assert not renewer.renew("other", 30.0).alive
        renewer.close()
