"""The statements of a submit inside a caller's transaction."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Generator
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

import msgspec

from millpond.core.admit import Reason, Refusal
from millpond.core.lifecycle import Status
from millpond.core.plan import Wake
from millpond.errors import ConfigError, ForeignConnection, MillpondError, NewerPool
from millpond.store.postgres.caller_transaction.driver_adapter import Statement
from millpond.store.postgres.caller_transaction.refusals import not_in_transaction
from millpond.store.postgres.errors import aborted, may_only_be_read, missing_rights, of_driver
from millpond.store.postgres.quoting import quoted
from millpond.store.postgres.roles import Role, grants
from millpond.store.protocol import Admission, BatchAnswer, SubmitAnswer
from millpond.store.sql.codec import body_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.core.task import NewTask
    from millpond.store.postgres.caller_transaction.driver_adapter import DriverAdapter
    from millpond.store.postgres.url import Address
    from millpond.store.protocol import Batch

T = TypeVar("T")

Statements: TypeAlias = Generator[tuple[Statement, str], Any, T]
"""Yields statements with their argument, is sent the text of each answer, and returns the outcome.
So one generator serves drivers that block and drivers that are awaited."""

_CHECK = Statement(
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
"""Asks whether the store exists and which rights the user has. It never fails, because an error
would abort the caller's transaction."""


class CallerTransactions:
    """Submits to one store over callers' connections."""

    def __init__(self, address: Address, identity: Callable[[], str]) -> None:
        self._address = address
        self._identity = identity
        self._enter = Statement(
            f"SELECT {quoted(address.schema)}.millpond_enter(CAST(", " AS text))"
        )
        self._checked: WeakSet[Any] = WeakSet()
        """Connections whose database is known to have the store, and whose user may submit."""

    def submit(self, adapter: DriverAdapter, batches: Sequence[Batch]) -> SubmitAnswer:
        """Submit inside the transaction that is open."""
        statements = self._statements(adapter, batches)
        try:
            self._must_be_open(adapter.state())
            statement, argument = next(statements)
            while True:
                statement, argument = statements.send(adapter.ask(statement, argument))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        except MillpondError:
            raise
        except Exception as error:
            raise self._explained(error) from error

    async def submit_async(self, adapter: DriverAdapter, batches: Sequence[Batch]) -> SubmitAnswer:
        """Submit over a connection whose answers are awaited."""
        statements = self._statements(adapter, batches)
        try:
            state: Any = adapter.state()
            self._must_be_open(await state if isawaitable(state) else state)
            statement, argument = next(statements)
            while True:
                statement, argument = statements.send(await adapter.ask(statement, argument))
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
            raise not_in_transaction(self._address)

    def _explained(self, error: Exception) -> MillpondError:
        return of_driver(error, self._address) or self._closed(str(error))

    def _closed(self, detail: str) -> ForeignConnection:
        return ForeignConnection(
            f"the connection cannot be used ({' '.join(detail.split())}): submit while it is open, "
            "inside a transaction, and while no other statement uses it",
            path=str(self._address),
            found="closed, or in use",
        )

    def _statements(
        self, adapter: DriverAdapter, batches: Sequence[Batch]
    ) -> Statements[SubmitAnswer]:
        if not self._is_checked(adapter):
            self._check_store((yield _CHECK, self._address.schema))
            self._note_checked(adapter)
        answers = []
        for batch in batches:
            if batch.tasks:
                reply = yield self._enter, enter_arguments(batch, self._identity())
                answers.append(self._answer(batch, msgspec.json.decode(reply, type=_Answer)))
        # The commit notifies other processes; this process is woken when it sees the commit.
        pools = dict.fromkeys(new.pool for batch in batches for new in batch.tasks)
        return SubmitAnswer(batches=tuple(answers), wakes=tuple(Wake(pool, 0.0) for pool in pools))

    def _is_checked(self, adapter: DriverAdapter) -> bool:
        try:
            return adapter.driver in self._checked
        except TypeError:  # it cannot be referred to weakly
            return False

    def _note_checked(self, adapter: DriverAdapter) -> None:
        try:
            self._checked.add(adapter.driver)
        except TypeError:
            return

    def _check_store(self, found_text: str) -> None:
        """Refuse a database without the store, or a user who may not submit."""
        there, usable, found, allowed, user, database = json.loads(found_text)
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
    """The answer of the function millpond_enter."""

    tasks: tuple[_Answered, ...] = ()
    refused: str | None = None
    lane: str | None = None
    depth: int | None = None
    bound: int | None = None
    task: int | None = None
    key: str | None = None


def enter_arguments(batch: Batch, store: str) -> str:
    """Return the argument of millpond_enter for a batch, as JSON."""
    arguments = {
        "store": store,
        "pool": batch.tasks[0].pool,
        "tasks": [_task(new) for new in batch.tasks],
    }
    return msgspec.json.encode(arguments).decode()


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
