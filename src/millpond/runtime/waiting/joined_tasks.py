"""Tasks that were submitted in a transaction of the caller: open ones and rolled back ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.errors import UnknownTask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.spec import PoolSpec
    from millpond.store.protocol import SubmitAnswer

ROLLED_BACK_KEPT = 1_000
"""How many rolled back tasks are remembered, to name the reason to a later caller."""


class JoinedSubmit(msgspec.Struct, frozen=True):
    """One submit inside a transaction of the caller."""

    tasks: tuple[int, ...]
    answer: SubmitAnswer
    undeclared: tuple[PoolSpec, ...] = ()
    """Pools that it declared: they are rolled back with it."""
    may_expire: bool = False
    announced: bool = False
    """Whether the commit itself notifies other processes."""


class JoinedTasks:
    """Which tasks may still be committed, and which were rolled back."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._rolled_back: dict[int, None] = {}

    def opened(self, tasks: Iterable[int]) -> None:
        """Note tasks whose transaction is open."""
        self._open.update(tasks)

    def closed(self, tasks: Iterable[int]) -> None:
        """Note that the transaction of tasks is over."""
        self._open.difference_update(tasks)

    def rolled_back(self, task: int) -> None:
        """Note that the transaction of a task was rolled back."""
        self._rolled_back[task] = None
        if len(self._rolled_back) > ROLLED_BACK_KEPT:
            del self._rolled_back[next(iter(self._rolled_back))]

    def is_open(self, task: int) -> bool:
        """Return whether a task may yet be committed, though the store does not know it."""
        return task in self._open

    def unknown(self, task: int) -> UnknownTask:
        """Return the error for a task that the store does not know."""
        if task in self._rolled_back:
            reason = (
                f"task {task} was submitted in a transaction that was rolled back: it never was"
            )
        else:
            reason = f"no task {task} is known; it may have ended and been forgotten (see Keep)"
        return UnknownTask(reason, task_id=task)
