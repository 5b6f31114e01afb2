"""Transactions of handlers: writes, follow-ups and completion are stored together, or none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from millpond.core import validation as check
from millpond.errors import AlreadySettled
from millpond.runtime.fork_safety import must_not_be_child
from millpond.runtime.worker.commit import attempt_fields, commit_held, may_commit

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from millpond.core.validation import Seconds
    from millpond.runtime.jobs.job import Job
    from millpond.store.shared import HandlerTransaction

HOLD = 5.0
"""Seconds for which a handler may hold a transaction by default."""


class _Transaction:
    """The methods that both kinds of transaction have inside the block."""

    def __init__(self, job: Job, hold: Seconds) -> None:
        may_commit(job, "transaction")
        assert job.worker.env.shared_store.handler_transaction is not None  # noqa: S101 - may_commit checked it
        self._job = job
        self._held: HandlerTransaction = job.worker.env.shared_store.handler_transaction(
            check.seconds("hold", hold, above=0.0)
        )
        self._entered = False
        self._result: Any = None

    @property
    def connection(self) -> Any:  # noqa: ANN401 - of the store's driver
        """The connection inside the transaction: `execute`, `executemany` and `cursor`."""
        return self._held.connection

    def execute(self, statement: str, parameters: Any = (), /) -> Any:  # noqa: ANN401 - a cursor
        """Execute a statement; return its cursor."""
        return self._held.connection.execute(statement, parameters)

    def executemany(self, statement: str, rows: Iterable[Any], /) -> Any:  # noqa: ANN401 - a cursor
        """Execute a statement for each row."""
        return self._held.connection.executemany(statement, rows)

    def complete(self, result: Any = None) -> None:  # noqa: ANN401 - what the task returns
        """Set the result with which the task completes when the block is left; None by default."""
        self._result = result

    def _enter(self) -> None:
        may_commit(self._job, "transaction")
        if self._entered:
            raise AlreadySettled(
                "a transaction is entered once; call ctx.transaction() for another",
                **attempt_fields(self._job),
            )
        self._entered = True


class Transaction(_Transaction):
    """`async with ctx.transaction() as tx:` commits on leaving; an error rolls everything back."""

    async def __aenter__(self) -> Self:
        self._enter()
        begun = self._job.worker.in_thread(self._held.begin)
        try:
            await asyncio.shield(begun)
        except asyncio.CancelledError:
            self._held.give_up()
            begun.add_done_callback(self._too_late)
            raise
        return self

    def _too_late(self, begun: asyncio.Future[None]) -> None:
        """Roll back a transaction that began after its handler was cancelled."""
        if begun.cancelled() or begun.exception() is None:
            self._held.rollback()

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # A child must not roll back on the parent's connection.
        must_not_be_child(self._job.worker.env.process)
        try:
            if error is None:
                self._held.must_not_be_too_long()
                await commit_held(self._job, self._held, self._result)
        finally:
            # Once it is committed this does nothing.
            self._held.rollback()


class SyncTransaction(_Transaction):
    """`with ctx.transaction() as tx:` commits on leaving; an error rolls everything back."""

    def __enter__(self) -> Self:
        self._enter()
        self._held.begin()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # A child must not roll back on the parent's connection.
        must_not_be_child(self._job.worker.env.process)
        try:
            if error is None:
                self._held.must_not_be_too_long()
                committing = commit_held(self._job, self._held, self._result)
                asyncio.run_coroutine_threadsafe(committing, self._job.worker.loop).result()
        finally:
            self._held.rollback()
