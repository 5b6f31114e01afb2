"""The inbox: tasks that callers submit in their own transactions, and their way to the queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import psycopg
import pytest
from tests.store.postgres.stores import with_pool
from verify.servers.schemas import InlinePostgresStore, Schema

from millpond.core.admit import Reason
from millpond.core.control import Close, Declare, Register
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Status, Transition
from millpond.core.rate import Rate
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, bounded, fail_fast, fair_round_robin, fifo, ring_buffer
from millpond.core.task import Call, NewTask, Task
from millpond.store.postgres import inbox
from millpond.store.postgres.lock import to_write
from millpond.store.postgres.notify import channel_of
from millpond.store.postgres.quoting import qualified
from millpond.store.postgres.store import PostgresStore
from millpond.store.protocol import Batch, BatchAnswer, PoolView
from millpond.store.verbs import api as steps

pytestmark = pytest.mark.real_loop

ASK = LeaseRequest(pool="p", worker="w", want=5)


class Own:
    """A connection of an application's, to the database of the store."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self.connection = connection
        self.schema = schema

    def ask(self, statement: str) -> Any:
        """Return the first value that a statement gives; what is ours is qualified in it."""
        return self._first(qualified(statement, self.schema))

    def _first(self, statement: str) -> Any:
        row = self.connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row[0]

    def submit(self, arguments: str = "", pool: str = "p", function: str = "work") -> int:
        """Submit by the function, with more arguments in SQL."""
        said = f"'{pool}', '{function}'" + (f", {arguments}" if arguments else "")
        task: int = self._first(f'SELECT "{self.schema}".submit({said})')
        return task


@contextmanager
def connected(schema: Schema, **options: Any) -> Iterator[Own]:
    """Connect as an application does; what is left open is rolled back."""
    connection = psycopg.connect(schema.address.conninfo, **options)
    try:
        yield Own(connection, schema.address.schema)
    finally:
        connection.close()


def opened(schema: Schema, **options: Any) -> AbstractAsyncContextManager[InlinePostgresStore]:
    """Open a store with a worker, and with a pool that has these options."""
    return with_pool(InlinePostgresStore(schema), **options)


def new(identifier: int, **options: Any) -> NewTask:
    """A task."""
    return NewTask(id=identifier, pool="p", call=Call("work"), **options)


def within(store: PostgresStore, own: Own, *tasks: NewTask) -> BatchAnswer:
    """Submit inside an application's transaction."""
    answer: Any = store.submit_within(own.connection, (Batch(tasks=tasks),))
    first: BatchAnswer = answer[0].batches[0]
    return first


async def leased(store: PostgresStore) -> list[int]:
    """Claim what can be started, and return which it is."""
    return [one.fence.task for one in (await store.lease(ASK)).leased]


async def kept(store: PostgresStore, task: int) -> Task:
    """Return a task that must be there."""
    found = await store.view.task(task)
    assert found is not None
    return found


# Coming in


async def test_every_view_shows_a_committed_task_as_queued(schema: Schema) -> None:
    """No client has written since; status, counts and pages have it like any other task."""
    async with opened(schema) as store:
        with connected(schema) as own:
            within(store, own, new(1), new(2, key="k"))
            assert ("unknown", "unknown") == await store.view.status([1, 2])
            own.connection.commit()
        assert ("queued", "queued") == await store.view.status([1, 2])
        page = await store.view.tasks("p")
        view = await store.view.pool("p")
        assert view is not None
        assert ([1, 2], 2, 2) == ([one.new.id for one in page.tasks], view.queued, view.fresh)


async def test_changed_reports_a_commit_of_another_program(schema: Schema) -> None:
    """A process that gets no notifications polls with it."""
    async with opened(schema) as store:
        await store.changed()
        assert not await store.changed()
        with connected(schema) as own:
            own.submit()
            own.connection.commit()
        assert await store.changed()
        assert ("p",) == await store.view.due(now=9e9)


@pytest.mark.rows("CX-08")
async def test_a_claim_finds_tasks_committed_before_it(schema: Schema) -> None:
    """It takes them in the order of their submits, as far as they are committed."""
    async with opened(schema, order=fifo()) as store:
        with connected(schema) as early, connected(schema) as late:
            within(store, early, new(1))
            within(store, late, new(2))
            late.connection.commit()
            assert [2] == await leased(store)
            # It was submitted first and is committed late: no claim has passed it over.
            early.connection.commit()
            assert [1] == await leased(store)


@pytest.mark.rows("CX-21")
async def test_a_commit_that_is_an_hour_late_is_found_at_once(schema: Schema) -> None:
    """The next claim has it, at the very moment of the commit: nothing waits out a time."""
    now = [1000.0]
    store = InlinePostgresStore(schema, lambda: now[0])
    await store.control(Declare(PoolSpec(name="p", max_concurrent=9, order=fifo())))
    await store.control(Register("w", 9999.0, owner="me"))
    with connected(schema) as own:
        within(store, own, new(1))
        for at in range(2, 6):
            now[0] += 900.0
            await store.submit([Batch(tasks=(new(at),))])
            assert [at] == await leased(store)
        own.connection.commit()
    assert [1] == await leased(store)
    await store.close()


POOLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bounded": {"backpressure": bounded(100, per_key=50)},
    "fair": {"order": fair_round_robin(), "max_per_key": 2},
    "lanes": {"order": fifo(), "lanes": 2, "max_concurrent": 2},
}


@pytest.mark.rows("CX-07")
@pytest.mark.parametrize("kind", POOLS)
async def test_a_submit_in_a_callers_transaction_and_the_writers_do_not_wait_for_each_other(
    schema: Schema, kind: str
) -> None:
    """It goes in while a writer has the turn, and writers go on while it is not committed."""
    async with opened(schema, **POOLS[kind]) as store:
        await store.submit([Batch(tasks=(new(1, key="k"),))])
        with connected(schema) as own, connected(schema) as writer:
            own.connection.execute("SET lock_timeout = '2s'")
            take_turn(writer)
            within(store, own, new(2, key="k"))
            own.submit("key => 'k'")
            writer.connection.rollback()
            # It stays open; the schema's own connection has no patience for it either.
            await store.submit([Batch(tasks=(new(3, key="other"),))])
            first = (await store.lease(ASK)).leased
            assert 1 in {one.fence.task for one in first}
            ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in first]
            await store.settle(ends)
            assert 0 == (await view_of(store)).running
            own.connection.commit()
        assert 2 in await leased(store)


def take_turn(writer: Own) -> None:
    """Take the turn of a writer, until the transaction ends."""
    writer.connection.execute(to_write(writer.schema).encode())


async def view_of(store: PostgresStore) -> PoolView:
    """Return the pool's counts."""
    found = await store.view.pool("p")
    assert found is not None
    return found


async def test_more_than_one_transaction_moves(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader sees all tasks of the inbox; a writer moves the first of them to the queue."""
    monkeypatch.setattr(inbox, "MOST", 2)
    async with opened(schema, order=fifo()) as store:
        with connected(schema) as own:
            within(store, own, *(new(n) for n in range(1, 6)))
            own.connection.commit()
        assert [1, 2] == await leased(store)
        assert ("queued",) * 3 == await store.view.status([3, 4, 5])


async def test_delays_count_from_the_submit(schema: Schema) -> None:
    """And so does the time to expire: the transaction may have been open for a while."""
    async with opened(schema) as store:
        with connected(schema) as own:
            within(store, own, new(1, delay=100.0, expires_in=300.0))
            own.ask("UPDATE millpond_inbox SET at = at - 60 RETURNING n")
            own.connection.commit()
        task = await kept(store, 1)
        assert task.expires_at is not None
        assert 40.0 == pytest.approx(task.due - task.submitted_at, abs=1.0)
        assert 240.0 == pytest.approx(task.expires_at - task.submitted_at, abs=1.0)


# What is refused, and what ends


async def test_a_bound_counts_committed_tasks_and_those_of_the_transaction(schema: Schema) -> None:
    """Block acts as fail; an accepted task is queued though the pool is full by then."""
    async with opened(schema, backpressure=bounded(3, per_key=2)) as store:
        with connected(schema) as own, connected(schema) as other:
            within(store, own, new(1), new(2, key="k"))
            refusal = within(store, own, new(3), new(4)).refusal
            assert refusal is not None
            assert (Reason.QUEUE_FULL, 2, 3, False) == (
                refusal.reason,
                refusal.depth,
                refusal.bound,
                refusal.may_wait,
            )
            # The other's are not committed: it sees room, and is right to.
            within(store, other, new(5, key="k"), new(6, key="k"))
            refusal = within(store, other, new(7, key="k")).refusal
            assert refusal is not None
            assert ("k", 2, 2) == (refusal.lane, refusal.depth, refusal.bound)
            refusal = within(store, other, *(new(n) for n in range(10, 14))).refusal
            assert refusal is not None
            assert Reason.BATCH_TOO_LARGE is refusal.reason
            own.connection.commit()
            other.connection.commit()
            refusal = within(store, own, new(8)).refusal
            assert refusal is not None
            assert (Reason.QUEUE_FULL, 4) == (refusal.reason, refusal.depth)
        assert ("queued",) * 4 == await store.view.status([1, 2, 5, 6])
        assert ("unknown",) * 2 == await store.view.status([3, 8])


async def test_a_fail_fast_pool_refuses_a_task_that_cannot_start_at_once(schema: Schema) -> None:
    """It counts tasks that run, wait and are on their way."""
    async with opened(schema, backpressure=fail_fast()) as store:
        with connected(schema) as own:
            within(store, own, *(new(n) for n in range(1, 6)))
            refusal = within(store, own, new(6)).refusal
            assert refusal is not None
            assert (Reason.NO_CAPACITY, 5, 5) == (refusal.reason, refusal.depth, refusal.bound)
            own.connection.commit()
        assert [1, 2, 3, 4, 5] == sorted(await leased(store))


async def test_a_closed_or_unknown_pool_refuses(schema: Schema) -> None:
    """The answer has the reason, and the transaction goes on."""
    async with opened(schema) as store:
        with connected(schema) as own:
            gone = NewTask(id=1, pool="nowhere", call=Call("work"))
            assert Reason.UNKNOWN_POOL is _reason(within(store, own, gone))
            await store.control(Close("p"))
            assert Reason.CLOSED is _reason(within(store, own, new(2)))
            assert 1 == own.ask("SELECT 1")


def _reason(answer: BatchAnswer) -> Reason:
    assert answer.refusal is not None
    return answer.refusal.reason


async def test_a_known_key_is_answered(schema: Schema) -> None:
    """By a task in the queue, in the inbox or in the same batch; whatever else the pool says."""
    async with opened(schema, backpressure=bounded(3)) as store:
        await store.submit([Batch(tasks=(new(1, idempotency_key="a"),))])
        with connected(schema) as own:
            first = within(store, own, new(2, idempotency_key="a"), new(3, idempotency_key="b"))
            found = [(one.task, one.duplicate) for one in first.admissions]
            assert [(1, True), (3, False)] == found
            again = within(store, own, new(4, idempotency_key="b"), new(5, idempotency_key="c"))
            assert [(3, True), (5, False)] == [
                (one.task, one.duplicate) for one in again.admissions
            ]
            twice = within(store, own, new(6, idempotency_key="a"), new(7, idempotency_key="a"))
            assert [(1, True), (1, True)] == [(one.task, one.duplicate) for one in twice.admissions]
            assert Reason.QUEUE_FULL is _reason(within(store, own, new(8, idempotency_key="d")))
            other = NewTask(id=9, pool="p", call=Call("rest"), idempotency_key="a")
            assert Reason.CONFLICT is _reason(within(store, own, other))
            own.connection.commit()
        assert ("queued", "unknown", "queued") == await store.view.status([1, 2, 3])


async def test_a_key_that_no_longer_answers(schema: Schema) -> None:
    """With dedupe=inflight a finished task does not count as a duplicate."""
    async with opened(schema) as store:
        await store.submit([Batch(tasks=(new(1, idempotency_key="a"),))])
        await store.control(Close("p"))
        with connected(schema) as own:
            assert Reason.CLOSED is _reason(within(store, own, new(2)))
            known = within(store, own, new(3, idempotency_key="a", dedupe="inflight"))
            assert known.admissions[0].duplicate


async def test_of_two_with_one_key_the_second_is_rejected(schema: Schema) -> None:
    """Neither could see the other; the audit has the reason, and the second never runs."""
    async with opened(schema) as store:
        with connected(schema) as one, connected(schema) as two:
            for own, task in ((one, 1), (two, 2)):
                answer = within(store, own, new(task, idempotency_key="a"))
                assert not answer.admissions[0].duplicate
            two.connection.commit()
            one.connection.commit()
        # Both were committed: the one that was submitted first is the one.
        assert [1] == await leased(store)
        assert ("running", "rejected") == await store.view.status([1, 2])
        assert Reason.DUPLICATE == (await kept(store, 2)).reason
        page = await store.view.audit()
        events = [(r.task, r.event, r.reason) for r in page.records if r.task == 2]
        assert [(2, Transition.SUBMIT, None), (2, Transition.EVICT, "duplicate")] == events
        # The key stands for the first.
        again = await store.submit([Batch(tasks=(new(3, idempotency_key="a"),))])
        assert 1 == again.batches[0].admissions[0].task


async def test_a_pool_drops_tasks_when_they_move_to_the_queue(schema: Schema) -> None:
    """The newest or the oldest; each is recorded as rejected, because it was accepted."""
    async with opened(schema, backpressure=bounded(1, on_full="drop_newest")) as store:
        with connected(schema) as own:
            within(store, own, new(1), new(2))
            own.connection.commit()
        assert ("queued", "rejected") == await store.view.status([1, 2])
        spec = PoolSpec(name="ring", backpressure=ring_buffer(1))
        await store.control(Declare(spec))
        with connected(schema) as own:
            own.submit(pool="ring")
            second = own.submit(pool="ring")
            own.connection.commit()
        page = await store.view.tasks("ring", status=Status.QUEUED)
        assert [second] == [one.new.id for one in page.tasks]


async def test_a_task_that_could_never_start_is_cancelled(schema: Schema) -> None:
    """Its caller has committed, so it is too late to refuse it."""
    async with opened(schema, rates=(Rate(1, per=1.0, burst=1, of="weight"),)) as store:
        with connected(schema) as own:
            task = own.submit("weight => 5")
            own.connection.commit()
        found = await kept(store, task)
        assert (Status.CANCELLED, Reason.WEIGHT_LIMIT) == (found.status, found.reason)


# What is wrong with what is there


async def test_a_task_that_cannot_be_read_holds_up_no_other(schema: Schema) -> None:
    """It fails in its turn, and is reported, as a damaged record in the queue does."""
    async with opened(schema, order=fifo()) as store:
        with connected(schema) as own:
            within(store, own, new(1), new(2), new(3))
            own.ask("UPDATE millpond_inbox SET body = 'rubbish' WHERE id = 2 RETURNING n")
            said = own.submit()
            own.ask("UPDATE millpond_inbox SET body = '{' WHERE spoken = 1 RETURNING n")
            own.connection.commit()
        assert [1, 3] == [one for one in await leased(store) if one in (1, 3)]
        assert ("running", "running") == await store.view.status([1, 3])
        for task in (2, said):
            assert (await kept(store, task)).new.call.function == ""


async def test_a_task_that_cannot_be_stored_holds_up_no_other(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any error the store tries it alone, then without its arguments."""
    take = steps.take_committed

    def taken(tables: Any, tasks: Any, now: float) -> Any:
        if any(one.key == "bad" for one in tasks):
            raise ValueError("it does not fit")
        return take(tables, tasks, now)

    monkeypatch.setattr(steps, "take_committed", taken)
    async with opened(schema) as store:
        with connected(schema) as own:
            within(store, own, new(1), new(2, key="bad"), new(3))
            own.connection.commit()
        assert ("queued",) * 3 == await store.view.status([1, 2, 3])
        assert (await kept(store, 2)).new.call.function == ""


async def test_a_removed_pool_does_not_block_the_inbox(schema: Schema) -> None:
    """An operator has deleted it by hand."""
    async with opened(schema) as store:
        with connected(schema) as own:
            within(store, own, new(1), new(2))
            own.ask("UPDATE millpond_inbox SET pool = 'gone' WHERE id = 1 RETURNING n")
            own.connection.commit()
        assert ("unknown", "queued") == await store.view.status([1, 2])


# The function


async def test_the_function_takes_every_option_of_a_task(schema: Schema) -> None:
    """Options left out have the defaults of Python."""
    async with opened(schema) as store:
        with connected(schema) as own:
            plain = own.submit()
            full = own.submit(
                """'{"order": 7, "note": "ä"}', key => 'k', idempotency_key => 'once',
                priority => 3, run_at => to_timestamp(2000000000), expires_in => 3e8,
                timeout => 5, attempts => 1, weight => 2, labels => '{"tenant": "acme"}',
                submitted_by => 'trigger'"""
            )
            assert full == own.submit("idempotency_key => 'once'")
            own.connection.commit()
        found = await kept(store, plain)
        assert found.new == NewTask(
            id=plain, pool="p", call=Call("work", b"{}"), submitted_by="sql"
        )
        found = await kept(store, full)
        assert b'{"note": "\xc3\xa4", "order": 7}' == found.new.call.payload
        assert ("k", "once", 3, 5.0, 1, 2) == (
            found.new.key,
            found.new.idempotency_key,
            found.new.priority,
            found.new.timeout,
            found.new.attempts,
            found.new.weight,
        )
        assert ({"tenant": "acme"}, "trigger", 2e9) == (
            found.new.labels,
            found.new.submitted_by,
            found.due,
        )


async def test_a_task_of_the_function_has_the_attempts_that_its_pool_declares(
    schema: Schema,
) -> None:
    async with opened(schema, attempts=1) as store:
        with connected(schema) as own:
            task = own.submit()
            own.connection.commit()
        assert 1 == (await kept(store, task)).new.attempts


async def test_the_function_and_python_know_each_others_keys(schema: Schema) -> None:
    """They cannot compare fingerprints of the arguments; they compare the function's name."""
    async with opened(schema) as store:
        with connected(schema) as own:
            said = own.submit("idempotency_key => 'a'")
            own.connection.commit()
            known = within(store, own, new(1, idempotency_key="a", fingerprint=5))
            assert (said, True) == (known.admissions[0].task, known.admissions[0].duplicate)
            within(store, own, new(2, idempotency_key="b", fingerprint=5))
            own.connection.commit()
            assert 2 == own.submit("idempotency_key => 'b'")
        batch = Batch(tasks=(new(3, idempotency_key="a", fingerprint=6),))
        answer = await store.submit([batch])
        assert said == answer.batches[0].admissions[0].task


async def test_the_function_shares_fairly(schema: Schema) -> None:
    """By a label, else by the argument of that name, else by the key."""
    async with opened(schema, order=fair_round_robin("tenant")) as store:
        with connected(schema) as own:
            tasks = [
                own.submit("""'{"tenant": "b"}', labels => '{"tenant": "a"}', key => 'c'"""),
                own.submit("""'{"tenant": 5}', key => 'c'"""),
                own.submit("key => 'c'"),
                own.submit(),
            ]
            own.connection.commit()
        assert ["a", "5", "c", None] == [(await kept(store, one)).new.share for one in tasks]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("NULL", "ML003"),
        ("'[1]'", "ML003"),
        ("key => ''", "ML003"),
        ("key => repeat('x', 1025)", "ML003"),
        ("idempotency_key => ''", "ML003"),
        ("delay => -1", "ML003"),
        ("delay => 'NaN'", "ML003"),
        ("timeout => 0", "ML003"),
        ("expires_in => 'infinity'", "ML003"),
        ("run_at => 'infinity'", "ML003"),
        ("attempts => 0", "ML003"),
        ("weight => NULL", "ML003"),
        ("""labels => '{"a": 1}'""", "ML003"),
        ("dedupe => 'run'", "ML003"),
        ("jsonb_build_object('a', repeat('x', 1048576))", "ML014"),
        ("idempotency_key => 'taken'", "ML007"),
    ],
)
async def test_the_function_refuses_bad_arguments(schema: Schema, said: str, code: str) -> None:
    """The SQLSTATE has the number of the error, and the message its text."""
    async with opened(schema):
        with connected(schema) as own:
            own.submit("idempotency_key => 'taken'", function="another")
            with pytest.raises(psycopg.Error, match=f"MILL-{code[2:]} ") as caught:
                own.submit(said)
            assert code == caught.value.sqlstate


async def test_the_function_refuses_for_the_reasons_of_python(schema: Schema) -> None:
    """Full, closed, unknown, no capacity."""
    async with opened(schema, backpressure=bounded(1)) as store:
        await store.control(Declare(PoolSpec(name="fast", backpressure=fail_fast())))
        with connected(schema, autocommit=True) as own:
            own.submit()
            own.submit(pool="fast")
            for pool, code in (("p", "ML001"), ("fast", "ML002"), ("none", "ML008")):
                with pytest.raises(psycopg.Error) as caught:
                    own.submit(pool=pool)
                assert code == caught.value.sqlstate
            await store.control(Close("p"))
            with pytest.raises(psycopg.Error, match="closed") as caught:
                own.submit()
            assert "ML006" == caught.value.sqlstate


async def test_a_trigger_submits_tasks(schema: Schema) -> None:
    """Any statement that inserts a row submits a task with it."""
    async with opened(schema) as store:
        call = f'"{schema.address.schema}".submit'
        with connected(schema) as own:
            own.connection.execute(
                """CREATE TEMP TABLE orders (id bigint);
                CREATE FUNCTION pg_temp.new_order() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    PERFORM submit('p', 'work', jsonb_build_object('order', NEW.id));
                    RETURN NEW;
                END $$;
                CREATE TRIGGER new_order AFTER INSERT ON orders
                    FOR EACH ROW EXECUTE FUNCTION pg_temp.new_order();
                INSERT INTO orders VALUES (1), (2);""".replace("submit", call).encode()
            )
            own.connection.commit()
        page = await store.view.tasks("p")
        payloads = [one.new.call.payload for one in page.tasks]
        assert [b'{"order": 1}', b'{"order": 2}'] == payloads


def test_the_channel_is_that_of_hints(schema: Schema) -> None:
    """The server and Python derive the same channel from the name of a schema."""
    with connected(schema) as own:
        assert channel_of(own.schema) == own.ask("SELECT millpond_channel()")
        long = "s" * 60
        own.connection.execute(f"CREATE SCHEMA {long}".encode())
        made = own.ask("SELECT pg_get_functiondef('millpond_channel'::regproc)")
        own.connection.execute(made.replace(own.schema, long).encode())
        (row,) = own.connection.execute(f"SELECT {long}.millpond_channel_1()".encode()).fetchall()
        assert channel_of(long) == row[0]
