"""A pipelined connection: it sends statements together, and raises each failure once."""

import select
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from verify.servers.postgres import OwnServer

from millpond.store.postgres.connect import Patience, connect, settings
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.url import Address, address_of

LOCK = "SELECT pg_advisory_xact_lock(7)"
LOOK = "SELECT extract(epoch FROM clock_timestamp())::double precision, 5, true, false, 'more'"


@pytest.fixture
def address(postgres_url: str) -> Address:
    """Give the address of a database with one table in it."""
    address = address_of(postgres_url)
    with connect(address) as driver:
        driver.execute("CREATE TABLE public.one (value bigint PRIMARY KEY, body bytea)")
    return address


@pytest.fixture
def connection(address: Address) -> Iterator[PostgresConnection]:
    """Give a connection to it."""
    made = PostgresConnection(connect(address), MANY)
    yield made
    made.close()


ADD = "INSERT INTO public.one VALUES ($1, $2)"
MANY = {ADD: "INSERT INTO public.one SELECT * FROM unnest($1::bigint[], $2::bytea[])"}
ALL = "SELECT value FROM public.one ORDER BY value"


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements went to the server together, each time."""
    made: list[int] = []
    sync = PostgresConnection.sync

    def counted(connection: PostgresConnection) -> str:
        if connection._line:
            made.append(sum(one is not None and one.cursor is not None for one in connection._line))
        return sync(connection)

    monkeypatch.setattr(PostgresConnection, "sync", counted)
    return made


def end(driver_pid: int, address: Address) -> None:
    """End a session as an administrator does."""
    with connect(address) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [driver_pid])


def pid(connection: PostgresConnection) -> int:
    return connection.driver.info.backend_pid


def test_a_transaction_begins_in_one_go_and_writes_with_its_commit(
    connection: PostgresConnection, trips: list[int]
) -> None:
    """Three ways to the server, where the driver would make nine."""
    begun = connection.begin(LOCK, LOOK)
    assert (5, True, False) == (begun.version, begun.folds, begun.inbox)
    assert ("more",) == begun.meta
    assert begun is connection.begun
    assert begun.now > 1e9
    connection.executemany(ADD, [(1, b"a"), (2, None)])
    connection.execute(ADD, (3, b"c"))
    assert [(1,), (2,), (3,)] == connection.execute(ALL).fetchall()
    connection.execute("DELETE FROM public.one WHERE value = $1", (2,))
    connection.execute(ADD, (4, b""))
    assert "COMMIT" == connection.commit()
    assert [3, 3, 3] == trips
    assert not connection.in_transaction
    assert connection.begun is None


def test_a_rollback_undoes_sent_and_queued_statements(connection: PostgresConnection) -> None:
    """Neither statements that were sent nor statements that were queued take effect."""
    connection.begin(LOCK, LOOK)
    connection.execute(ADD, (1, None))
    connection.sync()
    connection.execute(ADD, (2, None))
    connection.execute("ROLLBACK")
    assert not connection.in_transaction
    assert [] == connection.execute(ALL).fetchall()


def test_rows_are_had_one_by_one_or_all(connection: PostgresConnection) -> None:
    """As every database has them."""
    connection.executemany(ADD, [(n, None) for n in range(4)])
    cursor = connection.execute(ALL)
    assert (0,) == cursor.fetchone()
    assert [(1,), (2,), (3,)] == list(cursor)
    assert cursor.fetchone() is None
    assert [] == cursor.fetchall()


def test_no_rows_are_sent_by_no_statement(connection: PostgresConnection, trips: list[int]) -> None:
    """Without rows it cannot know how many columns there are."""
    connection.executemany(ADD, [])
    connection.sync()
    assert [] == trips


def test_an_error_raises_when_queued_statements_are_sent_and_stops_the_rest(
    connection: PostgresConnection,
) -> None:
    """Not even a commit queued behind it takes effect."""
    connection.begin(LOCK, LOOK)
    connection.execute(ADD, (1, None))
    connection.execute(ADD, (1, None))
    late = connection.execute("SELECT count(*) FROM public.one")
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.commit()
    assert not connection.in_doubt
    assert connection.in_transaction
    with pytest.raises(psycopg.InterfaceError, match="not executed"):
        late.fetchone()
    connection.execute("ROLLBACK")
    assert [] == connection.execute(ALL).fetchall()


def test_statements_that_a_failed_pipeline_did_not_prepare_are_prepared_later(
    connection: PostgresConnection,
) -> None:
    """Those that it did prepare are not prepared twice."""
    connection.execute(ALL)
    connection.execute("SELECT 1 / $1::integer", (0,))
    connection.execute("SELECT 7")
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.sync()
    assert (7,) == connection.execute("SELECT 7").fetchone()
    assert (1,) == connection.execute("SELECT 1 / $1::integer", (1,)).fetchone()
    assert [] == connection.execute(ALL).fetchall()


def test_a_commit_of_a_failed_transaction_is_not_a_commit(connection: PostgresConnection) -> None:
    """PostgreSQL rolls it back, and calls that no error."""
    connection.begin(LOCK, LOOK)
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0").fetchone()
    assert "ROLLBACK" == connection.commit()


def test_a_rollback_works_with_queued_statements(connection: PostgresConnection) -> None:
    """What fails before it is what it undoes."""
    connection.begin(LOCK, LOOK)
    connection.execute("SELECT 1 / 0")
    connection.execute("ROLLBACK")
    assert not connection.in_transaction


@pytest.mark.parametrize(
    ("statement", "values", "grows"),
    [
        (ADD, (2, None), True),
        ("DELETE FROM public.one WHERE value = $1", (1,), True),
        ("DELETE FROM public.one WHERE value = $1", (9,), False),
        ("INSERT INTO public.one VALUES (1) ON CONFLICT DO NOTHING", (), False),
        ("SELECT 1", (), False),
    ],
)
def test_changes_are_counted(
    connection: PostgresConnection, statement: str, values: tuple[Any, ...], grows: bool
) -> None:
    """Only changes of rows count: a transaction without them notifies no other process."""
    connection.execute(ADD, (1, None))
    connection.sync()
    before = connection.total_changes
    connection.execute(statement, values)
    assert grows == (connection.total_changes != before)
    connection.sync()
    assert grows == (connection.total_changes != before)


def test_a_statement_that_surely_changes_rows_costs_no_round_trip(
    connection: PostgresConnection, trips: list[int]
) -> None:
    """Its answer is not needed to know that rows changed."""
    before = connection.total_changes
    connection.executemany(ADD, [(1, None)])
    assert before != connection.total_changes
    assert [] == trips


COUNT = "SELECT count(*) FROM public.one"
ONE = "SELECT value, body FROM public.one WHERE value = $1"


def transaction(connection: PostgresConnection, *values: int) -> list[Any]:
    """Ask how many rows there are, and for some of them; then add one."""
    connection.begin(LOCK, LOOK)
    connection.note_reads()
    found = [connection.execute(COUNT).fetchone(), connection.execute(ONE, (values[0],)).fetchone()]
    connection.execute(ADD, (values[0], b"x"))
    found.append(connection.execute(COUNT).fetchone())
    connection.commit()
    return found


def test_a_read_repeated_in_each_transaction_is_sent_with_the_lock(
    connection: PostgresConnection, trips: list[int]
) -> None:
    """A read with other values each time is not; a read shows the writes of others."""
    for number in range(4):
        assert [(number,), None, (number + 1,)] == transaction(connection, number)
    #       lock, count, one, add and count, commit; then the count goes with the lock
    assert [3, 1, 1, 2, 1] * 2 + [4, 1, 2, 1] * 2 == trips


@pytest.mark.parametrize("many", [False, True])
def test_a_row_read_ahead_is_read_again_after_a_write(
    connection: PostgresConnection, many: bool
) -> None:
    """The transaction asks for it a little later than usual."""
    for number in range(3):
        transaction(connection, number)
    connection.begin(LOCK, LOOK)
    if many:
        connection.executemany(ADD, [(3, None), (4, None)])
    else:
        connection.execute(ADD, (3, None))
    assert (5 if many else 4,) == connection.execute(COUNT).fetchone()
    connection.commit()


def test_a_read_sent_with_the_lock_shows_the_writes_of_others(
    connection: PostgresConnection, address: Address
) -> None:
    """They had the lock before."""
    for number in range(3):
        transaction(connection, number)
    with connect(address) as other:
        other.execute("INSERT INTO public.one VALUES (77)")
    assert (4,) == transaction(connection, 3)[0]


def test_no_read_ahead_without_noted_reads(
    connection: PostgresConnection, trips: list[int]
) -> None:
    """A process that has the store to itself keeps the rows in memory."""
    for _ in range(3):
        transaction(connection, len(trips))
    trips.clear()
    for _ in range(2):
        connection.begin(LOCK, LOOK)
        connection.execute(COUNT).fetchone()
        connection.commit()
    assert [4, 1, 3, 1, 1] == trips


@pytest.mark.parametrize("rows", [[(n, None) for n in range(300)], [(1, b"x" * 10_000)]])
def test_a_read_of_many_rows_is_not_sent_ahead(
    connection: PostgresConnection, trips: list[int], rows: list[Any]
) -> None:
    """The transaction may not need them."""
    connection.executemany(ADD, rows)
    connection.sync()
    trips.clear()
    for _ in range(3):
        connection.begin(LOCK, LOOK)
        connection.note_reads()
        connection.execute("SELECT value, body FROM public.one").fetchall()
        connection.commit()
    assert [3, 1, 1] * 3 == trips


def test_the_end_of_a_read_transaction_costs_no_round_trip(
    connection: PostgresConnection, trips: list[int]
) -> None:
    """No caller needs the answer to a transaction that changed nothing."""
    for number in range(3):
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        assert (number,) == connection.execute(COUNT).fetchone()
        connection.execute("ROLLBACK")
        assert not connection.in_transaction
        connection.begin(LOCK, LOOK)
        connection.execute(ADD, (number, None))
        connection.commit()
    assert [2, 3, 2] * 3 == trips
    assert connection.driver.execute(COUNT).fetchone() == (3,)


def test_a_session_that_ended_while_idle_is_found_closed(
    connection: PostgresConnection, address: Address
) -> None:
    """The next statement finds it."""
    number = pid(connection)
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(COUNT).fetchone()
    connection.execute("ROLLBACK")
    end(number, address)
    with pytest.raises(psycopg.OperationalError):
        connection.execute(COUNT).fetchone()
    assert connection.closed


def test_much_is_sent_while_much_is_answered(connection: PostgresConnection) -> None:
    """Neither side waits for the other to listen."""
    large = b"x" * (1 << 20)
    cursors = [connection.execute("SELECT $1::bytea", (large,)) for _ in range(24)]
    assert all(large == cursor.fetchone()[0] for cursor in cursors)  # type: ignore[index]


def test_a_session_that_was_ended_is_known_as_gone(
    connection: PostgresConnection, address: Address
) -> None:
    """The server says why before it hangs up."""
    connection.begin(LOCK, LOOK)
    end(pid(connection), address)
    with pytest.raises(psycopg.errors.AdminShutdown):
        connection.execute(ALL).fetchall()
    assert connection.closed
    assert not connection.in_transaction
    with pytest.raises(psycopg.OperationalError):
        connection.execute(ALL)


def test_a_session_that_ended_before_its_commit_was_sent_leaves_no_doubt(
    connection: PostgresConnection, address: Address
) -> None:
    """The server ended at a statement before the commit."""
    connection.begin(LOCK, LOOK)
    end(pid(connection), address)
    connection.execute(ADD, (1, None))
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert not connection.in_doubt


def test_a_commit_without_an_answer_is_in_doubt(
    connection: PostgresConnection, address: Address
) -> None:
    """It may have happened."""
    connection.begin(LOCK, LOOK)
    connection.commit()  # so that the next one has nothing before it
    connection.begin(LOCK, LOOK)
    connection.execute(ADD, (1, None))
    connection.sync()
    end(pid(connection), address)
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert connection.in_doubt


def test_a_transaction_that_stood_idle_for_too_long_leaves_no_doubt(address: Address) -> None:
    """The server ended it before the commit was sent."""
    frozen = PostgresConnection(connect(address, patience=Patience(idle=0.05)), MANY)
    other = PostgresConnection(connect(address), MANY)
    frozen.begin(LOCK, LOOK)
    other.begin(LOCK, LOOK)  # is had once the frozen one is gone
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        frozen.commit()
    assert not frozen.in_doubt
    other.close()


def test_a_server_that_hangs_is_not_waited_for_for_ever(own: OwnServer) -> None:
    """Its machine goes on to say that it is there."""
    with OwnServer(own.programs) as spare:
        silent = PostgresConnection(connect(address_of(spare.url)), {}, silence=0.1)
        spare.freeze()
        try:
            with pytest.raises(psycopg.OperationalError, match=r"silent for 0\.1 s"):
                silent.execute("SELECT 1").fetchone()
        finally:
            spare.thaw()
        assert silent.closed


def test_an_interrupted_wait_leaves_no_answers_behind(
    connection: PostgresConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be taken for those of the next statement."""

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "_wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connection.execute("SELECT pg_sleep(0.01)").fetchone()
    assert connection.closed


def test_a_statement_is_stopped_from_another_thread(connection: PostgresConnection) -> None:
    """As a handler's is that takes too long."""
    stopped = threading.Event()

    def stop() -> None:
        while not stopped.is_set():  # too early it finds nothing to stop
            connection.cancel()

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("SELECT pg_sleep(30)").fetchone()
    stopped.set()
    stopping.join()
    assert not connection.closed


def test_the_drivers_own_connection_can_be_used_in_between(connection: PostgresConnection) -> None:
    """By a handler, in the same transaction."""
    connection.begin(LOCK, LOOK)
    connection.execute(ADD, (1, None))
    driver = connection.driver
    assert (1,) == driver.execute("SELECT value FROM public.one").fetchone()
    driver.execute("INSERT INTO public.one VALUES (%s)", [2])
    connection.execute(ADD, (3, None))
    assert "COMMIT" == connection.commit()
    assert [(1,), (2,), (3,)] == connection.execute(ALL).fetchall()


def test_through_a_pooler_each_transaction_has_its_settings_and_nothing_is_prepared(
    address: Address,
) -> None:
    """The session is another one next time."""
    pooled = Address(address.conninfo, address.shown, pooler=True)
    values = settings("normal", Patience(lock=7.0))
    connection = PostgresConnection(connect(pooled), MANY, settings=values)
    for statement in ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", None):
        if statement is None:
            connection.begin(LOCK, LOOK)
        else:
            connection.execute(statement)
        query = "SELECT current_setting($1)"
        assert ("7s",) == connection.execute(query, ("lock_timeout",)).fetchone()
        assert ("off",) == connection.execute(query, ("synchronous_commit",)).fetchone()
        connection.execute("ROLLBACK")
    assert ("0",) == connection.execute("SELECT current_setting('lock_timeout')").fetchone()
    prepared = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    connection.close()
    assert (0,) == prepared


def test_without_poll_it_waits_by_select(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every system has the former."""
    monkeypatch.delattr(select, "poll")
    connection = PostgresConnection(connect(address), MANY, silence=5.0)
    large = b"x" * (1 << 22)
    cursors = [connection.execute("SELECT $1::bytea", (large,)) for _ in range(4)]
    assert all(large == cursor.fetchone()[0] for cursor in cursors)  # type: ignore[index]
    connection.close()
