"""Joins: tasks that were submitted inside a transaction of the caller's, until that is over.

Nobody tells when it is. So the connection is asked, soon at first and then less often; what was
committed is then announced, as a submit of our own would have been.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.spec import PoolSpec
from millpond.errors import UnknownTask
from millpond.runtime.fleet.poll import POLL_FLOOR
from millpond.store.protocol import SubmitAnswer

if TYPE_CHECKING:
    from millpond.runtime.runtime import Runtime

log = logging.getLogger("millpond.joins")

FIRST_LOOK = 0.005
"""Seconds after which a transaction is first looked at; half as long again each time."""

UNDONE_KEPT = 1_000
"""How many tasks are remembered that were rolled back, to tell whoever asks for them."""


class Joined(msgspec.Struct, frozen=True):
    """One submit inside a transaction that was open then; what it stored is stored together."""

    tasks: tuple[int, ...]
    answer: SubmitAnswer
    undeclared: tuple[PoolSpec, ...] = ()
    """Pools that it declared: they are rolled back with it."""
    may_expire: bool = False
    announced: bool = False
    """Others hear of it by the commit itself."""


class OpenTransaction:
    """A connection and what was submitted over it, as far as it is not known to be over."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - of any driver
        self.connection = connection
        self.joined: list[Joined] = []

    @property
    def is_open(self) -> bool:
        """Whether its connection is inside a transaction: the same, or by now another."""
        try:
            return bool(self.connection.in_transaction)
        except Exception:  # noqa: BLE001 - it was closed, in the words of its driver
            return False


class Joins:
    """The transactions of others that this process waits for."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: dict[Any, OpenTransaction] = {}
        """By the connection: of some drivers it is told by something that equals another."""
        self._tasks: set[int] = set()
        self._undone: dict[int, None] = {}

    def add(self, connection: Any, joined: Joined) -> None:  # noqa: ANN401
        """Wait for the end of a transaction in which something was submitted; on the loop."""
        if not joined.tasks:
            return
        entry = self._open.get(connection)
        if entry is None:
            entry = self._open[connection] = OpenTransaction(connection)
            self._runtime.spawn(self._watch(entry))
        entry.joined.append(joined)
        self._tasks.update(joined.tasks)

    def is_open(self, task: int) -> bool:
        """Return whether a task may yet be committed, though the store does not know it."""
        return task in self._tasks

    def undone(self, task: int) -> Exception | None:
        """Return the error for a task that was rolled back, if it was."""
        if task not in self._undone:
            return None
        return UnknownTask(
            f"task {task} was submitted in a transaction that was rolled back: it never was",
            task_id=task,
        )

    async def _watch(self, entry: OpenTransaction) -> None:
        pause = FIRST_LOOK
        while entry.joined:
            try:
                await self._look(entry)
            except Exception as error:  # noqa: BLE001 - the store is away; the next look is soon
                log.debug("a transaction cannot be looked after now: %s", error)
            if entry.joined:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, POLL_FLOOR)
        del self._open[entry.connection]

    async def _look(self, entry: OpenTransaction) -> None:
        """Sort out what was committed, what was rolled back, and what may become either.

        The connection is asked before the store: what is over then is there, or never will be.
        """
        was_open, looked_at = entry.is_open, list(entry.joined)
        firsts = tuple(joined.tasks[0] for joined in looked_at)
        for joined, status in zip(looked_at, await self._runtime.view.status(firsts), strict=True):
            if status == "unknown" and was_open:
                continue
            entry.joined.remove(joined)
            self._tasks.difference_update(joined.tasks)
            if status == "unknown":
                self._rolled_back(joined)
            else:
                await self._committed(joined)

    async def _committed(self, joined: Joined) -> None:
        runtime = self._runtime
        runtime.heed(joined.answer)
        if joined.may_expire:
            runtime.maintenance.nudge()
        for spec in joined.undeclared:
            await runtime.declare(spec)
        if runtime.abilities.announce is not None and not joined.announced:
            await runtime.abilities.announce(joined.answer)

    def _rolled_back(self, joined: Joined) -> None:
        for task in joined.tasks:
            self._undone[task] = None
            if len(self._undone) > UNDONE_KEPT:
                del self._undone[next(iter(self._undone))]
            if self._runtime.waiting.is_awaited(task):
                self._runtime.waiting.ended(task, None)
