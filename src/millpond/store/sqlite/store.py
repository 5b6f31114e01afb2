"""The SQLite store behind the store protocol: each verb is a job of the writer's transaction."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from millpond.core.control import Declare
from millpond.core.errors import StoreClosed
from millpond.store.protocol import ControlAnswer, Hint
from millpond.store.sqlite.connect import Connection, connect
from millpond.store.sqlite.errors import DATABASE_ERRORS, translated
from millpond.store.sqlite.held import SAVEPOINT, HeldTransaction
from millpond.store.sqlite.join import driver_connection, joined
from millpond.store.sqlite.lent import LentConnection
from millpond.store.sqlite.mend import damage, mend
from millpond.store.sqlite.migrate import migrate
from millpond.store.sqlite.pool import SqlPool
from millpond.store.sqlite.presence import Presence
from millpond.store.sqlite.reader import Reader
from millpond.store.sqlite.tables import SqlTables
from millpond.store.sqlite.transact import Transactor
from millpond.store.sqlite.view import SqliteView
from millpond.store.sqlite.wake import Wakes
from millpond.store.sqlite.writer import Writer, must_not_be_forked
from millpond.store.verbs import steps
from millpond.store.verbs.settle import holds

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from typing import Self

    from millpond.core.control import Order
    from millpond.core.lease import LeaseAsk
    from millpond.core.plan import Wake
    from millpond.core.settle import Settlement
    from millpond.core.spec import PoolSpec
    from millpond.core.task import NewTask
    from millpond.store.protocol import (
        Batch,
        LeaseAnswer,
        RecoverAnswer,
        RenewAnswer,
        SettleAnswer,
        SubmitAnswer,
        View,
    )
    from millpond.store.sqlite.connect import Durability

log = logging.getLogger("millpond.sqlite")

T = TypeVar("T")

_BODIES_KEPT = 100_000
_ROWS_KEPT = 5_000
"""How many rows are kept in memory between two transactions, at most."""


class SqliteStore:
    """One file that many processes of one machine share.

    `inline=True` does every verb on the caller's thread: for tests whose time stands still while
    they wait.
    """

    shared = True

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = "full",
        may_migrate: bool = True,
        clock: Callable[[], float] = time.time,
        owner: str = "",
        inline: bool = False,
        factory: type[Connection] = Connection,
    ) -> None:
        # Where it is now, and by its own name: connections are opened later, too, from whatever
        # folder the process is in by then, and SQLite names its WAL after the file behind a link.
        path = self._path = Path(os.path.realpath(path))
        self._clock = clock
        self._dice = random.SystemRandom()
        self._bodies: dict[int, NewTask] = {}
        self._kept: SqlTables | None = None
        self._closed = False
        # Only the first makes the file: later ones would make an empty one of what was removed.
        first = connect(path, durability=durability, factory=factory)
        self._open = partial(connect, path, durability=durability, factory=factory, create=False)
        try:
            migrate(first, path, allowed=may_migrate)
        except BaseException:
            first.close()
            raise
        self._inline = Transactor(path, self._open, self._unit) if inline else None
        self._reader = Reader(path, self._open, first)
        self._threads = None if inline else ThreadPoolExecutor(1, "millpond-reader")
        self._wakes = None if inline or not owner else Wakes(path, owner)
        self._writer = (
            None if inline else Writer(path, self._open, self._unit, committed=self._committed)
        )
        self.presence = None if inline else Presence(path)
        """Which processes of this host are there."""
        self._process = os.getpid()
        self._seen_version = 0
        self._view = SqliteView(self._read, clock)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        owner: str = "",
        durability: Durability = "full",
        migrate: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Open the file in another thread: it may have to wait for others."""
        made = partial(
            cls, path, durability=durability, may_migrate=migrate, clock=clock, owner=owner
        )
        return await asyncio.get_running_loop().run_in_executor(None, made)

    @property
    def view(self) -> View:
        """The reading side."""
        return self._view

    def _unit(self, connection: sqlite3.Connection) -> SqlTables:
        """Return what jobs work on: the last unit of work, while nobody else has written.

        Asked inside the transaction, so nobody can write any more; a connection that was opened
        anew counts from another number.
        """
        kept, self._kept = self._kept, None
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        if kept is not None and kept.connection is connection and kept.version == version:
            return kept
        unit = self._new_unit(connection, self._bodies)
        unit.version = version
        unit.on_commit = self._keep
        return unit

    def _new_unit(
        self, connection: sqlite3.Connection, bodies: dict[int, NewTask] | None = None
    ) -> SqlTables:
        unit = SqlTables(connection, self._dice.getrandbits(64), bodies)
        reached = getattr(self._clock, "reached", None)
        if reached is not None:
            # Another process may have acted at a moment that this one's clock has yet to come to.
            reached(unit.latest)
        return unit

    def _keep(self, unit: SqlTables) -> None:
        """Keep a unit of work that was committed, unless it has grown."""
        self._kept = unit if unit.trimmed() <= _ROWS_KEPT else None

    # Others

    def listen(self, tell: Callable[[Hint], None]) -> None:
        """Call `tell` on this loop with the hints of other processes, from now on."""
        if self._wakes is not None:
            self._wakes.listen(tell, asyncio.get_running_loop())

    def renewer(self) -> Renewer:
        """Return what renews from a thread of its own."""
        return Renewer(self._path, self._open, self._new_unit, self._clock)

    async def changed(self) -> bool:
        """Return whether anybody wrote since it was last asked."""
        version = await self._on_reader(_version_of)
        before, self._seen_version = self._seen_version, version
        return version != before

    async def mend(self) -> tuple[str, ...]:
        """Look whether all rows fit together, and put right what does not; return what was wrong.

        It looks without keeping anybody from writing, and has a connection of its own for it.
        """
        self._must_be_open()
        if self._inline is not None:
            return self._mended()
        return await _aside(self._mended)

    def _mended(self) -> tuple[str, ...]:
        connection = self._open()
        transactor = Transactor(self._path, self._open, self._new_unit)
        try:
            wrong = damage(connection)
            if wrong:
                log.error("in %s something is wrong, and is put right: %s", self._path, wrong[:5])
                transactor.run(self._mend)
        except DATABASE_ERRORS as error:
            raise translated(error, self._path) from error
        finally:
            connection.close()
            transactor.close()
        return tuple(wrong)

    def _mend(self, tables: SqlTables) -> None:
        """Put things right: a job for a unit of work in which nothing else was done yet."""
        mend(tables.connection, self._clock())
        tables.read_meta()

    def _committed(self, answers: Sequence[Any]) -> float | None:
        """Tell the others, in the writer's thread, what was just stored."""
        if self._wakes is None:
            return None
        return self._wakes.send(hint_of(answers) if answers else None)

    # How a verb is carried out

    def _must_be_open(self) -> None:
        if self._closed:
            message = f"the store {self._path} is closed; open a new one"
            raise StoreClosed(message)

    async def _do(self, job: Callable[[SqlTables], T]) -> T:
        self._must_be_open()
        if self._writer is not None:
            return await self._writer.do(job)
        return self._do_inline(job)

    def _do_inline(self, job: Callable[[SqlTables], T]) -> T:
        assert self._inline is not None  # noqa: S101 - there is one where there is no writer
        return self._inline.once(job)

    async def _read(self, question: Callable[[SqlTables], object]) -> object:
        return await self._on_reader(partial(_answer, question))

    async def _on_reader(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask something of the reading connection, in the thread that has it."""
        self._must_be_open()
        if self._threads is None:
            return self._reader.ask(question)
        must_not_be_forked(self._process, self._path)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._reader.ask, question)

    def _moment(self, now: float | None) -> float:
        return self._clock() if now is None else now

    # The verbs

    async def submit(
        self, batches: Sequence[Batch], *, now: float | None = None, entropy: int | None = None
    ) -> SubmitAnswer:
        """Take in batches, each whole or not at all where its pool's policy says so."""

        def job(tables: SqlTables) -> SubmitAnswer:
            tables.expect([new for batch in batches for new in batch.tasks])
            return steps.submit(tables, batches, self._moment(now), entropy)

        return await self._do(job)

    async def lease(
        self, ask: LeaseAsk, *, now: float | None = None, entropy: int | None = None
    ) -> LeaseAnswer:
        """Give a worker the next tasks of a pool, within every limit in force."""

        def job(tables: SqlTables) -> LeaseAnswer:
            _expect(tables, ask)
            answer = steps.lease(tables, ask, self._moment(now), entropy)
            self._remember(tables, answer)
            return answer

        return await self._do(job)

    async def renew(
        self, worker: str, lease: float, *, now: float | None = None, entropy: int | None = None
    ) -> RenewAnswer:
        """Keep everything a worker holds for `lease` seconds more."""
        return await self._do(
            lambda tables: steps.renew(tables, worker, lease, self._moment(now), entropy)
        )

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        then: LeaseAsk | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> SettleAnswer:
        """End attempts, each only with its current fence, and lease the next if asked."""

        def job(tables: SqlTables) -> SettleAnswer:
            named = [one.fence.task for one in settlements]
            named += [one.successor.task for one in settlements if one.successor is not None]
            tables.expect_ends(named)
            if then is not None:
                _expect(tables, then, leaving=len(settlements))
            answer = steps.settle(tables, settlements, self._moment(now), entropy, then=then)
            if answer.lease is not None:
                self._remember(tables, answer.lease)
            self._forget(answer.ended)
            return answer

        return await self._do(job)

    # Together with what users keep in the same file

    def submit_within(
        self,
        connection: object,
        batches: Sequence[Batch],
        *,
        declare: Sequence[PoolSpec] = (),
        now: float | None = None,
        entropy: int | None = None,
    ) -> tuple[SubmitAnswer, sqlite3.Connection]:
        """Take in batches inside the transaction that is open on a connection of the caller's.

        In the caller's thread; pools that the file may not know are declared with them. Return the
        driver's connection, too: its `in_transaction` tells when the transaction is over.
        """
        self._must_be_open()
        inside = driver_connection(connection, self._path)
        with joined(connection, self._path) as cursors:
            unit = self._new_unit(cast("sqlite3.Connection", cursors))
            for spec in declare:
                steps.control(unit, Declare(spec), self._moment(now), entropy)
            answer = steps.submit(unit, batches, self._moment(now), entropy)
            unit.write()
        return answer, inside

    async def settle_with(
        self,
        settlement: Settlement,
        write: Callable[[LentConnection], T],
        *,
        now: float | None = None,
        entropy: int | None = None,
    ) -> tuple[SettleAnswer, T | None]:
        """End an attempt in one transaction with what `write` does; if that raises, do nothing.

        Without the current fence it is not called. It may be called again where a transaction
        failed, and nothing of the call before is left then.
        """

        def job(tables: SqlTables) -> _WrittenWith[T]:
            written = _WrittenWith[T]()
            if holds(tables, settlement.fence):
                written.do(tables.connection, write)
            if written.error is None:
                written.answer = steps.settle(tables, (settlement,), self._moment(now), entropy)
                self._forget(written.ended)
            return written

        written = await self._do(job)
        if written.error is not None:
            raise written.error
        assert written.answer is not None  # noqa: S101 - nothing was raised
        return written.answer, written.value

    def hold(self, limit: float) -> HeldTransaction:
        """Return a transaction for a handler, not begun yet, that may last `limit` seconds."""
        self._must_be_open()
        transactor = Transactor(self._path, self._open, self._new_unit)
        return HeldTransaction(transactor, self._clock, limit)

    async def announce(self, answer: Any) -> None:  # noqa: ANN401 - the answer of any verb
        """Tell other processes what was stored over another connection than the writer's."""

        def job(_: SqlTables) -> object:
            self._forget(answer.ended)
            return answer

        await self._do(job)

    async def recover(
        self,
        *,
        limit: int = 1000,
        generation: int | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> RecoverAnswer:
        """Do what time alone does: lose expired leases, fail expired and forgotten tasks."""
        return await self._do(
            lambda tables: steps.recover(
                tables, limit, self._moment(now), entropy, generation=generation
            )
        )

    async def control(
        self, order: Order, *, now: float | None = None, entropy: int | None = None
    ) -> ControlAnswer:
        """Carry out an order."""
        return await self._do(
            lambda tables: steps.control(tables, order, self._moment(now), entropy)
        )

    async def close(self) -> None:
        """Let go of the file; safe twice."""
        if self._closed:
            return
        self._closed = True
        if self._inline is not None:
            self._inline.close()
        if self._writer is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._writer.close)
        if self._wakes is not None:
            self._wakes.close()
        if self._threads is not None:
            # What is being read ends first; then nobody uses the connection, or the file, any more.
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._reader.close)
            self._threads.shutdown(wait=False)
        else:
            self._reader.close()

    def _forget(self, ended: Sequence[int]) -> None:
        """Let go of the bodies of tasks that have ended."""
        for identifier in ended:
            self._bodies.pop(identifier, None)

    def _remember(self, tables: SqlTables, answer: LeaseAnswer) -> None:
        """Keep the bodies of what is leased: its settle will want them again."""
        if len(self._bodies) > _BODIES_KEPT:
            self._bodies.clear()
        for one in (*answer.leased, *answer.claimed):
            task = tables.glance(one.fence.task)
            if task is not None:
                self._bodies[task.new.id] = task.new


class _WrittenWith(Generic[T]):
    """What became of a handler's writes in the transaction that settles its attempt."""

    value: T | None = None
    error: BaseException | None = None
    answer: SettleAnswer | None = None

    @property
    def wakes(self) -> Sequence[Wake]:
        """What others are told."""
        return () if self.answer is None else self.answer.wakes

    @property
    def ended(self) -> Sequence[int]:
        """What others are told."""
        return () if self.answer is None else self.answer.ended

    @property
    def finished_runs(self) -> Sequence[int]:
        """What others are told."""
        return () if self.answer is None else self.answer.finished_runs

    def do(self, connection: sqlite3.Connection, write: Callable[[LentConnection], T]) -> None:
        """Let the handler write; what it raises is kept, and what it wrote until then is not."""
        lent = LentConnection(connection)
        connection.execute(f"SAVEPOINT {SAVEPOINT}")
        try:
            self.value = write(lent)
        except BaseException as error:
            if not connection.in_transaction:
                # An error that ended the transaction ends everybody's who is in it.
                raise
            self.error = error
        lent.end()
        lent.close_cursors()
        if self.error is not None:
            connection.execute(f"ROLLBACK TO {SAVEPOINT}")
        connection.execute(f"RELEASE {SAVEPOINT}")


def _answer(question: Callable[[SqlTables], T], connection: sqlite3.Connection) -> T:
    """Answer a question of one moment; whatever it made of the tables is forgotten."""
    connection.execute("BEGIN")
    try:
        return question(SqlTables(connection, 0, readonly=True))
    finally:
        if connection.in_transaction:  # some errors end a transaction by themselves
            connection.execute("ROLLBACK")


async def _aside(work: Callable[[], T]) -> T:
    """Do something in a thread that nobody waits for when the loop or the process ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(answer: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(cast("T", answer))
        else:
            done.set_exception(error)

    def run() -> None:
        answer: T | None = None
        error: BaseException | None = None
        try:
            answer = work()
        except BaseException as raised:  # noqa: BLE001 - whoever waits is told
            error = raised
        # The loop may be closed by now: then nobody is there to be told.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, answer, error)

    threading.Thread(target=run, name="millpond-aside", daemon=True).start()
    return await done


def _version_of(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


def hint_of(answers: Sequence[Any]) -> Hint:
    """Return what other processes should hear of these answers."""
    wakes: dict[str, Wake] = {}
    ended: list[int] = []
    finished: list[int] = []
    cancelled: list[int] = []
    interrupted: list[int] = []
    for answer in answers:
        for wake in getattr(answer, "wakes", ()):
            before = wakes.get(wake.pool)
            if before is None or wake.at < before.at:
                wakes[wake.pool] = wake
        ended += getattr(answer, "ended", ())
        finished += getattr(answer, "finished_runs", ())
        if isinstance(answer, ControlAnswer):
            cancelled += answer.cancelled
            interrupted += answer.interrupted
    return Hint(
        wakes=tuple(wakes.values()),
        ended=tuple(ended),
        finished_runs=tuple(finished),
        cancelled=tuple(cancelled),
        interrupted=tuple(interrupted),
    )


class Renewer:
    """Renews from a thread, and waits there: it has a connection of its own."""

    def __init__(
        self,
        path: Path,
        open_connection: Callable[[], sqlite3.Connection],
        make_unit: Callable[[sqlite3.Connection], SqlTables],
        clock: Callable[[], float],
    ) -> None:
        self._transactor = Transactor(path, open_connection, make_unit)
        self._clock = clock

    def renew(self, worker: str, lease: float) -> RenewAnswer:
        """Keep everything a worker holds for `lease` seconds more."""
        return self._transactor.run(
            lambda tables: steps.renew(tables, worker, lease, self._clock())
        )

    def close(self) -> None:
        """Let its connection go."""
        self._transactor.close()


def _expect(tables: SqlTables, ask: LeaseAsk, *, leaving: int = 0) -> None:
    """Let as many tasks be read at once as this claim can take."""
    pool = tables.pools.get(ask.pool)
    if isinstance(pool, SqlPool):
        spec = pool.spec
        slots = max(spec.max_concurrent - pool.running + leaving, 0)
        pool.sql_backlog.expect(min(ask.want, slots) + min(ask.ahead, spec.prefetch))
