"""Caller transactions: tasks that were submitted inside a transaction of the caller.

No event says when that transaction ends. So its connection is polled, soon at first and then less
often. Committed tasks are then announced, as a submit of our own would be.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.runtime.fleet.poll import POLL_FLOOR

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.runtime.answers import Answers
    from millpond.runtime.declarations import Declarations
    from millpond.runtime.environment import Environment
    from millpond.runtime.waiting.joined_tasks import JoinedSubmit, JoinedTasks
    from millpond.runtime.waiting.results import Waiting

log = logging.getLogger("millpond.joins")

FIRST_LOOK = 0.005
"""Seconds until a connection is first polled; half as long again each time."""


class OpenTransaction:
    """A connection and the tasks submitted over it, until its transaction is known to be over."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - of any driver
        self.connection = connection
        self.joined: list[JoinedSubmit] = []

    @property
    def is_open(self) -> bool:
        """Whether its connection is inside a transaction: the same, or by now another."""
        try:
            return bool(self.connection.in_transaction)
        except Exception:  # noqa: BLE001 - it was closed; the driver has its own error for that
            return False


class CallerTransactions(Service):
    """The transactions of callers whose end this process waits for."""

    _env: Environment
    _answers: Answers
    _declarations: Declarations
    _waiting: Waiting
    _joined_tasks: JoinedTasks
    _nudge: Callable[[], None]
    _open: dict[Any, OpenTransaction] = {}
    """By the connection; some drivers wrap it in objects that are equal to each other."""

    def add(self, connection: Any, joined: JoinedSubmit) -> None:  # noqa: ANN401
        """Wait for the end of a transaction in which something was submitted; on the loop."""
        if not joined.tasks:
            return
        entry = self._open.get(connection)
        if entry is None:
            entry = self._open[connection] = OpenTransaction(connection)
            self._env.spawn(self._watch(entry))
        entry.joined.append(joined)
        self._joined_tasks.opened(joined.tasks)

    async def _watch(self, entry: OpenTransaction) -> None:
        pause = FIRST_LOOK
        while entry.joined:
            try:
                await self._check(entry)
            except Exception as error:  # noqa: BLE001 - the store is away; the next look is soon
                log.debug(
                    "cannot check a caller's transaction now: %s",
                    error,
                    extra=about("transaction.unchecked", reason=type(error).__name__),
                )
            if entry.joined:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, POLL_FLOOR)
        del self._open[entry.connection]

    async def _check(self, entry: OpenTransaction) -> None:
        """Find out which submits were committed and which were rolled back.

        It asks the connection before the store: what is over by then is stored, or never will be.
        """
        was_open, checked = entry.is_open, list(entry.joined)
        firsts = tuple(joined.tasks[0] for joined in checked)
        for joined, status in zip(checked, await self._env.view.status(firsts), strict=True):
            if status == "unknown" and was_open:
                continue
            entry.joined.remove(joined)
            self._joined_tasks.closed(joined.tasks)
            if status == "unknown":
                self._rolled_back(joined)
            else:
                await self._committed(joined)

    async def _committed(self, joined: JoinedSubmit) -> None:
        self._answers.apply(joined.answer)
        if joined.may_expire:
            self._nudge()
        for spec in joined.undeclared:
            await self._declarations.declare(spec)
        announce = self._env.shared_store.announce
        if announce is not None and not joined.announced:
            await announce(joined.answer)

    def _rolled_back(self, joined: JoinedSubmit) -> None:
        for task in joined.tasks:
            self._joined_tasks.rolled_back(task)
            if self._waiting.is_awaited(task):
                self._waiting.ended(task, None)
