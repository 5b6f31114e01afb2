"""Submitting in the caller's own transaction: the task commits with it, or not at all."""

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millpond import ConfigError, Millpond, NotSupported, Pool, PoolFull, bounded
from millpond.errors import ForeignConnection, NotInTransaction, StoreLocked, UnknownTask
from millpond.pool.internals import internals_of
from millpond.pool.pool_submitter import PoolSubmitter

pytestmark = pytest.mark.real_loop


class Shop:
    """An application that keeps its orders in the file of its pools."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.file = folder / "shop.db"
        self.mp = Millpond(f"sqlite:///{self.file}", work=True)
        self.pool: Pool = self.mp.pool("mail", **options)
        self.sent: list[int] = []

        @self.pool.task
        async def send(order: int) -> int:
            self.sent.append(order)
            return order

        self.send = send
        with self.orders() as own:
            own.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")

    @contextmanager
    def orders(self, **options: Any) -> Iterator[sqlite3.Connection]:
        """A connection of the application's own; open transactions are rolled back."""
        connection = sqlite3.connect(self.file, timeout=0.1, **options)
        try:
            yield connection
        finally:
            connection.close()

    def count(self) -> int:
        with self.orders() as own:
            found: int = own.execute("SELECT count(*) FROM orders").fetchone()[0]
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker polls in time: it finds a task only by a hint."""
    monkeypatch.setattr("millpond.runtime.fleet.poll.POLL_FLOOR", 60.0)


async def idle(shop: Shop) -> None:
    """Wait until its workers are idle, so that they poll no more by themselves."""
    async with asyncio.timeout(5):
        assert 0 == await (await shop.send.submit(0))
    await asyncio.sleep(0.2)  # nothing shows that a worker will ask no more


@pytest.mark.rows("DE-04")
async def test_rows_and_tasks_of_a_commit_appear_together(
    shop: Shop, without_polling: None
) -> None:
    """The order and its task are stored by one commit, and the task runs soon after it."""
    async with shop.mp:
        await idle(shop)
        with shop.orders() as own:
            own.execute("INSERT INTO orders VALUES (1)")
            handle = await shop.pool.submit(shop.send.bind(1), connection=own)
            await asyncio.sleep(0.05)  # a worker that heard of it would have run it
            assert [0] == shop.sent
            assert ("unknown",) == await internals_of(shop.mp).runtime.view.status((handle.id,))
            own.commit()
            async with asyncio.timeout(5):
                assert 1 == await handle
    assert 1 == shop.count()


async def test_a_rollback_leaves_neither_rows_nor_tasks(shop: Shop) -> None:
    """No task and no order is stored, and awaiting the handle raises."""
    async with shop.mp:
        with shop.orders() as own:
            own.execute("INSERT INTO orders VALUES (1)")
            handle = await shop.pool.submit(shop.send.bind(1), connection=own)
            waiting = asyncio.ensure_future(handle.wait())
            await asyncio.sleep(0.05)  # a wait that ends too early would have ended
            assert not waiting.done()
            own.rollback()
            with pytest.raises(UnknownTask, match="rolled back"):
                await asyncio.wait_for(waiting, 5)
        with pytest.raises(UnknownTask, match="rolled back"):
            await handle.wait()
        assert 0 == await shop.pool.size()
    assert ([], 0) == (shop.sent, shop.count())


async def test_a_connection_that_is_closed_has_rolled_back(shop: Shop) -> None:
    """Closing without a commit rolls back, and awaiting the handle raises."""
    async with shop.mp:
        with shop.orders() as own:
            own.execute("BEGIN IMMEDIATE")
            handle = await shop.pool.submit(shop.send.bind(1), connection=own)
        with pytest.raises(UnknownTask, match="rolled back"):
            await asyncio.wait_for(handle.wait(), 5)


async def test_an_awaited_handle_waits_for_a_late_commit(shop: Shop) -> None:
    """Nothing is concluded from a task that is not there yet, over several polls."""
    async with shop.mp:
        with shop.orders() as own:
            own.execute("BEGIN IMMEDIATE")
            handle = await shop.pool.submit(shop.send.bind(7), connection=own)
            waiting = asyncio.ensure_future(handle.wait())
            await asyncio.sleep(2.5)  # several polls, of which there is one a second
            assert not waiting.done()
            own.commit()
            await asyncio.wait_for(waiting, 5)
            assert 7 == handle.result


async def test_a_rolled_back_savepoint_removes_its_tasks(shop: Shop) -> None:
    """The caller's savepoints hold for tasks as for rows."""
    async with shop.mp:
        with shop.orders(isolation_level=None) as own:
            own.execute("BEGIN")
            kept = await shop.pool.submit(shop.send.bind(1), connection=own)
            own.execute("SAVEPOINT part")
            gone = await shop.pool.submit(shop.send.bind(2), connection=own)
            own.execute("ROLLBACK TO part")
            own.execute("COMMIT")
            async with asyncio.timeout(5):
                assert 1 == await kept
                with pytest.raises(UnknownTask, match="rolled back"):
                    await gone.wait()


async def test_a_batch_joins_the_transaction(shop: Shop) -> None:
    """submit_many joins as submit does; each has its handle."""
    async with shop.mp:
        with shop.orders() as own:
            own.execute("BEGIN")
            handles = await shop.pool.submit_many(shop.send.each(range(20)), connection=own)
            assert [] == await shop.pool.submit_many([], connection=own)
            own.commit()
        async with asyncio.timeout(5):
            assert list(range(20)) == [await handle for handle in handles]


async def test_a_full_pool_refuses_at_once(tmp_path: Path) -> None:
    """block_submitter cannot wait here: PoolFull; the caller's own tasks count."""
    shop = Shop(tmp_path, backpressure=bounded(3, on_full="block_submitter"))
    internals_of(shop.mp).owner.work = False
    async with shop.mp:
        await shop.send.submit(1)
        with shop.orders() as own:
            own.execute("INSERT INTO orders VALUES (1)")
            await shop.pool.submit_many(shop.send.each((2, 3)), connection=own)
            with pytest.raises(PoolFull) as caught:
                await shop.pool.submit(shop.send.bind(4), connection=own)
            assert (3, 3) == (caught.value.depth, caught.value.bound)
            assert own.in_transaction
            own.commit()
        assert 3 == await shop.pool.size()
    assert 1 == shop.count()


@pytest.mark.rows("DE-R01")
async def test_an_idempotency_key_counts_inside_the_transaction(shop: Shop) -> None:
    """A known key returns its task in the transaction and after its commit; a rollback frees it."""
    internals_of(shop.mp).owner.work = False
    async with shop.mp:
        with shop.orders() as own:
            own.execute("BEGIN")
            undone = await shop.pool.submit(
                shop.send.bind(1), connection=own, idempotency_key="one"
            )
            own.rollback()
            own.execute("BEGIN")
            first = await shop.pool.submit(shop.send.bind(1), connection=own, idempotency_key="one")
            again = await shop.pool.submit(shop.send.bind(1), connection=own, idempotency_key="one")
            assert not first.duplicate
            assert again.duplicate
            assert first.id == again.id != undone.id
            own.commit()
        late = await shop.pool.submit(shop.send.bind(1), idempotency_key="one")
        assert late.duplicate
        assert first.id == late.id


def upper(_: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {"nothing": row}


@pytest.mark.parametrize(
    "options", [{}, {"isolation_level": None}, {"isolation_level": "EXCLUSIVE"}], ids=str
)
@pytest.mark.parametrize("detect", [0, sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES])
@pytest.mark.parametrize("rows", [None, sqlite3.Row, upper])
@pytest.mark.parametrize("text", [str, bytes, lambda raw: raw.decode().upper()])
async def test_connections_with_any_settings_are_accepted(
    shop: Shop, options: dict[str, Any], detect: int, rows: Any, text: Any
) -> None:
    """Rows, texts and transactions as the caller likes them, before and after."""
    async with shop.mp:
        with shop.orders(detect_types=detect, **options) as own:
            own.row_factory, own.text_factory = rows, text
            own.execute("BEGIN")
            handle = await shop.pool.submit(
                shop.send.bind(1), connection=own, key="k", idempotency_key="once"
            )
            assert (rows, text) == (own.row_factory, own.text_factory)
            own.commit()
        async with asyncio.timeout(5):
            assert 1 == await handle


class Proxied:
    """As SQLAlchemy's pool hands a connection out."""

    def __init__(self, driver: sqlite3.Connection) -> None:
        self.dbapi_connection = self.driver_connection = driver


class Engines:
    """As SQLAlchemy's Connection: it has begun, its driver begins with the first write."""

    def __init__(self, driver: sqlite3.Connection) -> None:
        self.connection = Proxied(driver)

    def in_transaction(self) -> bool:
        return True


class Wrapper:
    """As Django's DatabaseWrapper."""

    def __init__(self, driver: sqlite3.Connection | None) -> None:
        self.connection = driver

    in_atomic_block = True


@pytest.mark.parametrize("wrapped", [Proxied, Engines, Wrapper])
async def test_connections_of_web_frameworks_are_accepted(shop: Shop, wrapped: Any) -> None:
    """The driver's connection is found inside."""
    async with shop.mp:
        with shop.orders() as own:
            if wrapped is not Engines:
                own.execute("INSERT INTO orders VALUES (1)")
            handle = await shop.pool.submit(shop.send.bind(1), connection=wrapped(own))
            assert own.in_transaction
            own.commit()
        async with asyncio.timeout(5):
            assert 1 == await handle


async def test_connections_that_cannot_be_joined_are_refused(shop: Shop, tmp_path: Path) -> None:
    """Each has its own error message, and nothing is stored."""
    async with shop.mp:

        async def submit(connection: object) -> None:
            await shop.pool.submit(shop.send.bind(1), connection=connection)

        with shop.orders() as own:
            with pytest.raises(NotInTransaction, match="BEGIN IMMEDIATE"):
                await submit(own)
            assert not own.in_transaction
        with pytest.raises(ForeignConnection, match="cannot be used here"):
            await submit(own)
        other = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
        other.execute("BEGIN")
        with pytest.raises(ForeignConnection, match=r"other\.db.*shop\.db"):
            await submit(other)
        other.close()
        memory = sqlite3.connect(":memory:", isolation_level=None)
        memory.execute("BEGIN")
        with pytest.raises(ForeignConnection, match="in memory"):
            await submit(memory)
        memory.close()
        for strange in (object(), Wrapper(None), "sqlite:///shop.db"):
            with pytest.raises(ForeignConnection, match=r"leads to no sqlite3\.Connection"):
                await submit(strange)
        assert 0 == await shop.pool.size()


async def test_a_connection_of_another_thread_is_refused(shop: Shop) -> None:
    """The loop cannot use it; the error says what to do."""
    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(sqlite3.connect, shop.file).result()
        async with shop.mp:
            with pytest.raises(ForeignConnection, match=r"pool\.sync"):
                await shop.pool.submit(shop.send.bind(1), connection=made)
        thread.submit(made.close).result()


async def test_a_link_to_the_same_file_is_accepted(shop: Shop, tmp_path: Path) -> None:
    """The paths differ, the file is the same."""
    link = tmp_path / "link.db"
    link.symlink_to(shop.file)
    async with shop.mp:
        own = sqlite3.connect(link, isolation_level=None)
        own.execute("BEGIN")
        handle = await shop.pool.submit(shop.send.bind(1), connection=own)
        own.execute("COMMIT")
        own.close()
        async with asyncio.timeout(5):
            assert 1 == await handle


async def test_a_locked_file_leaves_the_transaction_as_it_was(shop: Shop) -> None:
    """Another connection writes: the submit raises StoreLocked, and the caller may go on."""
    async with shop.mp:
        with shop.orders(isolation_level=None) as own, shop.orders(isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            own.execute("BEGIN")
            with pytest.raises(StoreLocked, match="locked"):
                await shop.pool.submit(shop.send.bind(1), connection=own)
            assert own.in_transaction
            other.execute("ROLLBACK")
            handle = await shop.pool.submit(shop.send.bind(2), connection=own)
            own.execute("COMMIT")
        async with asyncio.timeout(5):
            assert 2 == await handle
        assert [2] == shop.sent


async def test_a_transaction_with_an_outdated_read_is_refused(shop: Shop) -> None:
    """Others wrote since its read: it cannot write any more, and the error says how to begin."""
    internals_of(shop.mp).owner.work = False
    async with shop.mp:
        with shop.orders(isolation_level=None) as own:
            own.execute("BEGIN")
            own.execute("SELECT * FROM orders").fetchall()
            await shop.send.submit(1)
            with pytest.raises(StoreLocked, match="BEGIN IMMEDIATE"):
                await shop.pool.submit(shop.send.bind(2), connection=own)


async def test_a_failed_submit_leaves_the_transaction_as_it_was(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Millpond rolls its own writes back; the caller's rows stay."""
    from millpond.store.sql.unit_of_work import SqlTables

    write = SqlTables.write

    def fail(tables: SqlTables) -> None:
        write(tables)
        raise sqlite3.OperationalError("disk failure")

    async with shop.mp:
        with shop.orders() as own:
            own.execute("INSERT INTO orders VALUES (1)")
            with monkeypatch.context() as patched:
                patched.setattr(SqlTables, "write", fail)
                with pytest.raises(Exception, match="disk failure"):
                    PoolSubmitter(internals_of(shop.pool)).submit_within(
                        [shop.send.bind(1)], {}, own
                    )
            own.commit()
        assert 0 == await shop.pool.size()
    assert 1 == shop.count()


async def test_a_pool_unknown_to_the_file_is_declared_in_the_transaction(shop: Shop) -> None:
    """It is declared in the same transaction, and served once that is committed."""
    async with shop.mp:
        late = shop.mp.pool("late")
        with shop.orders(isolation_level=None) as own:
            own.execute("BEGIN IMMEDIATE")
            await late.submit(shop.send.bind(1), connection=own)
            own.execute("ROLLBACK")
            own.execute("BEGIN IMMEDIATE")
            handle = await late.submit(shop.send.bind(2), connection=own)
            own.execute("COMMIT")
        async with asyncio.timeout(5):
            assert 2 == await handle


async def test_a_thread_submits_inside_its_transaction(shop: Shop) -> None:
    """pool.sync does it in the thread that has the connection."""

    def in_a_thread() -> int:
        with shop.orders() as own:
            own.execute("INSERT INTO orders VALUES (1)")
            one = shop.pool.sync.submit(shop.send.bind(5), connection=own, idempotency_key="five")
            two = shop.pool.sync.submit_many(shop.send.each([6, 7]), connection=own)
            known = shop.pool.sync.submit(shop.send.bind(5), connection=own, idempotency_key="five")
            assert known.duplicate
            own.commit()
            return one.get(5) + sum(handle.get(5) for handle in two)

    async with shop.mp:
        assert 18 == await asyncio.to_thread(in_a_thread)
    assert 1 == shop.count()


async def test_a_commit_wakes_the_worker_of_another_process(
    shop: Shop, without_polling: None
) -> None:
    """After the commit the process sends a hint, which arrives before the next poll."""
    worker = Shop.__new__(Shop)
    worker.file = shop.file
    worker.sent = []
    worker.mp = Millpond(f"sqlite:///{shop.file}", work=True)
    worker.pool = worker.mp.pool("mail")

    @worker.pool.task
    async def send(order: int) -> int:
        worker.sent.append(order)
        return order

    internals_of(shop.mp).owner.work = False
    async with shop.mp, worker.mp:
        await idle(shop)
        with shop.orders() as own:
            own.execute("BEGIN")
            handle = await shop.pool.submit(shop.send.bind(1), connection=own)
            own.commit()
        async with asyncio.timeout(5):
            assert 1 == await handle
    assert [0, 1] == worker.sent


@pytest.mark.memory("what is in memory has no connection to join")
async def test_closures_and_memory_are_refused(shop: Shop) -> None:
    """A function that lives in this process has no place in a transaction, nor has memory."""
    async with shop.mp:
        with shop.orders() as own:
            own.execute("BEGIN")
            with pytest.raises(ConfigError, match="registered task"):
                await shop.pool.submit(lambda: 1, connection=own)
    mp = Millpond()
    pool = mp.pool("work")
    async with mp:
        with pytest.raises(NotSupported, match="in memory"):
            await pool.submit(lambda: 1, connection=1)
        nothing: list[Any] = []
        with pytest.raises(NotSupported, match="in memory"):
            await pool.submit_many(nothing, connection=1)
