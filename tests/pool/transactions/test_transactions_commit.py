"""Handlers that commit their own writes with their completion: both, once, or neither."""

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.pool.moments import result_of, rounds
from tests.waiting import eventually, never_ends

from millpond import (
    ConfigError,
    Context,
    Millpond,
    NotSupported,
    Pool,
    Retry,
    SyncContext,
    TaskCancelled,
    TaskFailed,
)
from millpond.core.control import DeclareDead
from millpond.errors import AlreadySettled, LeaseLost, TransactionControl, TransactionTooLong
from millpond.pool.internals import internals_of

pytestmark = pytest.mark.real_loop

ADD = "INSERT INTO ledger (task) VALUES (?)"


class Books:
    """A Millpond on a file, with a ledger of the user's own in it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.file = folder / "books.db"
        self.mp = Millpond(f"sqlite:///{self.file}", work=True, lease=3, durability="normal")
        self.pool: Pool = self.mp.pool("book", retry=Retry.constant(0.0, attempts=2), **options)
        connection = sqlite3.connect(self.file)
        connection.execute("CREATE TABLE ledger (task INTEGER NOT NULL, note TEXT UNIQUE)")
        connection.close()
        self.seen: list[Any] = []

    def ledger(self) -> list[int]:
        connection = sqlite3.connect(self.file)
        rows = connection.execute("SELECT task FROM ledger ORDER BY rowid").fetchall()
        connection.close()
        return [task for (task,) in rows]

    async def bury(self) -> None:
        """Declare the workers of this process dead."""
        store = internals_of(self.mp).runtime.store
        for worker in await internals_of(self.mp).runtime.view.workers():
            await store.control(DeclareDead(worker))


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path)


def write(ctx: Context | SyncContext) -> Callable[[Any], int]:
    return lambda connection: connection.execute(ADD, (ctx.task_id,)).rowcount


# ctx.commit


@pytest.mark.parametrize("how", ["commit", "transaction"])
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.rows("DE-18")
async def test_writes_follow_ups_and_completion_are_one_transaction(
    books: Books, how: str, kind: str
) -> None:
    """All three are stored when the task has completed, whatever the handler returns."""

    @books.pool.task
    async def after(number: int) -> int:
        return number

    @books.pool.task
    async def on_loop(ctx: Context) -> int | None:
        books.seen.append(await ctx.submit(after.bind(7)))
        if how == "commit":
            books.seen.append(await ctx.commit(write(ctx), result=5))
        else:
            async with ctx.transaction() as tx:
                books.seen.append(tx.execute(ADD, (ctx.task_id,)).rowcount)
                tx.complete(5)
        return 6

    @books.pool.task
    def in_thread(ctx: SyncContext) -> int | None:
        books.seen.append(ctx.submit(after.bind(7)))
        if how == "commit":
            books.seen.append(ctx.commit(write(ctx), result=5))
        else:
            with ctx.transaction() as tx:
                books.seen.append(tx.connection.execute(ADD, (ctx.task_id,)).rowcount)
                tx.complete(5)
        return 6

    task: Any = on_loop if kind == "async" else in_thread
    async with books.mp, asyncio.timeout(20):
        handle = await task.submit()
        assert 5 == await handle
        await eventually(lambda: len(books.seen) == 2)
        follow_up, count = books.seen
        assert 1 == count
        assert 7 == await follow_up
        await books.pool.drain()
        assert 5 == (await handle.refresh()).result
        assert 0 == (await books.pool.snapshot()).stale_settles
    assert [handle.id] == books.ledger()


@pytest.mark.parametrize("how", ["commit", "transaction", "thread"])
async def test_an_error_undoes_all_and_the_attempt_goes_the_usual_way(
    books: Books, how: str
) -> None:
    """The first attempt stores nothing; the second one completes."""

    def fail_first(connection: Any, attempt: int) -> None:
        connection.execute(ADD, (attempt,))
        if attempt == 1:
            raise KeyError("first")

    @books.pool.task
    async def on_loop(ctx: Context) -> None:
        await ctx.submit(nothing.bind())
        if how == "commit":
            await ctx.commit(lambda connection: fail_first(connection, ctx.attempt))
        else:
            async with ctx.transaction() as tx:
                fail_first(tx.connection, ctx.attempt)

    @books.pool.task
    def in_thread(ctx: SyncContext) -> None:
        ctx.submit(nothing.bind())
        with ctx.transaction() as tx:
            fail_first(tx.connection, ctx.attempt)

    @books.pool.task
    async def nothing() -> None:
        books.seen.append("followed")

    task: Any = in_thread if how == "thread" else on_loop
    async with books.mp, asyncio.timeout(20):
        handle = await task.submit()
        await handle
        await books.pool.drain()
        assert 2 == handle.attempt
    assert [2] == books.ledger()
    assert ["followed"] == books.seen


async def test_after_an_error_in_its_writes_a_handler_may_try_again(books: Books) -> None:
    """The error comes to the handler, and so does a second chance, in the same attempt."""

    def once(connection: Any) -> Any:
        connection.execute(ADD, (1,))
        return connection.execute("INSERT INTO ledger VALUES (2, 'unique')")

    @books.pool.task
    async def job(ctx: Context) -> str:
        try:
            await ctx.commit(lambda own: [once(own) for _ in "12"], result="first")
        except sqlite3.IntegrityError:
            await ctx.commit(once, result="second")
        return "ignored"

    async with books.mp, asyncio.timeout(20):
        handle = await job.submit()
        assert "second" == await handle
        assert 1 == handle.attempt
    assert [1, 2] == books.ledger()


@pytest.mark.parametrize("how", ["commit", "transaction", "thread"])
@pytest.mark.rows("TRAP-1", "CX-16")
async def test_an_attempt_that_lost_its_lease_writes_nothing(books: Books, how: str) -> None:
    """The store refuses the commit of the attempt; the commit of the next one counts."""
    go, begun = asyncio.Event(), asyncio.Event()
    outcome: list[Exception] = []

    async def meanwhile() -> None:
        begun.set()
        while not go.is_set():
            # The worker interrupts it, and it ignores that.
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    @books.pool.task
    async def on_loop(ctx: Context) -> None:
        try:
            if ctx.attempt == 1:
                await meanwhile()
            if how == "commit":
                await ctx.commit(lambda connection: connection.execute(ADD, (ctx.attempt,)))
            else:
                async with ctx.transaction() as tx:
                    tx.execute(ADD, (ctx.attempt,))
        except LeaseLost as error:
            outcome.append(error)
            raise

    @books.pool.task
    def in_thread(ctx: SyncContext) -> None:
        try:
            if ctx.attempt == 1:
                loop = internals_of(books.mp).runtime.loop
                asyncio.run_coroutine_threadsafe(meanwhile(), loop).result()
            with ctx.transaction() as tx:
                tx.execute(ADD, (ctx.attempt,))
        except LeaseLost as error:
            outcome.append(error)
            raise

    task: Any = in_thread if how == "thread" else on_loop
    async with books.mp, asyncio.timeout(20):
        handle = await task.submit()
        await begun.wait()
        first = internals_of(books.mp).runtime.job_of(handle.id)
        assert first is not None
        await books.bury()
        # Only then: the interrupt must not come in the middle of its commit.
        await eventually(lambda: first.why is not None)
        await asyncio.sleep(0)
        go.set()
        await handle
        await books.pool.drain()
        assert 2 == handle.attempt
        await eventually(lambda: outcome)
        (error,) = outcome
        assert isinstance(error, LeaseLost)
        assert (handle.id, 1, "book") == (error.task_id, error.attempt, error.pool)
    assert [2] == books.ledger()


async def test_an_attempt_completes_once(books: Books) -> None:
    """A second commit, a transaction or a follow-up after the commit is refused."""
    refused: list[type] = []

    @books.pool.task
    async def job(ctx: Context) -> None:
        await ctx.commit(write(ctx))
        for call in (lambda: ctx.commit(write(ctx)), lambda: ctx.submit(job.bind())):
            try:
                await call()
            except Exception as error:  # noqa: BLE001 - that is asked below
                refused.append(type(error))
        try:
            async with ctx.transaction():
                refused.append(int)
        except Exception as error:  # noqa: BLE001
            refused.append(type(error))

    async with books.mp, asyncio.timeout(20):
        handle = await job.submit()
        await handle
        await eventually(lambda: len(refused) == 3)
    assert [AlreadySettled, ConfigError, AlreadySettled] == refused
    assert [handle.id] == books.ledger()


async def test_of_two_concurrent_commits_one_raises_already_settled(books: Books) -> None:
    """The second one raises AlreadySettled."""
    outcomes: list[Any] = []

    @books.pool.task
    async def job(ctx: Context) -> None:
        outcomes.extend(
            await asyncio.gather(
                *(ctx.commit(write(ctx), result=None) for _ in range(2)), return_exceptions=True
            )
        )

    async with books.mp, asyncio.timeout(20):
        handle = await job.submit()
        await handle
        await books.pool.drain()
        await eventually(lambda: outcomes)
    assert 1 == outcomes[0]
    assert isinstance(outcomes[1], AlreadySettled)
    assert [handle.id] == books.ledger()


async def test_an_error_after_the_commit_does_not_change_the_outcome(
    books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    """An error is logged, not retried; its local slot is free again when it ends."""

    @books.pool.task
    async def job(ctx: Context) -> int:
        books.seen.append(ctx.attempt)
        await ctx.commit(write(ctx), result=1)
        raise ValueError("too late")

    async with books.mp, asyncio.timeout(20):
        with caplog.at_level(logging.WARNING, "millpond.worker"):
            handles = await books.pool.submit_many(job.bind() for _ in range(30))
            assert [1] * 30 == [await handle for handle in handles]
            await books.pool.drain()
            (worker,) = internals_of(books.mp).runtime.workers
            await eventually(lambda: not worker.jobs)
        assert 30 == (await books.pool.snapshot()).completed
    assert [1] * 30 == books.seen
    assert 30 == sum("which stands" in record.getMessage() for record in caplog.records)
    assert sorted(books.ledger()) == sorted(handle.id for handle in handles)


async def test_a_timeout_after_the_commit_only_stops_the_handler(books: Books) -> None:
    """The worker interrupts the handler, and the task stays completed."""
    stopped = asyncio.Event()

    @books.pool.task(timeout=0.3)
    async def job(ctx: Context) -> int:
        await ctx.commit(write(ctx), result=1)
        try:
            await never_ends()
        except asyncio.CancelledError:
            stopped.set()
            raise
        return 2

    async with books.mp, asyncio.timeout(20):
        handle = await job.submit()
        assert 1 == await handle
        await stopped.wait()
        assert "completed" == (await handle.refresh()).status
        assert 1 == handle.attempt


async def test_the_return_value_after_a_commit_is_ignored(
    books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even if it could not be stored."""

    @books.pool.task
    async def job(ctx: Context) -> int:
        await ctx.commit(write(ctx), result=1)
        return "no number"  # type: ignore[return-value]

    async with books.mp, asyncio.timeout(20):
        with caplog.at_level(logging.WARNING):
            assert 1 == await result_of(await job.submit())
            await eventually(lambda: not internals_of(books.mp).runtime.workers[0].jobs)
    assert [] == caplog.records


async def test_a_handler_that_does_not_stop_after_its_commit_is_not_settled_again(
    books: Books,
) -> None:
    """It keeps its local slot until it ends, and changes nothing else."""
    over = asyncio.Event()

    @books.pool.task(timeout=0.2)
    async def job(ctx: Context) -> int:
        await ctx.commit(write(ctx), result=1)
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()
        return 2

    async with books.mp, asyncio.timeout(20):
        assert 1 == await result_of(await job.submit())
        (worker,) = internals_of(books.mp).runtime.workers
        await asyncio.sleep(1.5)  # long after its time is over, and nothing must happen
        assert 1 == len(worker.jobs)
        over.set()
        await eventually(lambda: not worker.jobs)
        counts = internals_of(books.mp).runtime.counts
        assert (0, 0) == (counts.stuck, counts.stale_settles)
        assert {} == worker.stuck_since


@pytest.mark.parametrize("how", ["commit", "transaction"])
async def test_a_cancel_during_a_commit_leaves_all_or_nothing(books: Books, how: str) -> None:
    """The cancellation waits for the answer: never a completion that was also cancelled."""
    reached = threading.Event()
    go = threading.Event()

    def slowly(connection: Any) -> None:
        connection.execute(ADD, (1,))
        reached.set()
        go.wait(10)

    @books.pool.task
    async def job(ctx: Context) -> int:
        if how == "commit":
            await ctx.commit(slowly, result=3)
        else:
            async with ctx.transaction() as tx:
                reached.set()
                await asyncio.to_thread(go.wait, 10)
                tx.execute(ADD, (1,))
        return 4

    async with books.mp, asyncio.timeout(20):
        handle = await job.submit()
        await asyncio.to_thread(reached.wait, 10)
        running = internals_of(books.mp).runtime.job_of(handle.id)
        assert running is not None
        assert running.slot is not None
        if how == "commit":
            running.slot.task.cancel()
            await rounds()  # it is there, and waits for the commit
            go.set()
            assert 3 == await handle
            await eventually(lambda: not internals_of(books.mp).runtime.workers[0].jobs)
        else:
            cancelling = asyncio.ensure_future(handle.cancel(mode="interrupt"))
            go.set()
            await cancelling
            with pytest.raises(TaskCancelled):
                await handle
        await books.pool.drain()
        assert 0 == internals_of(books.mp).runtime.counts.stale_settles
    assert ([1] if how == "commit" else []) == books.ledger()


@pytest.mark.parametrize(
    "statement",
    ["COMMIT", "commit;", "  -- so\n ROLLBACK", "/* a\n */ BEGIN IMMEDIATE", "END", "; rollback"],
)
@pytest.mark.parametrize("how", ["commit", "transaction"])
async def test_the_transaction_is_not_the_handlers_to_end(
    books: Books, statement: str, how: str
) -> None:
    """To begin, commit or roll back is refused; nothing is written."""

    def naughty(connection: Any) -> None:
        connection.execute(ADD, (1,))
        connection.execute(statement)

    @books.pool.task(retry=Retry.never())
    async def job(ctx: Context) -> None:
        if how == "commit":
            await ctx.commit(naughty)
        else:
            async with ctx.transaction() as tx:
                naughty(tx.connection)

    async with books.mp, asyncio.timeout(20):
        with pytest.raises(TaskFailed) as caught:
            await result_of(await job.submit())
    assert isinstance(caught.value.__cause__, TransactionControl)
    assert [] == books.ledger()


async def test_other_ways_to_end_it_are_refused_too(books: Books) -> None:
    """Methods, scripts, cursors, and a connection used after the transaction."""

    def try_all(connection: Any) -> None:
        books.seen.append(connection)
        for end in (
            connection.commit,
            connection.rollback,
            lambda: connection.cursor().executescript("SELECT 1"),
            lambda: connection.cursor().executemany("COMMIT", [()]),
        ):
            with pytest.raises(TransactionControl):
                end()
        connection.execute("SAVEPOINT part")
        connection.execute(ADD, (1,))
        connection.execute("ROLLBACK TRANSACTION TO part")
        connection.execute("RELEASE part")
        connection.row_factory = sqlite3.Row
        connection.executemany(ADD, [(2,), (3,)])
        # Left open: it must not keep the writer in the past.
        books.seen.append(connection.execute("SELECT task FROM ledger"))
        assert 2 == books.seen[1].fetchone()["task"]

    @books.pool.task
    async def job(ctx: Context) -> None:
        await ctx.commit(try_all)

    async with books.mp, asyncio.timeout(20):
        await result_of(await job.submit())
        with pytest.raises(TransactionControl, match="over"):
            books.seen[0].execute("DELETE FROM ledger")
        with pytest.raises(sqlite3.ProgrammingError):
            books.seen[1].fetchone()
    assert [2, 3] == books.ledger()


async def test_a_result_that_cannot_be_stored_commits_nothing(books: Books) -> None:
    """It is found before anything is written."""

    @books.pool.task(retry=Retry.never())
    async def job(ctx: Context) -> int:
        async with ctx.transaction() as tx:
            tx.execute(ADD, (1,))
            tx.complete("not a number")
        return 1

    async with books.mp, asyncio.timeout(20):
        with pytest.raises(TaskFailed) as caught:
            await result_of(await job.submit())
        assert "bad_result" == caught.value.reason
    assert [] == books.ledger()


@pytest.mark.parametrize("kind", ["async", "blocking", "thread", "statement"])
async def test_a_transaction_that_is_held_too_long_is_rolled_back(books: Books, kind: str) -> None:
    """However it is held; others can write before its handler comes back."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    free = threading.Event()

    @books.pool.task(retry=Retry.never())
    async def on_loop(ctx: Context) -> None:
        async with ctx.transaction(hold=0.2) as tx:
            tx.execute(ADD, (1,))
            threading.Thread(target=others).start()
            if kind == "async":
                await ctx.progress(0.5, "waits for itself")
            elif kind == "blocking":
                assert free.wait(10)
            else:
                tx.execute(endless)

    @books.pool.task(retry=Retry.never())
    def in_thread(ctx: SyncContext) -> None:
        with ctx.transaction(hold=0.2) as tx:
            tx.execute(ADD, (1,))
            threading.Thread(target=others).start()
            assert free.wait(10)
            tx.execute(ADD, (2,))

    def others() -> None:
        connection = sqlite3.connect(books.file, timeout=10, isolation_level=None)
        connection.execute("INSERT INTO ledger VALUES (9, NULL)")
        connection.close()
        free.set()

    task: Any = in_thread if kind == "thread" else on_loop
    async with books.mp, asyncio.timeout(30):
        handle = await task.submit()
        with pytest.raises(TaskFailed) as caught:
            await handle
        assert await asyncio.to_thread(free.wait, 10)
        cause = caught.value.__cause__
        if kind == "statement":
            assert isinstance(cause, sqlite3.OperationalError)
        else:
            assert isinstance(cause, TransactionTooLong)
            assert 0.2 == cause.limit
    assert [9] == books.ledger()


async def test_a_handler_that_is_stopped_in_its_transaction_leaves_nothing(books: Books) -> None:
    """Also one that still waits for its turn."""
    first = asyncio.Event()

    @books.pool.task
    async def job(ctx: Context) -> None:
        async with ctx.transaction(hold=30) as tx:
            tx.execute(ADD, (1,))
            first.set()
            await never_ends()

    async with books.mp, asyncio.timeout(30):
        async with books.mp.worker():
            handles = await books.pool.submit_many(job.bind() for _ in range(2))
            await first.wait()
        internals_of(books.mp).owner.work = None
    assert [] == books.ledger()
    async with books.mp:
        assert ("queued", "queued") == await internals_of(books.mp).runtime.view.status(
            [h.id for h in handles]
        )


@pytest.mark.memory("it also tests pools in memory")
async def test_contexts_that_cannot_commit_raise(books: Books) -> None:
    """Batches, coroutine functions, and pools in memory."""

    @books.pool.batch_task(size=4)
    async def batch(ctx: Context, items: list[int]) -> list[int]:
        try:
            await ctx.commit(write(ctx))
        except NotSupported as error:
            books.seen.append(error)
        return items

    async def asynchronous(connection: Any) -> None: ...

    not_plain: Any = asynchronous

    @books.pool.task
    async def job(ctx: Context) -> None:
        with pytest.raises(ConfigError, match="plain function"):
            await ctx.commit(not_plain)
        with pytest.raises(ConfigError, match="hold"):
            ctx.transaction(hold=0)

    async with books.mp, asyncio.timeout(20):
        await result_of(await batch.submit(1))
        await result_of(await job.submit())
    assert "batch" in str(books.seen[0])

    memory = Millpond()
    pool = memory.pool("book")

    @pool.task
    async def in_memory(ctx: Context) -> None:
        with pytest.raises(NotSupported, match="in a database"):
            await ctx.commit(write(ctx))
        with pytest.raises(NotSupported, match="in a database"):
            ctx.transaction()

    async with memory:
        await result_of(await in_memory.submit())
