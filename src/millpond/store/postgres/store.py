"""The PostgreSQL store: what differs from other SQL stores."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from contextlib import closing
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import psycopg

from millpond.core.control import ClaimLeadership, Declare
from millpond.core.settle import Settled
from millpond.errors import MillpondError, MissingRights
from millpond.store.clock import ServerClock
from millpond.store.postgres.caller_transaction import CallerTransactions, adapter_of
from millpond.store.postgres.connect import (
    PATIENCE,
    connect,
    is_pooled,
    may_flush,
    server_time,
    settings,
    settings_of,
)
from millpond.store.postgres.detours import Detours
from millpond.store.postgres.dialect import dialect_of, reading_of
from millpond.store.postgres.encoding import listed, sent
from millpond.store.postgres.errors import is_gone, translated
from millpond.store.postgres.fast_path_store import FastPathStore, FastPathTransactor
from millpond.store.postgres.handler_connection import PostgresHandlerConnection
from millpond.store.postgres.handler_transaction import (
    HandlerTransactor,
    PostgresHandlerTransaction,
    SpareConnections,
    settled_with,
)
from millpond.store.postgres.inbox import Inbox
from millpond.store.postgres.lock import SMALL, of_waiters
from millpond.store.postgres.migrate import migrate
from millpond.store.postgres.notify import PostgresHintChannel
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.presence import presence_of
from millpond.store.postgres.transactions import PostgresTransactor, dispose
from millpond.store.postgres.unit_of_work import PostgresTables
from millpond.store.postgres.view import PostgresView
from millpond.store.postgres.worker_session import PostgresWorkerSession
from millpond.store.protocol import ControlAnswer
from millpond.store.shared import SharedStore
from millpond.store.sql.reader import ReadConnection
from millpond.store.sql.threads import in_daemon_thread
from millpond.store.sql.writer import must_not_be_forked
from millpond.store.sql.written_with import hint_of
from millpond.store.verbs import api as verbs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Self

    from millpond.core.control import Command
    from millpond.core.settle import Settlement
    from millpond.core.spec import PoolSpec
    from millpond.store.postgres.caller_transaction import DriverAdapter
    from millpond.store.postgres.connect import Connection as DriverConnection
    from millpond.store.postgres.connect import Durability, Patience
    from millpond.store.postgres.url import Address
    from millpond.store.protocol import Batch, Hint, SettleAnswer, SubmitAnswer
    from millpond.store.shared import WorkerSession
    from millpond.store.sql.codec import LeasedBodies
    from millpond.store.sql.database import Connection
    from millpond.store.sql.unit_of_work import SqlTables

_LONGEST_PER_TASK = 0.0005
"""Seconds per task that a slow machine needs to encode a submit."""

COPIED_FROM, COPIED_UPTO = 1 << 16, 10_000
"""The bytes from which a small table is copied without dead rows, and its most rows."""

T = TypeVar("T")

_LONGEST = 60.0
"""Seconds that a handler's `ctx.commit` may take."""


class PostgresStore(FastPathStore, SharedStore):
    """One schema of a database that many processes of many machines share.

    The server's clock is the time of all of them, unless another `clock` is given.
    """

    def __init__(
        self,
        address: Address,
        *,
        durability: Durability = "full",
        may_migrate: bool = True,
        clock: Callable[[], float] | None = None,
        owner: str = "",
        patience: Patience = PATIENCE,
        inline: bool = False,
    ) -> None:
        self._address = address
        self._durability = durability
        self._patience = patience
        self._schema = dialect_of(address.schema)
        self.detours = Detours()
        self._audit_due: deque[tuple[float, float]] = deque()
        self._skips, self._refusals, self._reasons, self._notified = {}, {}, {}, set()
        self._simple = {}
        self._simple_steps = {}
        self._hinted, self._waiters = [], sent(of_waiters(address.schema))
        self._unanswered = {}
        clock = ServerClock() if clock is None else clock
        self._set_clock = getattr(clock, "set_to", None)
        self._inbox = Inbox(clock, self._note_moved)
        self._lacking: MissingRights | None = None
        """Why the store is read-only; None if it is writable."""
        self._moved: list[SubmitAnswer] = []
        """Answers of inbox moves that were not announced yet."""
        self._on_hint: Callable[[Hint], object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._joiner = CallerTransactions(address, self._identity)
        self._known_identity = ""
        self._spares = SpareConnections(self._open)
        super().__init__(
            str(address),
            self._schema,
            ReadConnection(
                self._first(may_migrate=may_migrate),
                self._open,
                dispose=dispose,
                is_over=attrgetter("closed"),
                errors=(psycopg.Error,),
                is_lost=is_gone,
                translated=partial(translated, address=address),
            ),
            clock=clock,
            wakes=None
            if inline or not owner
            else PostgresHintChannel(address, owner, self._notifying),
            inline=inline,
            reading=reading_of(address.schema),
        )
        self.presence = presence_of(self._known_identity) if owner and not inline else None
        """The live processes of this host; dead ones of other hosts are found by their leases."""
        self._view = PostgresView(self._read, clock, self._newer.log_all, self._anything_queued)

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        owner: str = "",
        durability: Durability = "full",
        migrate: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> Self:
        """Connect in another thread: the server may be far away."""
        made = partial(
            cls, address, durability=durability, may_migrate=migrate, clock=clock, owner=owner
        )
        return await asyncio.get_running_loop().run_in_executor(None, made)

    def _first(self, *, may_migrate: bool) -> PostgresConnection:
        """Return the first connection, which checked the tables."""
        connection = self._open()
        try:
            self._look_at_tables(connection.driver, may_migrate=may_migrate)
            if self._set_clock is not None:
                self._set_clock(server_time(connection.driver))
            self._recheck_inbox(connection)
            self._known_identity = self._identity_by(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _recheck_inbox(self, connection: PostgresConnection) -> None:
        """Make sure that no inbox row is skipped after the tables came from another server."""
        row = connection.execute(self._schema.sql["inbox_foreign"]).fetchone()
        if row is not None and row[0] and self._lacking is None:
            connection.execute(self._schema.sql["inbox_unseen"])
            connection.sync()

    def _look_at_tables(self, driver: DriverConnection, *, may_migrate: bool) -> None:
        """Migrate the tables; a read-only user is refused at the first write."""
        waited = self._patience.lock
        try:
            migrate(driver, self._address, allowed=may_migrate, patience=waited)
        except MissingRights as lacking:
            try:
                migrate(driver, self._address, allowed=False, to_read=True)
            except MillpondError:
                raise lacking from None
            self._lacking = lacking

    def _open_to_write(self, patience: Patience) -> PostgresConnection:
        if self._lacking is not None:
            raise MissingRights(self._lacking.message, **vars(self._lacking))
        connection = self._open(patience)
        try:
            self._look_whose_server_it_is(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _look_whose_server_it_is(self, connection: PostgresConnection) -> None:
        """Check whether another server, with restored tables, answers at this address."""
        self._recheck_inbox(connection)
        self._known_identity = self._identity_by(connection)

    def _open(self, patience: Patience | None = None) -> PostgresConnection:
        patience = patience or self._patience
        durability = self._durability
        driver = connect(self._address, durability=durability, patience=patience, flushes=True)
        settings = None
        if is_pooled(driver):
            settings = settings_of(driver, durability, patience, flushes=True)
        return PostgresConnection(
            driver,
            self._schema.many,
            settings=settings,
            silence=patience.silence,
            flushes=durability == "full" and may_flush(driver),
        )

    def _notifying(self) -> DriverConnection | None:
        """Return the writing connection: it also notifies."""
        assert isinstance(self._writing, PostgresTransactor)  # noqa: S101 - made below
        return self._writing.driver

    # What PostgreSQL does its own way

    def _transactor(
        self,
        make_unit: Callable[[PostgresConnection], SqlTables],
    ) -> PostgresTransactor[SqlTables]:
        patience = msgspec.structs.replace(self._patience, idle=self._patience.turn)
        return FastPathTransactor(
            self._address,
            self._schema,
            partial(self._open_to_write, patience),
            make_unit,
            # Those that do one thing only leave it to the writer.
            move=self._inbox.move if make_unit == self._unit else None,
            patience=self._patience.lock,
        )

    def _takes_time(self, tables: SqlTables, tasks: int | None = None) -> None:
        seconds = self._patience.idle if tasks is None else tasks * _LONGEST_PER_TASK
        if seconds > self._patience.turn and isinstance(tables.connection, PostgresConnection):
            tables.connection.may_think(seconds)

    def _connected(self) -> AbstractContextManager[PostgresConnection]:
        return closing(self._open())

    def _version_of(self, connection: PostgresConnection) -> int:
        if connection.begun is not None and connection.begun.version is not None:
            return connection.begun.version
        row = connection.execute(self._schema.sql["version"]).fetchone()
        return -1 if row is None else row[0]

    def _wall(self, unit: SqlTables) -> float:
        """Return the server's clock at the start of this transaction."""
        connection = unit.connection
        if isinstance(connection, PostgresConnection) and connection.begun is not None:
            return connection.begun.now
        return self._clock()

    def _is_alive(self, unit: SqlTables, owner: str, renewed: float) -> bool:
        """Return whether its lock file is held, or an older session of it still renews.

        Sessions of a pooler outlive the processes that used them, so they prove nothing.
        """
        if self.presence is not None and self.presence.is_alive(owner):
            return True
        connection = unit.connection
        if not isinstance(connection, PostgresConnection) or is_pooled(connection.driver):
            return False
        ((found,),) = unit.ask("renewed_since", (renewed + unit.timeline.behind,)).fetchall()
        return bool(found)

    @property
    def session(self) -> Callable[[str], WorkerSession] | None:
        """Makes the session of a process; None where only leases show who is alive."""
        where = self._address.listener
        if where is None or self._inline is not None or self._lacking is not None:
            return None
        return partial(PostgresWorkerSession, where, self._address.schema)

    def _note_moved(self, answer: SubmitAnswer) -> None:
        self._moved.append(answer)

    def _time_moved(self, connection: PostgresConnection) -> None:
        connection.foresee_nothing()
        if connection.begun is not None:
            connection.begun = connection.begun._replace(meta=None, folds=True)

    def _bare_unit(self, connection: Connection, bodies: LeasedBodies | None = None) -> SqlTables:
        begun = None
        if isinstance(connection, PostgresConnection):
            begun = connection.begun
            connection.note_reads()
        unit = PostgresTables(
            connection,
            self._schema,
            self._dice.getrandbits(64),
            bodies,
            meta=None if begun is None else begun.meta,
        )
        unit.folds = begun is None or begun.folds
        unit.detours = self.detours
        unit.audit_due = self._audit_due
        return unit

    def _repair(self, tables: SqlTables) -> None:
        tables.ask("unfold", (None,))
        super()._repair(tables)

    def _keep(self, unit: SqlTables) -> None:
        if unit.written:
            # It has counted the version up itself: that is not the write of another.
            unit.version += 1
        super()._keep(unit)

    def _lend(self, connection: PostgresConnection) -> PostgresHandlerConnection:
        return PostgresHandlerConnection(connection)

    # Transactions of others

    def submit_within(
        self,
        connection: object,
        batches: Sequence[Batch],
        *,
        declare: Sequence[PoolSpec] = (),
    ) -> tuple[SubmitAnswer, DriverAdapter] | Awaitable[tuple[SubmitAnswer, DriverAdapter]]:
        """Submit inside the open transaction of a caller's connection.

        In the caller's thread; to be awaited where the connection is asynchronous. Pools that the
        store may not know are declared first, in a transaction of their own. The adapter that it
        also returns says when the caller's transaction is over.
        """
        self._must_be_open()
        must_not_be_forked(self._process, self._where)
        way = adapter_of(connection, self._address)
        for spec in declare:
            self._do_now(partial(self._declare, spec))
        if way.waits:
            return self._submitted(way, batches)
        return self._joiner.submit(way, batches), way

    async def _submitted(
        self, way: DriverAdapter, batches: Sequence[Batch]
    ) -> tuple[SubmitAnswer, DriverAdapter]:
        return await self._joiner.submit_async(way, batches), way

    def _declare(self, spec: PoolSpec, tables: SqlTables) -> object:
        return verbs.control(tables, Declare(spec), self._clock())

    def _do_now(self, job: Callable[[SqlTables], T]) -> T:
        """Do a job and wait for it, on any thread."""
        return self._do_inline(job) if self._writer is None else self._writer.do_now(job)

    def _identity(self) -> str:
        """Return the unique id of the store."""
        if not self._known_identity:
            with self._connected() as connection:
                self._known_identity = self._identity_by(connection)
        return self._known_identity

    def _identity_by(self, connection: PostgresConnection) -> str:
        row = connection.execute(self._schema.sql["store_identity"]).fetchone()
        return "" if row is None else row[0]

    # What they have committed

    def listen(self, on_hint: Callable[[Hint], object]) -> None:
        """Call `on_hint` on this loop with the hints of other processes, from now on."""
        self._on_hint, self._loop = on_hint, asyncio.get_running_loop()
        super().listen(on_hint)

    def await_ends(self, *, wanted: bool) -> asyncio.Future[None] | None:
        """Ask other processes for hints of the ends of tasks, or no longer; on the loop."""
        if not isinstance(self._wakes, PostgresHintChannel):
            return None
        return self._wakes.await_ends(wanted=wanted)

    def _committed(self, answers: Sequence[Any]) -> float | None:
        moved, self._moved = self._moved, []
        if moved:
            hint = hint_of(moved)
            if self._loop is not None and self._on_hint is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._on_hint, hint)
            # That there is something to start the others have heard from those who submitted it.
            answers = [*answers, msgspec.structs.replace(hint, wakes=())]
        return super()._committed(answers)

    async def control(
        self, command: Command, *, now: float | None = None, entropy: int | None = None
    ) -> ControlAnswer:
        """Carry out a command; a claim of leadership first reads whether another process leads."""
        if isinstance(command, ClaimLeadership):
            claim = (command.owner, self._step_moment(now))
            led = await self._on_reader(partial(self._led_by_another, claim))
            if led is not None:
                return ControlAnswer(revision=led)
        answer = await super().control(command, now=now, entropy=entropy)
        while self._audit_due:
            # Without the lock of writers: it may wait for a reader, if only for a moment.
            await self._on_reader(partial(self._turned_audit, self._audit_due.popleft()))
        return answer

    def _turned_audit(self, moments: tuple[float, float], connection: PostgresConnection) -> None:
        """Empty old parts of the audit, where this role may; without, its rows are deleted."""
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            connection.execute(self._schema.sql["turn_audit"], moments).fetchall()

    def _led_by_another(
        self, claim: tuple[str, float | None], connection: PostgresConnection
    ) -> int | None:
        row = connection.execute(self._schema.sql["led"], claim).fetchone()
        return None if row is None else row[0]

    async def changed(self) -> bool:
        """Return whether another process wrote or submitted since the last call."""
        version, inbox = await self._on_reader(self._looked)
        before, self._seen_version = self._seen_version, version
        return inbox or version != before

    def _looked(self, connection: PostgresConnection) -> tuple[int, bool]:
        row = connection.execute(self._schema.sql["version"]).fetchone()
        return (-1, False) if row is None else (row[0], row[1])

    async def compact(self, *, least: int = COPIED_FROM) -> tuple[str, ...]:
        """Copy small tables of at least so many bytes that mostly hold dead rows; return which."""
        return await self._on_reader(partial(self._compacted, least))

    def _compacted(self, least: int, connection: PostgresConnection) -> tuple[str, ...]:
        limits = (listed(SMALL), least, COPIED_UPTO)
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            rows = connection.execute(self._schema.sql["compact"], limits).fetchall()
            return tuple([name for (name,) in rows])
        return ()

    async def impossible_counts(self) -> tuple[str, ...]:
        """Return which counts are impossible; reads one row per pool and key."""
        return await self._on_reader(self._looked_at_counts)

    def _looked_at_counts(self, connection: PostgresConnection) -> tuple[str, ...]:
        rows = connection.execute(self._schema.sql["miscounted"]).fetchall()
        return tuple([row[0] for row in rows])

    async def _anything_queued(self) -> bool:
        return await self._on_reader(self._looked_for_queued)

    def _looked_for_queued(self, connection: PostgresConnection) -> bool:
        row = connection.execute(self._schema.sql["anything_queued"]).fetchone()
        return row is None or bool(row[0])

    async def _read(self, question: Callable[[SqlTables], object]) -> object:
        """Answer a question; tasks in the inbox are moved into the queue first."""
        answer, first, last = await self._on_reader(partial(self._answered, question))
        moving = last
        while first is not None and first <= moving and self._lacking is None:
            await self._do(_nothing)
            before = first
            answer, first, _ = await self._on_reader(partial(self._answered, question))
            if first == before:
                break
        return answer

    def _answered(
        self, question: Callable[[SqlTables], T], connection: PostgresConnection
    ) -> tuple[T, int | None, int]:
        """Answer a question, and whether the inbox had tasks."""

        def both(tables: SqlTables) -> tuple[T, int | None, int]:
            # It goes to the server with what is asked next.
            span = tables.ask("inbox_span")
            answer = question(tables)
            first, last = span.fetchone()
            return answer, first, last or 0

        return self._answer(both, connection)

    # Transactions of handlers

    def handler_transaction(self, limit: float) -> PostgresHandlerTransaction:
        """Return an unbegun transaction for a handler, with a limit in seconds."""
        self._must_be_open()
        transactor = HandlerTransactor(
            self._address,
            self._schema,
            self._spares,
            self._new_unit,
            settings=settings(self._durability, self._patience),
            patience=self._patience.lock,
        )
        return PostgresHandlerTransaction(
            transactor, reading_of(self._address.schema), self._clock, limit
        )

    async def settle_with(
        self,
        settlement: Settlement,
        write: Callable[[PostgresHandlerConnection], T],
        *,
        now: float | None = None,
        entropy: int | None = None,
    ) -> tuple[SettleAnswer, T | None]:
        """Settle an attempt in one transaction with the writes of `write`; undo both if it raises.

        It has a connection of its own: while it waits, no other caller waits for it.
        """
        del now, entropy
        work = partial(settled_with, self.handler_transaction(_LONGEST), settlement, write)
        answer, value = work() if self._inline is not None else await in_daemon_thread(work)
        if answer.settled[0] is Settled.APPLIED:
            await self.announce(answer)
        return answer, value

    async def close(self) -> None:
        """Close the store; safe twice."""
        await super().close()
        self._spares.close()


def _nothing(tables: SqlTables) -> None:
    """Do nothing: every write transaction moves the inbox first."""
