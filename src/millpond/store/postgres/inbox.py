"""The inbox: tasks that callers submitted inside their own transactions, before they are queued.

A caller's transaction only adds rows to a table, and may stay open for any time: it holds no lock
of the store. The next writer of the store moves the committed rows into the queue, in a transaction
of its own before that of its write. So a faulty row cannot fail the write.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from millpond.core.log_fields import about
from millpond.core.spec import OrderKind
from millpond.core.task import NO_FINGERPRINT, UNREADABLE, Call, Dedupe, NewTask
from millpond.errors import ConfigError, MillpondError, OutcomeUnknown
from millpond.store.postgres.errors import is_gone, is_of_the_moment
from millpond.store.sql.codec import new_of
from millpond.store.sql.read_ahead import expect_submit
from millpond.store.verbs import api as verbs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millpond.core.spec import PoolSpec
    from millpond.store.postgres.transactions import PostgresTransactor
    from millpond.store.protocol import SubmitAnswer
    from millpond.store.sql.codec import Row
    from millpond.store.sql.unit_of_work import SqlTables

log = logging.getLogger("millpond.postgres")

MOST = 1000
"""How many tasks one transaction moves at most."""


_SEEN = 9
"""The index of the columns about finished transactions."""


class Words(msgspec.Struct):
    """The arguments of the SQL function `submit`."""

    function: str
    arguments: msgspec.Raw
    key: str | None
    idempotency_key: str | None
    delay: float
    priority: int
    run_at: float | None
    expires_in: float | None
    timeout: float | None
    attempts: int
    weight: int
    labels: dict[str, str]
    dedupe: Dedupe
    submitted_by: str


_read_words = msgspec.json.Decoder(Words).decode


class Arrival(NamedTuple):
    """A row of the inbox."""

    n: int
    id: int
    pool: str
    age: float
    """Seconds since it was submitted."""
    spoken: int
    body: bytes
    key: str | None
    idempotency_key: str | None
    function: str

    def task(self, spec: PoolSpec) -> NewTask:
        """Return the task; a damaged one has no function, and so fails."""
        try:
            new = self._as_said(spec) if self.spoken else new_of(self.body, self.id, self.pool)
            self._check_columns_match(new)
            return _aged(new, max(self.age, 0.0))
        except (msgspec.MsgspecError, MillpondError, ValueError, TypeError) as error:
            log.error(  # noqa: TRY400 - the message says all
                "cannot read task %d for pool %r in the inbox: %s",
                self.id,
                self.pool,
                error,
                extra=about("task.unreadable", pool=self.pool, task=self.id, reason=str(error)),
            )
            return self.unreadable()

    def _check_columns_match(self, new: NewTask) -> None:
        """Raise if a body contradicts the columns by which bounds and key were checked.

        A role that may submit can write any body.
        """
        if new.call.function == UNREADABLE:
            return
        said = (new.key, new.idempotency_key, new.call.function)
        if said != (self.key, self.idempotency_key, self.function):
            raise ConfigError("body", said, "is of another key or function than it was put in with")

    def unreadable(self) -> NewTask:
        """Return a placeholder for a damaged task."""
        return NewTask(id=self.id, pool=self.pool, call=Call(UNREADABLE), attempts=1)

    def _as_said(self, spec: PoolSpec) -> NewTask:
        said = _read_words(self.body)
        arguments = bytes(said.arguments)
        return NewTask(
            id=self.id,
            pool=self.pool,
            call=Call(said.function, arguments),
            key=said.key,
            share=_share(spec, said, arguments),
            labels=said.labels,
            priority=said.priority,
            weight=said.weight,
            delay=said.delay,
            run_at=said.run_at,
            expires_in=said.expires_in,
            timeout=said.timeout,
            attempts=said.attempts,
            idempotency_key=said.idempotency_key,
            dedupe=said.dedupe,
            fingerprint=NO_FINGERPRINT if said.idempotency_key is not None else 0,
            submitted_by=said.submitted_by,
        )


def _share(spec: PoolSpec, said: Words, arguments: bytes) -> str | None:
    """Return the partition in a fair pool: labels, else the argument, else the key."""
    if spec.order.kind is not OrderKind.FAIR:
        return None
    name = spec.order.key
    if name in said.labels:
        return said.labels[name]
    argument = msgspec.json.decode(arguments, type=dict[str, Any]).get(name)
    return said.key if argument is None else str(argument)


def _aged(new: NewTask, age: float) -> NewTask:
    """Return a task whose delay and expiry count from some seconds ago."""
    if new.delay and new.run_at is None:
        new = msgspec.structs.replace(new, delay=max(new.delay - age, 0.0))
    if new.expires_in is not None:
        new = msgspec.structs.replace(new, expires_in=max(new.expires_in - age, 1e-6))
    return new


class Inbox:
    """Moves committed tasks into the queue; in the writing thread."""

    def __init__(
        self, clock: Callable[[], float], on_answer: Callable[[SubmitAnswer], None]
    ) -> None:
        self._clock = clock
        self._on_answer = on_answer
        """Called with the answer of each committed move."""

    def move(self, transactor: PostgresTransactor[SqlTables], unit: SqlTables) -> None:
        """Move the first tasks, and end the transaction; errors are logged, not raised."""
        arrivals: list[Arrival] = []
        try:
            rows = unit.ask("inbox_new", (MOST + 1,)).fetchall()
            if not rows:
                # The marks may be those of another server, from which the tables were restored.
                unit.ask("inbox_unseen")
                rows = unit.ask("inbox_new", (MOST + 1,)).fetchall()
            if len(rows) > MOST:
                rows, seen = unit.ask("inbox_first", (MOST,)).fetchall(), None
            else:
                # All that was committed is here, so the next one need not look there.
                seen = rows[0][_SEEN:] if rows else None
            arrivals = [Arrival(*row[:_SEEN]) for row in rows]
            self._take(transactor, unit, arrivals, seen=seen)
        except Exception as error:  # noqa: BLE001 - the writer goes on
            transactor.undo(error)
            if self._is_of_the_moment(error):
                _log_postponed(transactor.where, error)
            else:
                self._one_by_one(transactor, arrivals)

    def _one_by_one(
        self, transactor: PostgresTransactor[SqlTables], arrivals: Iterable[Arrival]
    ) -> None:
        """Move each task alone, so that a bad one does not block the others."""
        for arrival in arrivals:
            try:
                self._alone(transactor, arrival)
            except Exception as error:  # noqa: BLE001 - the next begin will say what is wrong
                _log_postponed(transactor.where, error)
                return

    def _alone(self, transactor: PostgresTransactor[SqlTables], arrival: Arrival) -> None:
        for readable in (True, False):
            unit = transactor.begin_plainly()
            try:
                self._take(transactor, unit, [arrival], readable=readable)
            except Exception as error:
                transactor.undo(error)
                if self._is_of_the_moment(error):
                    raise
                log.error(  # noqa: TRY400 - the message says all
                    "cannot take task %d for pool %r from the inbox: %s",
                    arrival.id,
                    arrival.pool,
                    error,
                    extra=about(
                        "inbox.refused", pool=arrival.pool, task=arrival.id, reason=str(error)
                    ),
                )
            else:
                return
        unit = transactor.begin_plainly()
        log.error(
            "dropped task %d for pool %r: cannot be stored",
            arrival.id,
            arrival.pool,
            extra=about("inbox.dropped", pool=arrival.pool, task=arrival.id),
        )
        unit.ask("inbox_drop", (unit.listed([arrival.n]),))
        transactor.commit(unit)

    def _take(
        self,
        transactor: PostgresTransactor[SqlTables],
        unit: SqlTables,
        arrivals: list[Arrival],
        *,
        readable: bool = True,
        seen: Row | None = None,
    ) -> None:
        tasks = []
        for arrival in arrivals:
            pool = unit.pools.get(arrival.pool)
            if pool is None or pool.internal:
                log.error(
                    "dropped task %d: pool %r no longer exists",
                    arrival.id,
                    arrival.pool,
                    extra=about("inbox.pool_missing", pool=arrival.pool, task=arrival.id),
                )
                continue
            tasks.append(arrival.task(pool.spec) if readable else arrival.unreadable())
        expect_submit(unit, tasks)
        answer = verbs.take_committed(unit, tasks, self._clock())
        if arrivals:
            unit.ask("inbox_drop", (unit.listed([arrival.n for arrival in arrivals]),))
        if seen is not None:
            unit.ask("inbox_seen", seen)
        transactor.commit(unit)
        self._on_answer(answer)

    def _is_of_the_moment(self, error: Exception) -> bool:
        """Return whether a retry may succeed."""
        if isinstance(error, OutcomeUnknown):
            return True
        cause = error.__cause__ if isinstance(error, MillpondError) else error
        return is_gone(cause) or is_of_the_moment(cause)


def _log_postponed(where: str, error: BaseException) -> None:
    log.warning(
        "tasks in the inbox of %s wait: %s",
        where,
        error,
        extra=about("inbox.postponed", reason=str(error)),
    )
