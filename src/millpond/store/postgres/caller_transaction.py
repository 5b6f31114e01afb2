"""Joining: to submit inside a transaction that somebody else has open on the store's database.

It is done over his connection, whatever his driver: he is asked for the rows of two statements that
take a text and give a text. What he commits is there, what he rolls back never was, and none of our
locks is his. Nothing of a driver is imported: what it hands out is known by where it comes from.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Generator
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

import msgspec
import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from millpond.core.admit import Reason, Refusal
from millpond.core.lifecycle import Status
from millpond.core.plan import Wake
from millpond.errors import (
    ConfigError,
    ForeignConnection,
    MillpondError,
    NewerPool,
    NotInTransaction,
)
from millpond.store.postgres.errors import aborted, may_only_be_read, missing_rights, of_driver
from millpond.store.postgres.quoting import quoted
from millpond.store.postgres.roles import Role, grants
from millpond.store.protocol import Admission, BatchAnswer, SubmitAnswer
from millpond.store.sql.codec import body_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.core.task import NewTask
    from millpond.store.postgres.url import Address
    from millpond.store.protocol import Batch

T = TypeVar("T")


class Statement(NamedTuple):
    """A statement with one argument, which each driver has its own sign for."""

    before: str
    after: str

    def with_sign(self, sign: str) -> str:
        """Return it with the sign in the place of the argument."""
        return f"{self.before}{sign}{self.after}"


Steps: TypeAlias = Generator[tuple[Statement, str], Any, T]
"""Statements with their argument, each of which is answered by a text; in the end, what came of
them. So what is asked is written down once, whoever has to wait for the answers."""

_LOOK = Statement(
    """\
SELECT CAST(json_build_array(
    n.oid IS NOT NULL,
    coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
    coalesce((SELECT true FROM pg_catalog.pg_proc AS f
               WHERE f.pronamespace = n.oid AND f.proname = 'millpond_enter' LIMIT 1), false),
    coalesce((SELECT has_function_privilege(f.oid, 'EXECUTE') FROM pg_catalog.pg_proc AS f
               WHERE f.pronamespace = n.oid AND f.proname = 'millpond_enter' LIMIT 1), false),
    CAST(current_user AS text), CAST(current_database() AS text)) AS text)
  FROM (SELECT 1) AS one LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = CAST(""",
    " AS text)",
)
"""What is there, and what may be done with it; it cannot fail, which would spoil a transaction."""


class DriverAdapter:
    """A connection of somebody's, as far as it is needed here; equal where the connection is."""

    waits: ClassVar[bool] = False
    """Whether its answers are waited for on an event loop."""
    announces: ClassVar[bool] = True
    """Other processes hear of what it commits by the commit itself."""

    def __init__(self, given: Any) -> None:  # noqa: ANN401 - of any driver
        self.given = given
        self.driver = given
        """The connection that is used again and again, if that is another."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DriverAdapter) and self.given is other.given

    def __hash__(self) -> int:
        return id(self.given)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, the same or by now another."""
        raise NotImplementedError

    def state(self) -> str:
        """Return "open", or what else it is: "closed", "failed" or "none"; may be awaitable."""
        raise NotImplementedError

    def ask(self, statement: Statement, argument: str) -> Any:  # noqa: ANN401 - a text, or to be awaited
        """Return the one text that a statement gives for a text."""
        raise NotImplementedError


class PsycopgAdapter(DriverAdapter):
    """psycopg's connection; Django's over it, too."""

    given: psycopg.Connection[Any]

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.given.pgconn.transaction_status in (
            TransactionStatus.INTRANS,
            TransactionStatus.INERROR,
            TransactionStatus.ACTIVE,
        )

    def state(self) -> str:
        """Return what can be done with it."""
        return _state_of_psycopg(self.given)

    def ask(self, statement: Statement, argument: str) -> Any:  # noqa: ANN401 - a text
        """Ask over a cursor of our own: its owner's may give rows of any kind."""
        with psycopg.Cursor(self.given, row_factory=tuple_row) as cursor:
            asked = statement.with_sign("%s").encode()
            row = cursor.execute(asked, [argument], prepare=False).fetchone()
        return _text(row)


class AsyncPsycopgAdapter(DriverAdapter):
    """psycopg's asynchronous connection."""

    given: psycopg.AsyncConnection[Any]
    waits = True
    in_transaction = PsycopgAdapter.in_transaction

    def state(self) -> str:
        """Return what can be done with it."""
        return _state_of_psycopg(self.given)

    async def ask(self, statement: Statement, argument: str) -> Any:  # noqa: ANN401 - a text
        """Ask over a cursor of our own."""
        async with psycopg.AsyncCursor(self.given, row_factory=tuple_row) as cursor:
            asked = statement.with_sign("%s").encode()
            await cursor.execute(asked, [argument], prepare=False)
            row = await cursor.fetchone()
        return _text(row)


def _state_of_psycopg(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> str:
    if connection.closed:
        return "closed"
    status = connection.pgconn.transaction_status
    if status == TransactionStatus.INERROR:
        return "failed"
    # Without autocommit the driver begins at the first statement, and this may be it.
    return "none" if status == TransactionStatus.IDLE and connection.autocommit else "open"


def _text(row: Sequence[Any] | None) -> Any:  # noqa: ANN401 - a text, or bytes in an odd encoding
    assert row is not None  # noqa: S101 - the statements give one row
    return row[0]


class AsyncpgAdapter(DriverAdapter):
    """asyncpg's connection, or one lent by its pool."""

    waits = True

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return bool(self.given.is_in_transaction())

    def state(self) -> str:
        """Return what can be done with it."""
        if self.given.is_closed():
            return "closed"
        return "open" if self.given.is_in_transaction() else "none"

    async def ask(self, statement: Statement, argument: str) -> Any:  # noqa: ANN401 - a text
        """Ask."""
        return await self.given.fetchval(statement.with_sign("$1"), argument)


class SqlAlchemyAdapter(DriverAdapter):
    """SQLAlchemy's Connection or Session; whatever driver it has."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, as far as SQLAlchemy knows."""
        return bool(self.given.in_transaction())

    def state(self) -> str:
        """Return what can be done with it."""
        if getattr(self.given, "closed", False):
            return "closed"
        own = self.given.connection
        pooled = own().connection if callable(own) else own
        self.driver = pooled.driver_connection
        return _state_of_dbapi(pooled)

    def ask(self, statement: Statement, argument: str) -> Any:  # noqa: ANN401 - a text
        """Ask."""
        asked, arguments = _alchemical(statement, argument)
        return self.given.execute(asked, arguments).scalar_one()


class AsyncSqlAlchemyAdapter(DriverAdapter):
    """SQLAlchemy's AsyncConnection or AsyncSession."""

    waits = True

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, as far as SQLAlchemy knows."""
        return bool(self.given.in_transaction())

    async def state(self) -> str:  # type: ignore[override]
        """Return what can be done with it."""
        if getattr(self.given, "closed", False):
            return "closed"
        # A session has a connection when it is asked for one; a connection is one.
        own = self.given if hasattr(self.given, "sync_connection") else None
        if own is None:
            own = await self.given.connection()
        pooled = own.sync_connection.connection
        self.driver = pooled.driver_connection
        return _state_of_dbapi(pooled)

    async def ask(self, statement: Statement, argument: str) -> Any:  # noqa: ANN401 - a text
        """Ask."""
        asked, arguments = _alchemical(statement, argument)
        return (await self.given.execute(asked, arguments)).scalar_one()


def _state_of_dbapi(pooled: Any) -> str:  # noqa: ANN401 - SQLAlchemy's, around one of any driver
    return "none" if getattr(pooled.dbapi_connection, "autocommit", False) is True else "open"


def _alchemical(statement: Statement, argument: str) -> tuple[Any, dict[str, str]]:
    """Return a statement as SQLAlchemy wants it: there a : begins the name of an argument."""
    from sqlalchemy import text  # noqa: PLC0415 - who gave us its connection has loaded it

    before, after = (part.replace(":", "\\:") for part in statement)
    return text(Statement(before, after).with_sign(":given")), {"given": argument}


def adapter_of(given: object, address: Address) -> DriverAdapter:
    """Return how a connection is used; ForeignConnection if it is of a kind that is not known."""
    if isinstance(given, psycopg.Connection):
        return PsycopgAdapter(given)
    if isinstance(given, psycopg.AsyncConnection):
        return AsyncPsycopgAdapter(given)
    origins = {kind.__module__.partition(".")[0] for kind in type(given).__mro__}
    if "asyncpg" in origins and hasattr(given, "is_in_transaction"):
        return AsyncpgAdapter(given)
    if "sqlalchemy" in origins:
        names = {kind.__name__ for kind in type(given).__mro__}
        if names & {"AsyncConnection", "AsyncSession", "async_scoped_session"}:
            return AsyncSqlAlchemyAdapter(given)
        if names & {"Connection", "Session", "scoped_session"}:
            return SqlAlchemyAdapter(given)
    if "django" in origins:
        return _adapter_of_django(given, address)
    raise _unknown(given, address)


def _adapter_of_django(given: Any, address: Address) -> DriverAdapter:  # noqa: ANN401 - django's connection
    if getattr(given, "vendor", None) != "postgresql":
        raise _unknown(given, address)
    if given.connection is None:
        raise _not_in_transaction(address)
    if given.needs_rollback:
        raise aborted(address)
    if not isinstance(given.connection, psycopg.Connection):
        raise _unknown(given.connection, address)
    return PsycopgAdapter(given.connection)


def _unknown(given: object, address: Address) -> ForeignConnection:
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    return ForeignConnection(
        f"connection={kind} cannot join a transaction on {address}: give one of psycopg (sync or "
        "async), asyncpg, SQLAlchemy (a connection or session) or Django over psycopg; over any "
        f"other, call the function {quoted(address.schema)}.submit(...) in SQL",
        path=str(address),
        found=kind,
    )


def _not_in_transaction(address: Address) -> NotInTransaction:
    return NotInTransaction(
        f"connection= joins an open transaction on {address}, and there is none: begin one with "
        "`connection.transaction()`, `engine.begin()` or `transaction.atomic()`, or submit without "
        "connection=",
        path=str(address),
    )


# What is asked


class CallerTransactions:
    """Submits over connections of others to one store."""

    def __init__(self, address: Address, identity: Callable[[], str]) -> None:
        self._address = address
        self._identity = identity
        self._enter = Statement(
            f"SELECT {quoted(address.schema)}.millpond_enter(CAST(", " AS text))"
        )
        self._looked_at: WeakSet[Any] = WeakSet()
        """Connections of which it is known that the store is there, and may be used."""

    def submit(self, way: DriverAdapter, batches: Sequence[Batch]) -> SubmitAnswer:
        """Submit inside the transaction that is open."""
        steps = self._steps(way, batches)
        try:
            self._must_be_open(way.state())
            statement, argument = next(steps)
            while True:
                statement, argument = steps.send(way.ask(statement, argument))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        except MillpondError:
            raise
        except Exception as error:
            raise self._explained(error) from error

    async def submitted(self, way: DriverAdapter, batches: Sequence[Batch]) -> SubmitAnswer:
        """Submit over a connection whose answers are waited for."""
        steps = self._steps(way, batches)
        try:
            state: Any = way.state()
            self._must_be_open(await state if isawaitable(state) else state)
            statement, argument = next(steps)
            while True:
                statement, argument = steps.send(await way.ask(statement, argument))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        except MillpondError:
            raise
        except Exception as error:
            raise self._explained(error) from error

    def _must_be_open(self, state: str) -> None:
        if state == "closed":
            raise self._closed("it is closed")
        if state == "failed":
            raise aborted(self._address)
        if state == "none":
            raise _not_in_transaction(self._address)

    def _explained(self, error: Exception) -> MillpondError:
        return of_driver(error, self._address) or self._closed(str(error))

    def _closed(self, told: str) -> ForeignConnection:
        return ForeignConnection(
            f"the connection cannot be used ({' '.join(told.split())}): submit while it is open, "
            "inside a transaction, and while nothing else is asked over it",
            path=str(self._address),
            found="closed, or in use",
        )

    def _steps(self, way: DriverAdapter, batches: Sequence[Batch]) -> Steps[SubmitAnswer]:
        if not self._is_known(way):
            self._look_at((yield _LOOK, self._address.schema))
            self._remember(way)
        answers = []
        for batch in batches:
            if batch.tasks:
                told = yield self._enter, _told_of(batch, self._identity())
                answers.append(self._answer(batch, msgspec.json.decode(told, type=_Answer)))
        # What is there wakes whoever hears of its commit; its own process is told when it is seen.
        pools = dict.fromkeys(new.pool for batch in batches for new in batch.tasks)
        return SubmitAnswer(batches=tuple(answers), wakes=tuple(Wake(pool, 0.0) for pool in pools))

    def _is_known(self, way: DriverAdapter) -> bool:
        try:
            return way.driver in self._looked_at
        except TypeError:  # it cannot be referred to weakly
            return False

    def _remember(self, way: DriverAdapter) -> None:
        try:
            self._looked_at.add(way.driver)
        except TypeError:
            return

    def _look_at(self, told: str) -> None:
        """Refuse a database in which the store is not, or where the user may not use it."""
        there, usable, found, allowed, user, database = json.loads(told)
        schema = quoted(self._address.schema)
        if there and not usable:
            grant = f"GRANT USAGE ON SCHEMA {schema} TO {quoted(user)}"
            raise missing_rights(self._address, [grant], "it may not use the schema of the store")
        if not found:
            raise self._foreign(f"database {database}, where no such store is")
        if not allowed:
            needed = grants(Role.SUBMITTER, user, self._address.schema)
            raise missing_rights(self._address, needed, "it may not submit over this connection")

    def _foreign(self, found: str) -> ForeignConnection:
        return ForeignConnection(
            f"the connection is of {found}, the pools are in {self._address}: one transaction "
            "cannot span both; keep your tables in the database of the pools, or submit without "
            "connection=",
            path=str(self._address),
            found=found,
        )

    def _answer(self, batch: Batch, answer: _Answer) -> BatchAnswer:
        if answer.refused == "foreign":
            raise self._foreign("another store of the same name")
        if answer.refused == "read_only":
            raise may_only_be_read(self._address)
        if answer.refused == "per_lane":
            raise ConfigError(
                "per_lane",
                answer.bound,
                f"of pool {batch.tasks[0].pool!r} bounds each lane, and a submit inside a "
                "transaction of the caller cannot know the lane; submit without connection=, or "
                "bound the pool with per_key",
            )
        if answer.refused == "unknown_option":
            raise NewerPool(
                f"pool {batch.tasks[0].pool!r} has an option that its functions do not know; "
                "migrate the store to the version that declared it",
                pool=batch.tasks[0].pool,
                option="",
            )
        if answer.refused is not None:
            return BatchAnswer(
                refusal=Refusal(
                    reason=Reason(answer.refused),
                    pool=batch.tasks[0].pool,
                    lane=answer.lane,
                    depth=answer.depth,
                    bound=answer.bound,
                    task=answer.task,
                    key=answer.key,
                )
            )
        return BatchAnswer(
            admissions=tuple(
                Admission(task=task, status=status, duplicate=duplicate, depth=answer.depth)
                for task, duplicate, status in answer.tasks
            )
        )


class _Answered(NamedTuple):
    task: int
    duplicate: bool
    status: Status


class _Answer(msgspec.Struct):
    """What the store's function says; see the migration that makes it."""

    tasks: tuple[_Answered, ...] = ()
    refused: str | None = None
    lane: str | None = None
    depth: int | None = None
    bound: int | None = None
    task: int | None = None
    key: str | None = None


def _told_of(batch: Batch, store: str) -> str:
    told = {
        "store": store,
        "pool": batch.tasks[0].pool,
        "tasks": [_task(new) for new in batch.tasks],
    }
    return msgspec.json.encode(told).decode()


def _task(new: NewTask) -> dict[str, object]:
    return {
        "id": new.id,
        "key": new.key,
        "idempotency_key": new.idempotency_key,
        "dedupe": new.dedupe,
        "function": new.call.function,
        "fingerprint": new.fingerprint,
        "body": b64encode(body_of(new)).decode(),
    }
