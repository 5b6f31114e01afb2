"""Handlers that commit their own writes with their completion, on PostgreSQL: once, or nothing."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from millpond import Context, Millpond, Retry, SyncContext, TaskFailed
from millpond.core.control import DeclareDead
from millpond.errors import (
    LeaseLost,
    MillpondError,
    StoreLocked,
    StoreUnreachable,
    TransactionAborted,
    TransactionControl,
    TransactionTooLong,
)
from millpond.pool.internals import internals_of
from millpond.store.postgres import handler_transaction
from millpond.store.verbs.settle import holds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from verify.servers.postgres import Server

pytestmark = pytest.mark.real_loop

ADD = "INSERT INTO ledger VALUES (%s)"


class Books:
    """A Millpond with a ledger of the user's own in the same database."""

    names = itertools.count(1)

    def __init__(self, url: str) -> None:
        self.url = url
        self.mp = Millpond(url, work=True, lease=10.0)
        name = f"book-{next(self.names)}"
        self.pool = self.mp.pool(name, retry=Retry.constant(0.0, attempts=2))
        self.seen: list[Any] = []
        with psycopg.connect(url) as own:
            own.execute("CREATE TABLE IF NOT EXISTS ledger (task bigint UNIQUE)")
            own.execute("DELETE FROM ledger")

    def ledger(self) -> list[int]:
        """What is committed of the user's own."""
        with psycopg.connect(self.url) as own:
            return [row[0] for row in own.execute("SELECT task FROM ledger ORDER BY 1")]

    async def bury(self) -> None:
        """Let the store take the workers of this process for dead."""
        for worker in await internals_of(self.mp).runtime.view.workers():
            await internals_of(self.mp).runtime.store.control(DeclareDead(worker))


@pytest.fixture(scope="module")
def url(postgres: Server) -> Iterator[str]:
    """Give a database that these tests share: each has a pool of its own."""
    with postgres.database() as made:
        yield made


@pytest.fixture
def books(url: str) -> Books:
    """The books, with nothing in them."""
    return Books(url)


def add(task: int) -> Callable[[Any], object]:
    """What a handler writes."""
    return lambda connection: connection.execute(ADD, [task]).rowcount


@pytest.mark.rows("DE-18")
async def test_others_go_on_while_a_handler_writes(books: Books) -> None:
    """It locks the tables only when it completes, in a transaction and in a commit function."""
    inside, go = threading.Semaphore(0), threading.Event()

    @books.pool.task
    async def slow(ctx: Context) -> str:
        async with ctx.transaction() as tx:
            tx.execute(ADD, [ctx.task_id])
            inside.release()
            await asyncio.to_thread(go.wait)
            tx.complete("slow")
        return "not this"

    @books.pool.task
    def slower(ctx: SyncContext) -> None:
        def write(connection: Any) -> int:
            inside.release()
            go.wait()
            rows: int = connection.execute(ADD, [ctx.task_id]).rowcount
            return rows

        books.seen.append(ctx.commit(write, result=None))

    other = books.mp.pool(f"{books.pool.name}-other")

    @other.task
    async def quick() -> str:
        return "quick"

    async with books.mp, asyncio.timeout(20):
        first = await slow.submit()
        await asyncio.to_thread(inside.acquire)
        assert "quick" == await (await quick.submit())
        go.set()
        assert "slow" == await first
        go.clear()
        second = await slower.submit()
        await asyncio.to_thread(inside.acquire)
        assert "quick" == await (await quick.submit())
        go.set()
        await second
    assert ([1], sorted([first.id, second.id])) == (books.seen, books.ledger())


@pytest.mark.rows("CX-16")
async def test_a_handler_that_lost_its_lease_does_not_even_write(books: Books) -> None:
    """The commit of an attempt that lost its lease is refused; the next attempt writes."""

    @books.pool.task
    async def note(ctx: Context) -> int:
        def write(connection: Any) -> None:
            books.seen.append(ctx.attempt)
            connection.execute(ADD, [ctx.task_id])

        if ctx.attempt == 1:
            await books.bury()
            storing = internals_of(books.mp).runtime.loop.create_task(ctx.commit(write, result=1))
            with pytest.raises(LeaseLost):
                # Its handler may be stopped meanwhile, and it is not.
                await asyncio.shield(storing)
        await ctx.commit(write, result=ctx.attempt)
        return 0

    async with books.mp, asyncio.timeout(20):
        handle = await note.submit()
        assert 2 == await handle
    assert ([2], [handle.id]) == (books.seen, books.ledger())


@pytest.mark.rows("CX-16")
async def test_a_lease_lost_during_the_transaction_is_noticed_at_its_commit(books: Books) -> None:
    """The server checks the lease at the commit, and not only when the handler began to write."""

    @books.pool.task
    async def note(ctx: Context) -> int:
        async with ctx.transaction() as tx:
            tx.execute(ADD, [ctx.task_id])
            if ctx.attempt == 1:
                await books.bury()
            tx.complete(ctx.attempt)
        return 0

    async with books.mp, asyncio.timeout(20):
        handle = await note.submit()
        assert 2 == await handle
    assert [handle.id] == books.ledger()


async def test_a_handler_that_fails_has_written_nothing(books: Books) -> None:
    """It raised an error of its own, or suppressed one of the server."""

    @books.pool.task(retry=Retry(attempts=1))
    async def fail(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute(ADD, [ctx.task_id])
            raise ValueError("not this one")

    @books.pool.task(retry=Retry(attempts=1))
    async def hush(ctx: Context) -> None:
        try:
            async with ctx.transaction() as tx:
                tx.execute(ADD, [ctx.task_id])
                with pytest.raises(psycopg.errors.DivisionByZero):
                    tx.execute("SELECT 1/0")
        except TransactionAborted as error:
            books.seen.append(error)
            raise

    async with books.mp, asyncio.timeout(20):
        with pytest.raises(TaskFailed, match="not this one"):
            await (await fail.submit())
        with pytest.raises(TaskFailed, match="has failed"):
            await (await hush.submit())
    assert ([], 1) == (books.ledger(), len(books.seen))


async def test_a_handler_may_try_again_in_a_commit(books: Books) -> None:
    """What its function raised is its own, and the attempt goes on."""

    @books.pool.task
    async def note(ctx: Context) -> None:
        await ctx.commit(add(ctx.task_id))

    @books.pool.task
    async def twice(ctx: Context, known: int) -> None:
        with pytest.raises(psycopg.errors.UniqueViolation):
            await ctx.commit(add(known))
        await ctx.commit(add(ctx.task_id), result=None)

    async with books.mp, asyncio.timeout(20):
        first = await note.submit()
        await first
        second = await twice.submit(first.id)
        await second
    assert sorted([first.id, second.id]) == books.ledger()


async def test_statements_are_of_the_users_own_kind(books: Books) -> None:
    """Its search path and plans are those of its role, a % is a %, and the end is not its own."""

    @books.pool.task(retry=Retry(attempts=1))
    async def look(ctx: Context) -> list[str]:
        async with ctx.transaction() as tx:
            names = ("search_path", "enable_seqscan", "plan_cache_mode")
            found = [tx.execute(f"SHOW {name}").fetchone()[0] for name in names]
            found.append(tx.execute("SELECT 'a' LIKE '%a%'").fetchone()[0])
            for statement in ("COMMIT", "ROLLBACK", "BEGIN"):
                with pytest.raises(TransactionControl):
                    tx.execute(statement)
            tx.complete([str(one) for one in found])
        return []

    async with books.mp, asyncio.timeout(20):
        for _ in range(2):
            # The second time it is a connection that was used before.
            found = await (await look.submit())
            assert ['"$user", public', "on", "auto", "True"] == found


async def test_a_transaction_that_is_held_too_long_is_rolled_back(books: Books) -> None:
    """It keeps its rows from others: so not for ever."""

    @books.pool.task(retry=Retry(attempts=1))
    async def dawdle(ctx: Context) -> None:
        async with ctx.transaction(hold=0.05) as tx:
            tx.execute(ADD, [ctx.task_id])
            # The statement that is at work is stopped, and none comes after it.
            for statement in ("SELECT pg_sleep(10)", "SELECT 1"):
                with pytest.raises(TransactionTooLong, match="rows it has written"):
                    tx.execute(statement)

    async with books.mp, asyncio.timeout(20):
        with pytest.raises(TaskFailed, match="MILL-056"):
            await (await dawdle.submit())
    assert [] == books.ledger()


async def test_a_handler_that_waits_for_locked_rows_gets_the_servers_error(books: Books) -> None:
    """It holds up none of the other writers meanwhile."""

    @books.pool.task(retry=Retry(attempts=1))
    async def note(ctx: Context) -> None:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await ctx.commit(_add_impatiently)
        raise StoreLocked("not available", path="", waited=0.0)

    def _add_impatiently(connection: Any) -> None:
        connection.execute("SET LOCAL lock_timeout = 50")
        connection.execute(ADD, [1])

    async with books.mp, asyncio.timeout(20):
        with psycopg.connect(books.url) as own:
            own.execute(ADD, [1])
            with pytest.raises(TaskFailed, match="not available"):
                await (await note.submit())
            own.rollback()


async def test_a_server_that_was_restarted_is_found_again(books: Books) -> None:
    """The connections that handlers had are of no use then; the next one is new."""

    @books.pool.task
    async def note(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute(ADD, [ctx.task_id])

    async with books.mp, asyncio.timeout(20):
        await (await note.submit())
        with psycopg.connect(books.url, autocommit=True) as own:
            own.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "AND state = 'idle' AND query LIKE 'COMMIT%'"
            )
        await (await note.submit())
    assert 2 == len(books.ledger())


async def test_a_session_that_dies_before_the_fence_is_read_is_an_outage(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler gets an error of Millpond, not one of the driver, and is tried again."""
    real = holds
    ended: list[Any] = []

    def ending(unit: Any, fence: Any) -> bool:
        if not ended:
            ended.append(fence)
            with psycopg.connect(books.url, autocommit=True) as own:
                own.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND state = 'idle in transaction'"
                )
        return real(unit, fence)

    monkeypatch.setattr(handler_transaction, "holds", ending)

    @books.pool.task
    async def note(ctx: Context) -> None:
        try:
            await ctx.commit(add(ctx.task_id), result=None)
        except MillpondError as error:
            books.seen.append(type(error))
            raise

    async with books.mp, asyncio.timeout(20):
        await (await note.submit())
    assert [StoreUnreachable] == books.seen
    assert 1 == len(books.ledger())
