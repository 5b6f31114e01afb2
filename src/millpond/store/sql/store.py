"""A store over SQL rows: each verb is a job in a transaction of the writer."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from millpond.core.control import CancelRun, Declare, DeclareBudget, Prune, Redrive
from millpond.core.log_fields import about
from millpond.core.store_time import read
from millpond.errors import Miscounted, StoreClosed, StoreError
from millpond.store.clock import ForwardClock, ServerClock, steady
from millpond.store.protocol import ControlAnswer, LeaseAnswer, RenewAnswer
from millpond.store.sql.handler_connection import HandlerConnectionBase
from millpond.store.sql.handler_transaction import HandlerTransaction
from millpond.store.sql.newer_log import NewerLog
from millpond.store.sql.read_ahead import expect_ends, expect_lease, expect_submit
from millpond.store.sql.renewer import SqlRenewer
from millpond.store.sql.repair import find_damage, repair_rows
from millpond.store.sql.store_time import JumpLog, move_moments, without_doubt
from millpond.store.sql.threads import in_daemon_thread, off_the_loop
from millpond.store.sql.transactions import C
from millpond.store.sql.unit_of_work import SqlTables
from millpond.store.sql.view import SqlView
from millpond.store.sql.writer import Writer, must_not_be_forked
from millpond.store.sql.written_with import WrittenWith, hint_of
from millpond.store.verbs import api as verbs
from millpond.store.verbs.settle import holds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from millpond.core.control import Command
    from millpond.core.lease import LeaseRequest
    from millpond.core.settle import Settlement
    from millpond.core.spec import PoolSpec
    from millpond.store.protocol import (
        Batch,
        Hint,
        RecoverAnswer,
        SettleAnswer,
        SubmitAnswer,
    )
    from millpond.store.sql.codec import LeasedBodies
    from millpond.store.sql.database import Connection, Dialect
    from millpond.store.sql.hint_channel import HintChannel
    from millpond.store.sql.reader import ReadConnection
    from millpond.store.sql.transactions import Transactor
    from millpond.store.view import View

log = logging.getLogger("millpond.store")

T = TypeVar("T")
L = TypeVar("L", bound=HandlerConnectionBase)

_OF_A_ROW = (StoreError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError)
"""What a damaged row may raise when it is read, compared or written."""
_LOOK_AGAIN = 60.0
"""Seconds before the rows are searched again after a search found nothing."""

_BODIES_KEPT = 20_000
_ROWS_KEPT = 5_000
"""How many rows stay in memory between two transactions, at most."""


class SqlStore(ABC, Generic[C, L]):
    """What the stores of all databases share.

    Readers say it in their own way where there is one (`reading`).

    `inline=True` does every verb on the caller's thread: for tests whose time stands still while
    they wait.
    """

    shared = True

    def __init__(
        self,
        where: str,
        dialect: Dialect,
        reader: ReadConnection[C],
        *,
        clock: Callable[[], float],
        wakes: HintChannel | None = None,
        inline: bool = False,
        reading: Dialect | None = None,
    ) -> None:
        self._where = where
        self._dialect = dialect
        self._reading = dialect if reading is None else reading
        self._reader = reader
        self._clock = clock
        self._wakes = wakes
        self._dice = random.SystemRandom()
        self._newer = NewerLog()
        self._bodies: LeasedBodies = {}
        self._kept: SqlTables | None = None
        self._jumps = JumpLog(where)
        self._closed = False
        self._process = os.getpid()
        self._seen_version = 0
        self._look_again = 0.0
        self._writing = self._transactor(self._unit)
        self._inline = self._writing if inline else None
        self._threads = None if inline else ThreadPoolExecutor(1, "millpond-reader")
        self._writer = None if inline else self._new_writer()
        self._view = SqlView(self._read, clock, self._newer.log_all)

    # What each database does its own way

    @abstractmethod
    def _transactor(self, make_unit: Callable[[C], SqlTables]) -> Transactor[SqlTables, C]:
        """Return a transactor over a connection of its own."""

    def _new_writer(self) -> Writer[SqlTables]:
        """Return the writer of this process."""
        return Writer(self._writing, committed=self._committed)

    @abstractmethod
    def _connected(self) -> AbstractContextManager[C]:
        """Open a connection for slow work, and close it afterwards."""

    @abstractmethod
    def _version_of(self, connection: C) -> int:
        """Return a number that changes when another process writes."""

    @abstractmethod
    def _lend(self, connection: C) -> L:
        """Return the connection wrapper for a handler."""

    def _takes_time(self, tables: SqlTables, tasks: int | None = None) -> None:
        """Allow a transaction to be idle longer, for so many tasks."""

    @property
    def view(self) -> View:
        """The reading side."""
        return self._view

    def _unit(self, connection: C) -> SqlTables:
        """Return the unit of work for jobs: the last one, while no other process has written.

        Asked inside the transaction, so no other process can write; a connection that was opened
        again counts from another number.
        """
        kept, self._kept = self._kept, None
        version = self._version_of(connection)
        same = kept is not None and kept.connection is connection and kept.version == version
        if kept is not None and same and not self._keep_time(kept):
            return kept
        unit = self._new_unit(connection, self._bodies)
        unit.version = version
        unit.on_commit = self._keep
        return unit

    def _new_unit(self, connection: Connection, bodies: LeasedBodies | None = None) -> SqlTables:
        """Return a unit of work with the store's time."""
        unit = self._bare_unit(connection, bodies)
        if self._keep_time(unit):
            unit = self._bare_unit(connection, bodies)
        return unit

    def _bare_unit(self, connection: Connection, bodies: LeasedBodies | None = None) -> SqlTables:
        return SqlTables(connection, self._dialect, self._dice.getrandbits(64), bodies)

    # What time it is

    def _keep_time(self, unit: SqlTables) -> bool:
        """Decide the store's time and set the clock; return whether stored moments were moved.

        A clock that does not keep time for a store (one of a test) is believed as it is.
        """
        clock = self._clock
        if not isinstance(clock, ServerClock):
            return False
        known = unit.timeline._replace(latest=unit.latest)
        vouched = clock.vouched(known)
        reading = read(known, self._wall(unit), vouched)
        if reading.jump is not None:
            if self._is_doubtful():
                vouched = known.latest if vouched is None else vouched
            if reading.jump.kind == "gap" and vouched is None:
                vouched = self._vouched_by_others(unit, reading.timeline.latest)
            reading = read(known, self._wall(unit), vouched)
        now = unit.timeline = reading.timeline
        clock.set_to(now.latest, now.steps)
        if reading.jump is not None:
            self._jumps.add(reading.jump, steady())
        if not reading.step:
            return False
        self._takes_time(unit)
        unit.latest = now.latest
        move_moments(unit, reading.step)
        if reading.step < 0.0:
            repair_rows(unit.connection, self._dialect, now.latest)
        self._time_moved(cast("C", unit.connection))
        return True

    def _time_moved(self, connection: C) -> None:
        """Drop cached knowledge: the store's time was moved."""

    def _wall(self, unit: SqlTables) -> float:
        """Return the store's wall clock."""
        del unit
        clock = self._clock
        return clock.wall() if isinstance(clock, ForwardClock) else clock()

    def _is_doubtful(self) -> bool:
        """Return whether other evidence contradicts a clock that jumped."""
        clock = self._clock
        return isinstance(clock, ForwardClock) and clock.is_doubtful()

    def _vouched_by_others(self, unit: SqlTables, moment: float) -> float | None:
        """Return the time by the renewals of other live workers; None if there are none.

        Asked by a process that has just come, where the clock says that much time has passed. A
        worker that lives has renewed within its lease: if the clock says otherwise, it was set.
        """
        workers = [worker[1:4] for worker in unit.ask("workers").fetchall()]
        if any(expires_at >= moment for _, expires_at, _ in workers):
            return None
        renewed = [
            expires_at - lease
            for owner, expires_at, lease in workers
            if owner and self._is_alive(unit, owner, expires_at)
        ]
        return max(unit.latest, *renewed) if renewed else None

    def _is_alive(self, unit: SqlTables, owner: str, renewed: float) -> bool:
        """Return whether a process is alive that can have renewed until `renewed`."""
        del unit, owner, renewed
        return False

    def _keep(self, unit: SqlTables) -> None:
        """Keep a committed unit of work, unless it has grown too large."""
        self._kept = unit if unit.trimmed() <= _ROWS_KEPT else None

    # Others

    def listen(self, on_hint: Callable[[Hint], object]) -> None:
        """Call `on_hint` on this loop with the hints of other processes, from now on."""
        if self._wakes is not None:
            self._wakes.listen(on_hint, asyncio.get_running_loop())

    @property
    def receives_hints(self) -> bool:
        """Whether hints of other processes arrive at the moment."""
        return self._wakes is not None and self._wakes.receives_hints()

    def renewer(self) -> SqlRenewer:
        """Return a renewer for a thread of its own."""
        return SqlRenewer(self._transactor(self._new_unit), self._clock)

    async def changed(self) -> bool:
        """Return whether another process wrote since the last call."""
        version = await self._on_reader(self._version_of)
        before, self._seen_version = self._seen_version, version
        return version != before

    async def repair(self, *, at_any_size: bool = False) -> tuple[str, ...]:
        """Check that all rows are consistent, repair them, and return the damage found.

        The check has a connection of its own and does not stop writers. In a store of very many
        tasks it checks all rows only if `at_any_size`.
        """
        self._must_be_open()
        if self._inline is not None:
            return self._find_and_repair(at_any_size=at_any_size)
        return await in_daemon_thread(partial(self._find_and_repair, at_any_size=at_any_size))

    def _find_and_repair(self, *, at_any_size: bool = False) -> tuple[str, ...]:
        transactor = self._transactor(self._new_unit)
        try:
            with self._connected() as connection:
                wrong = find_damage(connection, self._reading, at_any_size=at_any_size)
            if wrong:
                log.error(
                    "repairing inconsistent rows in %s: %s",
                    self._where,
                    wrong[:5],
                    extra=about("store.repaired", reason="; ".join(wrong[:5])),
                )
                transactor.run(self._repair)
        except transactor.errors as error:
            raise transactor.translated(error) from error
        finally:
            transactor.close()
        return tuple(wrong)

    def _repair(self, tables: SqlTables) -> None:
        """Repair: a job for an unused unit of work."""
        self._takes_time(tables)
        repair_rows(tables.connection, self._dialect, self._clock())
        tables.read_meta()

    def _committed(self, answers: Sequence[Any]) -> float | None:
        """Notify other processes of a commit, in the writer's thread."""
        if self._wakes is None:
            return None
        return self._wakes.send(hint_of(answers) if answers else None)

    # How a verb is carried out

    def _must_be_open(self) -> None:
        if self._closed:
            message = f"the store {self._where} is closed; open a new one"
            raise StoreClosed(message)

    async def _do(self, job: Callable[[SqlTables], T]) -> T:
        self._must_be_open()
        try:
            return await self._do_once(job)
        except StoreError as error:
            if not error.of_counts:
                raise
            # A count is wrong: after a recount the same job goes through.
            log.error(  # noqa: TRY400 - the traceback says nothing about the cause
                "%s; recounting",
                error,
                extra=about("store.miscounted", reason=str(error)),
            )
            if not await self.repair() and not isinstance(error, Miscounted):
                raise
            return await self._do_once(job)

    async def _do_over_rows(self, job: Callable[[SqlTables], T], *, at_any_size: bool = True) -> T:
        """Do a job that reads rows of many tasks; search for a damaged row and repair it.

        So a damaged row stops neither its pool nor the others. A verb whose error may be the fault
        of its arguments passes at_any_size=False: searching a large store would take seconds.
        """
        try:
            return await self._do(job)
        except _OF_A_ROW as error:
            if isinstance(error, StoreError) and not (error.of_value or error.of_counts):
                raise
            now = time.monotonic()
            if now < self._look_again:
                raise
            log.error(  # noqa: TRY400 - the traceback says nothing about the cause
                "a row of %s is damaged (%r); searching for it",
                self._where,
                error,
                extra=about("store.row_damaged", reason=repr(error)),
            )
            if not await self.repair(at_any_size=at_any_size):
                # There is nothing to be found, and looking takes long.
                self._look_again = now + _LOOK_AGAIN
                raise
        return await self._do(job)

    async def _do_once(self, job: Callable[[SqlTables], T]) -> T:
        if self._writer is not None:
            answer = await self._writer.do(job)
        else:
            answer = self._do_inline(job)
        if self._writing.miscounted:
            self._writing.miscounted = False
            await self.repair()
        return answer

    def _do_inline(self, job: Callable[[SqlTables], T]) -> T:
        assert self._inline is not None  # noqa: S101 - there is one where there is no writer
        return self._inline.once(job)

    async def _read(self, question: Callable[[SqlTables], object]) -> object:
        return await self._on_reader(partial(self._answer, question))

    def _answer(self, question: Callable[[SqlTables], T], connection: C) -> T:
        """Answer a question from one snapshot; its unit of work is discarded."""
        for statement in self._dialect.begin_reading:
            connection.execute(statement)
        try:
            return question(SqlTables(connection, self._reading, 0, readonly=True))
        finally:
            if connection.in_transaction:  # some errors end a transaction by themselves
                connection.execute("ROLLBACK")

    async def _on_reader(self, question: Callable[[C], T]) -> T:
        """Ask the reading connection, in its thread."""
        self._must_be_open()
        if self._threads is None:
            return self._reader.ask(question)
        must_not_be_forked(self._process, self._where)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._reader.ask, question)

    def _moment(self, now: float | None) -> float:
        return self._clock() if now is None else now

    # The verbs

    async def submit(
        self, batches: Sequence[Batch], *, now: float | None = None, entropy: int | None = None
    ) -> SubmitAnswer:
        """Accept batches, each as a whole or not at all where its pool's policy says so."""

        def job(tables: SqlTables) -> SubmitAnswer:
            new = [one for batch in batches for one in batch.tasks]
            self._takes_time(tables, len(new))
            expect_submit(tables, new)
            return verbs.submit(tables, batches, self._moment(now), entropy)

        return await self._do(job)

    async def lease(
        self, ask: LeaseRequest, *, now: float | None = None, entropy: int | None = None
    ) -> LeaseAnswer:
        """Give a worker the next tasks of a pool, within every limit in force."""

        def job(tables: SqlTables) -> LeaseAnswer:
            if self._newer.is_newer(tables, ask.pool):
                return LeaseAnswer()
            expect_lease(tables, ask)
            answer = verbs.lease(tables, ask, self._moment(now), entropy)
            self._remember(tables, answer)
            return answer

        return await self._do_over_rows(job)

    async def renew(
        self, worker: str, lease: float, *, now: float | None = None, entropy: int | None = None
    ) -> RenewAnswer:
        """Renew all leases of a worker for `lease` seconds."""
        return await self._do_over_rows(
            lambda tables: verbs.renew(tables, worker, lease, self._moment(now), entropy)
        )

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        then: LeaseRequest | None = None,
        now: float | None = None,
        entropy: int | None = None,
    ) -> SettleAnswer:
        """End attempts, each only with its current fence, and lease the next if asked."""

        def job(tables: SqlTables) -> SettleAnswer:
            named = [one.fence.task for one in settlements]
            named += [one.successor.task for one in settlements if one.successor is not None]
            expect_ends(tables, named)
            self._newer.log_all(tables)
            ask = None if then is None or self._newer.is_newer(tables, then.pool) else then
            if ask is not None:
                expect_lease(tables, ask, leaving=len(settlements))
            answer = verbs.settle(tables, settlements, self._moment(now), entropy, then=ask)
            if then is not None and ask is None:
                answer = msgspec.structs.replace(answer, lease=LeaseAnswer())
            # Also what is tried again: that may happen in another process.
            self._forget([one.fence.task for one in settlements])
            self._forget(answer.ended)
            if answer.lease is not None:
                self._remember(tables, answer.lease)
            return answer

        return await self._do_over_rows(job, at_any_size=False)

    # Together with what users keep in the same database

    def _submit_over(
        self,
        connection: Connection,
        batches: Sequence[Batch],
        declare: Sequence[PoolSpec],
        now: float | None,
        entropy: int | None,
    ) -> SubmitAnswer:
        """Accept batches inside the open transaction of a caller's connection."""
        unit = self._new_unit(connection)
        for spec in declare:
            verbs.control(unit, Declare(spec), self._moment(now), entropy)
        answer = verbs.submit(unit, batches, self._moment(now), entropy)
        unit.write()
        return answer

    async def settle_with(
        self,
        settlement: Settlement,
        write: Callable[[L], T],
        *,
        now: float | None = None,
        entropy: int | None = None,
    ) -> tuple[SettleAnswer, T | None]:
        """Settle an attempt in one transaction with the writes of `write`; undo both if it raises.

        Without the current fence it is not called. It may be called again where a transaction
        failed, and nothing of the call before is left then.
        """

        def job(tables: SqlTables) -> WrittenWith[T]:
            written = WrittenWith[T]()
            if holds(tables, settlement.fence):
                written.do(tables.connection, self._lend(cast("C", tables.connection)), write)
            if written.error is None:
                written.answer = verbs.settle(tables, (settlement,), self._moment(now), entropy)
                self._forget(written.answer.ended)
            return written

        written = await self._do(job)
        if written.error is not None:
            raise written.error
        assert written.answer is not None  # noqa: S101 - nothing was raised
        return written.answer, written.value

    def handler_transaction(self, limit: float) -> HandlerTransaction[L]:
        """Return a transaction for a handler, not begun yet, that may last `limit` seconds."""
        self._must_be_open()
        transactor = self._transactor(self._new_unit)
        return HandlerTransaction(transactor, self._lend, self._clock, limit)

    async def announce(self, answer: Any) -> None:  # noqa: ANN401 - the answer of any verb
        """Notify other processes of a commit over another connection."""

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
        """Apply what only time causes: lose expired leases, fail expired and long-parked tasks."""

        def job(tables: SqlTables) -> RecoverAnswer:
            moment = self._moment(now)
            answer = verbs.recover(tables, limit, moment, entropy, generation=generation)
            self._newer.log_all(tables)
            return answer

        return await self._do_over_rows(job)

    async def control(
        self, command: Command, *, now: float | None = None, entropy: int | None = None
    ) -> ControlAnswer:
        """Carry out a command."""

        def job(tables: SqlTables) -> ControlAnswer:
            if isinstance(command, CancelRun | Redrive):
                self._takes_time(tables)
            if isinstance(command, Declare | DeclareBudget) and self._newer.declares_newer(
                tables, command
            ):
                return ControlAnswer()
            carried_out: Command = command
            if isinstance(command, Prune) and now is None:
                carried_out = without_doubt(command, tables.timeline)
            return verbs.control(tables, carried_out, self._moment(now), entropy)

        return await self._do(job)

    async def close(self) -> None:
        """Close the store; safe twice."""
        if self._closed:
            return
        self._closed = True
        if self._inline is not None:
            self._inline.close()
        if self._writer is not None:
            await off_the_loop(None, self._writer.close)
        if self._wakes is not None:
            self._wakes.close()
        if self._threads is not None:
            # Running reads end first; then the connection is unused.
            await off_the_loop(self._threads, self._reader.close)
            self._threads.shutdown(wait=False)
        else:
            self._reader.close()

    def _forget(self, ended: Sequence[int]) -> None:
        """Drop the bodies of tasks that are no longer leased."""
        for identifier in ended:
            self._bodies.pop(identifier, None)

    def _remember(self, tables: SqlTables, answer: LeaseAnswer) -> None:
        """Keep the bodies of leased tasks for their settlement."""
        if len(self._bodies) > _BODIES_KEPT:
            self._bodies.clear()
        for one in (*answer.leased, *answer.claimed):
            task = tables.tasks.peek(one.fence.task)
            if task is not None:
                self._bodies[task.new.id] = (task.token, task.new)
