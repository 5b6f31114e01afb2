"""Early lock release: others write while a commit waits for the disk, and see it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from functools import partial

import psycopg
import pytest
from verify.servers import slow_disk
from verify.servers.postgres import USER, OwnServer, database_of, slow_server

from millpond.core.control import Declare, Register
from millpond.core.lease import LeaseRequest
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, NewTask
from millpond.errors import OutcomeUnknown
from millpond.store.postgres.connect import connect, may_flush, settings
from millpond.store.postgres.encoding import Sent, sent
from millpond.store.postgres.flush import Flush, Solitude
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import Address, address_of
from millpond.store.protocol import Batch

pytestmark = [
    pytest.mark.real_loop,
    pytest.mark.stores("postgres"),
    pytest.mark.slow_disk,
]

FLUSH = 0.15
"""Seconds of a flush: much longer than all else that happens here."""

LOCK = "LOCK TABLE public.one IN SHARE UPDATE EXCLUSIVE MODE"
LOOK = "SELECT extract(epoch FROM clock_timestamp())::double precision, 5, true, false"
COUNT = "SELECT count(*) FROM public.one"
ADD = "SELECT value FROM public.add($1) AS value"
"""A call of a function that takes the lock and writes."""
MAKE = """
CREATE TABLE public.one (value bigint PRIMARY KEY);
CREATE FUNCTION public.add(bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
    LOCK TABLE public.one IN SHARE UPDATE EXCLUSIVE MODE;
    INSERT INTO public.one VALUES ($1) ON CONFLICT DO NOTHING;
    RETURN $1;
END $$;
"""


@pytest.fixture(scope="module")
def slow() -> Iterator[OwnServer]:
    """Give a server on which only waiting clients flush the log, and slowly."""
    silent = {"autovacuum": "off", "wal_level": "minimal", "max_wal_senders": "0"}
    with slow_server(FLUSH, {"wal_writer_delay": "10s", **silent}) as server:
        yield server


Quick = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def quick(slow: OwnServer) -> Quick:
    """Give what makes the disk of that server quick for a while: to prepare takes less time."""
    return partial(slow_disk.without_delay, slow.folder / "data")


@pytest.fixture(scope="module")
def url(slow: OwnServer, quick: Quick) -> Iterator[str]:
    """Give the URL of a database with one table in it."""
    with slow.database() as url:
        with quick(), psycopg.connect(url, autocommit=True) as driver:
            driver.execute(MAKE.encode())
        yield url


@pytest.fixture
def address(url: str, quick: Quick) -> Address:
    """Give the address of that database, with the table empty."""
    with quick(), psycopg.connect(url, autocommit=True) as driver:
        # No dead rows are left, of the table or (as by TRUNCATE) of the catalog: a session that
        # reads them may remove them, and that is a write that nothing flushes.
        driver.execute("DELETE FROM public.one")
        driver.execute("VACUUM public.one")
    return address_of(url)


def opened(address: Address, *, pooled: bool = False, flushes: bool = True) -> PostgresConnection:
    """Open a connection as a store does."""
    if pooled:
        address = Address(address.conninfo, address.shown, pooler=True)
    return PostgresConnection(
        connect(address, flushes=True),
        {},
        settings=settings("full", flushes=True) if pooled else None,
        flushes=flushes,
    )


def value(number: int) -> list[Sent]:
    """Return the argument of a call."""
    return [sent(number)]


@pytest.mark.parametrize("pooled", [False, True])
def test_the_lock_is_free_while_a_call_waits_for_the_disk(address: Address, pooled: bool) -> None:
    """Another session has the lock, and sees the new row, before the call is answered."""
    with closing(opened(address, pooled=pooled)) as one, closing(opened(address)) as other:
        other.execute(COUNT).fetchone()
        call = one.start(ADD, value(7))
        rows = (0,)
        while rows == (0,):
            other.begin(LOCK, LOOK)
            rows = other.execute(COUNT).fetchone() or ()
            other.execute("ROLLBACK")
        assert (1,) == rows
        assert call.proceed() is None
        assert ("COMMIT", (7,)) == call.finish()
        assert not one.in_doubt


def test_a_transaction_of_several_statements_frees_the_lock_as_well(address: Address) -> None:
    """When it returns its commit is on the disk, though the session's commits do not wait."""
    with closing(opened(address)) as one:
        one.begin(LOCK, LOOK)
        one.execute("INSERT INTO public.one VALUES (1)")
        assert "COMMIT" == one.commit()
        shown = one.execute("SELECT current_setting('synchronous_commit')").fetchone()
        assert ("off",) == shown
        assert _is_flushed(one)


def _is_flushed(connection: PostgresConnection) -> bool:
    query = "SELECT pg_current_wal_insert_lsn() <= pg_current_wal_flush_lsn()"
    row = connection.execute(query).fetchone()
    assert row is not None
    return bool(row[0])


@pytest.mark.parametrize("flush", [Flush.NOTHING, Flush.OWN])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_call_that_writes_nothing_waits_for_no_flush(
    address: Address, flush: Flush, pooled: bool
) -> None:
    """Even while others have written what is not on the disk yet."""
    with (
        closing(opened(address, flushes=False)) as careless,
        closing(opened(address, pooled=pooled)) as one,
    ):
        one.call(ADD, value(1))
        careless.call(ADD, value(2))
        assert ("COMMIT", (2,)) == one.call("SELECT count(*) FROM public.one", [], flush)
        assert ("COMMIT", (1,)) == one.call(ADD, value(1), flush)
        assert not _is_flushed(one)


@pytest.mark.parametrize("pooled", [False, True])
def test_an_answer_that_rests_on_others_waits_until_they_are_on_the_disk(
    address: Address, pooled: bool
) -> None:
    """It writes nothing: the task of its idempotency key is there, as another wrote it."""
    with (
        closing(opened(address, flushes=False)) as careless,
        closing(opened(address, pooled=pooled)) as one,
    ):
        careless.call(ADD, value(2))
        assert not _is_flushed(one)
        assert ("COMMIT", (1,)) == one.call(COUNT, [], Flush.SEEN)
        assert _is_flushed(one)


def _alone(connection: PostgresConnection, quick: Quick) -> None:
    """Write with a connection until it knows that it is the only writer."""
    with quick():
        for number in range(100, 120):
            connection.call(ADD, value(number))


def _transactions_of(connection: PostgresConnection, number: int) -> int:
    """Return how many numbered transactions a call takes."""
    before, after = (connection.execute(_NEXT_TRANSACTION).fetchone() for _ in range(2))
    assert before == after
    connection.call(ADD, value(number))
    end = connection.execute(_NEXT_TRANSACTION).fetchone()
    assert before is not None
    assert end is not None
    return int(end[0]) - int(before[0])


@pytest.mark.parametrize("pooled", [False, True])
def test_a_process_that_writes_alone_waits_for_the_disk_in_its_own_commit(
    address: Address, quick: Quick, pooled: bool
) -> None:
    """One transaction instead of two; it is on the disk when the call returns."""
    with closing(opened(address, pooled=pooled)) as one:
        assert 2 == _transactions_of(one, 1)
        _alone(one, quick)
        assert 1 == _transactions_of(one, 2)
        assert _is_flushed(one)


def test_when_another_writes_the_lock_is_free_during_the_flush_again(
    address: Address, quick: Quick
) -> None:
    """The next call still holds it; the one after that does not."""
    with closing(opened(address)) as one, closing(opened(address)) as other:
        _alone(one, quick)
        other.call(ADD, value(1))
        assert 1 == _transactions_of(one, 2)
        assert 2 == _transactions_of(one, 3)
        assert _is_flushed(one)


def test_two_processes_that_write_in_turn_hold_no_lock_during_a_flush(
    address: Address, quick: Quick
) -> None:
    """Each sees the numbers of the other."""
    with closing(opened(address)) as one, closing(opened(address)) as other:
        with quick():
            for number in range(0, 30, 2):
                one.call(ADD, value(number))
                other.call(ADD, value(number + 1))
        assert 2 == _transactions_of(one, 100)
        assert 2 == _transactions_of(other, 101)


@pytest.mark.parametrize("pooled", [False, True])
def test_a_process_that_writes_alone_also_flushes_the_writes_of_others(
    address: Address, quick: Quick, pooled: bool
) -> None:
    """Its call writes nothing, and rests on what another process has just written."""
    with (
        closing(opened(address, flushes=False)) as careless,
        closing(opened(address, pooled=pooled)) as one,
    ):
        _alone(one, quick)
        careless.call(ADD, value(2))
        assert not _is_flushed(one)
        assert ("COMMIT", (1,)) == one.call("SELECT 1::bigint", [], Flush.OWN)
        assert not _is_flushed(one)
        assert ("COMMIT", (21,)) == one.call(COUNT, [], Flush.SEEN)
        assert _is_flushed(one)


def test_a_failed_call_of_a_process_that_writes_alone_is_not_in_doubt(
    address: Address, quick: Quick
) -> None:
    """The next one works."""
    with closing(opened(address)) as one:
        _alone(one, quick)
        with pytest.raises(psycopg.errors.DivisionByZero):
            one.call("SELECT 1 / $1::bigint", value(0))
        assert not one.unflushed
        assert not one.closed
        assert ("COMMIT", (3,)) == one.call(ADD, value(3))


def test_a_failed_call_is_not_in_doubt_and_the_next_one_works(address: Address) -> None:
    """What waits for the disk behind it does no harm."""
    with closing(opened(address)) as one:
        with pytest.raises(psycopg.errors.DivisionByZero):
            one.call("SELECT 1 / $1::bigint", value(0))
        assert not one.unflushed
        assert not one.closed
        assert ("COMMIT", (3,)) == one.call(ADD, value(3))


def test_each_call_has_a_doubt_of_its_own(address: Address) -> None:
    """The second may have been done though the first was answered."""
    with closing(opened(address)) as one, closing(connect(address)) as other:
        pid = one.driver.info.backend_pid
        first, second = one.start(ADD, value(1)), one.start("SELECT pg_sleep(60)::text", [])
        assert ("COMMIT", (1,)) == first.finish()
        assert not one.in_doubt
        other.execute("SELECT pg_terminate_backend(%s, 30000)", [pid])
        with pytest.raises(psycopg.OperationalError):
            second.finish()
        assert one.in_doubt


def test_a_call_behind_one_that_failed_is_done(address: Address) -> None:
    """Each is a transaction, and the connection goes on."""
    with closing(opened(address)) as one:
        first, second = one.start("SELECT 1 / $1::bigint", value(0)), one.start(ADD, value(1))
        with pytest.raises(psycopg.errors.DivisionByZero):
            first.finish()
        assert not one.unflushed
        assert ("COMMIT", (1,)) == second.finish()
        assert ("COMMIT", (2,)) == one.call(ADD, value(2))


@pytest.mark.parametrize(("others", "is_alone"), [(0, True), (1, False)])
def test_numbers_of_calls_under_way_together(others: int, is_alone: bool) -> None:
    """Whether another session wrote is known for each of them."""
    solitude, number = Solitude(), 100
    for _ in range(20):
        first, second = solitude.sent(2), solitude.sent(2)
        solitude.numbered(number, first)
        solitude.numbered(number + 2 + others, second)
        number += 4 + others
    assert solitude.is_known is is_alone


REVOKE = """
DO $$ DECLARE f regprocedure; BEGIN
    FOR f IN SELECT oid FROM pg_proc WHERE proname = 'pg_logical_emit_message' LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
END $$
"""


@pytest.fixture
def hardened(slow: OwnServer, quick: Quick) -> Iterator[tuple[Address, Callable[[], None]]]:
    """Give the address of a database for a plain user, and a function that forbids it to flush."""
    with slow.database() as url:
        with quick():
            slow.execute(
                "DO $$BEGIN CREATE ROLE hardened LOGIN; EXCEPTION WHEN duplicate_object THEN END$$"
            )
            slow.execute(f'GRANT CREATE ON DATABASE "{database_of(url)}" TO hardened')

        def revoke() -> None:
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute(REVOKE.encode())

        yield address_of(url.replace(f"//{USER}@", "//hardened@")), revoke


def submitting(number: int) -> Batch:
    """Return a batch of one task."""
    return Batch(tasks=(NewTask(id=number, pool="p", call=Call("f")),))


async def test_a_commit_whose_flush_failed_is_in_doubt(
    hardened: tuple[Address, Callable[[], None]],
) -> None:
    """Others see it, and a crash could undo it. The next connection waits at each commit."""
    address, revoke = hardened
    store = PostgresStore(address)
    try:
        await store.control(Declare(PoolSpec(name="p")))
        await store.submit([submitting(1)])
        revoke()
        with pytest.raises(OutcomeUnknown):
            await store.submit([submitting(2)])
        assert ("queued", "queued") == await store.view.status((1, 2))
        await store.submit([submitting(3)])
    finally:
        await store.close()


async def test_a_role_that_may_not_flush_waits_at_each_commit(
    hardened: tuple[Address, Callable[[], None]],
) -> None:
    """The promise is the same; the lock is held for longer."""
    address, revoke = hardened
    revoke()
    with closing(connect(address, flushes=True)) as driver:
        assert not may_flush(driver)
        assert ("on",) == driver.execute("SHOW synchronous_commit").fetchone()
    store = PostgresStore(address)
    try:
        await store.control(Declare(PoolSpec(name="p")))
        await store.submit([submitting(1)])
        with closing(opened(address)) as other:
            assert _is_flushed(other)
    finally:
        await store.close()


async def test_asking_an_empty_pool_writes_nothing_to_the_log(address: Address) -> None:
    """Neither a row nor what would have to be flushed."""
    store = PostgresStore(address)
    try:
        await store.control(Declare(PoolSpec(name="p")))
        await store.control(Register("w", 60.0, owner="me"))
        ask = LeaseRequest(pool="p", worker="w", want=5)
        await store.lease(ask)
        with closing(opened(address)) as other:
            before = other.execute(_NEXT_TRANSACTION).fetchone()
            for _ in range(3):
                assert not (await store.lease(ask)).leased
            assert before == other.execute(_NEXT_TRANSACTION).fetchone()
    finally:
        await store.close()


_NEXT_TRANSACTION = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
