"""Failures as log records: an error when a task failed for good, a warning when it is tried again.

The process whose verb it was writes one record. A failure without a handler of this process (a lost
lease, an expired task, the closure of a dead process) is read from the store first.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from textwrap import indent
from typing import TYPE_CHECKING

from millpond.core.admit import Reason
from millpond.core.escape import MultilineText, plain
from millpond.core.lifecycle import Status
from millpond.core.log_fields import about
from millpond.core.task import CALLBACKS
from millpond.runtime.error_info import info_of, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.lease import Leased
    from millpond.core.settle import Settlement
    from millpond.core.task import Task
    from millpond.runtime.environment import Environment
    from millpond.runtime.waiting.task_result import TaskResult
    from millpond.store.protocol import LostAttempt

log = logging.getLogger("millpond.tasks")

AT_ONCE = 1_000
"""How many tasks one look at the store asks for."""

FINISH_WITHIN = 2.0
"""Seconds for which closing waits for failures that are being read from the store."""

_WORDS: dict[str, str] = {
    Reason.EXPIRED: "it expired before it could start",
    Reason.STALE: "a closure lives as long as its process, and that is gone",
    Reason.UNKNOWN_FUNCTION: "no worker knew its function for a day",
    Reason.LEASE_LOST: "its worker died or lost its lease, and no attempts are left",
    "corrupt": "its record cannot be read",
}


class Failures:
    """Logs what failed, and looks up what failed without a handler of this process."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._lookups: set[asyncio.Task[None]] = set()

    def failed(self, leased: Leased, end: TaskResult) -> None:
        """Log a task that one of our own settlements failed for good."""
        _log_last(
            leased.fence.task,
            leased.pool,
            leased.call.function,
            end.attempt,
            (end.error, end.reason),
            end.cause,
        )

    def retried(self, leased: Leased, decided: Settlement) -> None:
        """Log an attempt that failed and is followed by another; its traceback comes last."""
        error, pool = read(decided.error), leased.pool.removesuffix(CALLBACKS)
        log.warning(
            "attempt %d of task %d (%s) of pool %s failed, the next is in %.3g s: %s",
            leased.fence.attempt,
            leased.fence.task,
            leased.call.function,
            pool,
            decided.delay,
            error,
            extra=about(
                "attempt.failed",
                pool=pool,
                task=leased.fence.task,
                function=leased.call.function,
                attempt=leased.fence.attempt,
                error=str(error),
            ),
        )

    def lost(self, attempts: Sequence[LostAttempt]) -> None:
        """Log attempts that ended with their worker and are followed by another."""
        for one in attempts:
            pool = one.pool.removesuffix(CALLBACKS)
            log.warning(
                "attempt %d of task %d (%s) of pool %s is lost: its worker died or did not renew "
                "its lease; the task is queued again",
                one.attempt,
                one.task,
                one.function,
                pool,
                extra=about(
                    "attempt.lost",
                    pool=pool,
                    task=one.task,
                    function=one.function,
                    attempt=one.attempt,
                    error=str(Reason.LEASE_LOST),
                ),
            )

    def ended_unseen(self, tasks: Sequence[int]) -> None:
        """Log which of these tasks failed: no handler of this process ended them."""
        lookup = self._env.spawn(self._look_up(tuple(tasks)))
        self._lookups.add(lookup)
        lookup.add_done_callback(self._lookups.discard)

    async def finish(self) -> None:
        """Wait for the lookups under way, for a moment."""
        if self._lookups:
            await asyncio.wait(self._lookups, timeout=FINISH_WITHIN)

    async def _look_up(self, tasks: tuple[int, ...]) -> None:
        view = self._env.view
        for first in range(0, len(tasks), AT_ONCE):
            page = tasks[first : first + AT_ONCE]
            for task, status in zip(page, await view.status(page), strict=True):
                record = await view.task(task) if status == Status.FAILED else None
                if record is not None and record.status is Status.FAILED:
                    _log_record(record)


def _log_record(task: Task) -> None:
    new = task.new
    _log_last(new.id, new.pool, new.call.function, task.attempt, (task.error, task.reason), None)


def _log_last(
    task: int,
    pool: str,
    function: str,
    attempt: int,
    why: tuple[bytes | None, str | None],
    cause: BaseException | None,
) -> None:
    """Log a task's last failure: with the exception itself, else with its stored traceback."""
    error, reason = read(why[0]), why[1]
    cause = None if cause is None else _printable(cause)
    if error is None and cause is not None:
        error = info_of(cause)
    pool = pool.removesuffix(CALLBACKS)
    words = None if reason is None else _WORDS.get(reason, reason)
    text = plain(": ".join(str(one) for one in (words, error) if one is not None))
    if cause is None and error is not None and error.traceback:
        # Indented: no line of a handler's traceback looks like a log record.
        text = MultilineText(f"{text}\n{indent(error.traceback.rstrip(), '    ')}")
    log.error(
        "task %d (%s) of pool %s failed after %d attempt(s): %s",
        task,
        function,
        pool,
        attempt,
        text or "unknown reason",
        exc_info=cause,
        extra=about(
            "task.failed",
            pool=pool,
            task=task,
            function=function,
            attempt=attempt,
            reason=reason,
            error=str(error) if error is not None else reason,
        ),
    )


def _printable(cause: BaseException) -> BaseException | None:
    """Return an exception that every log handler can write, else None.

    A lone surrogate in its message, or in one of those it came from, breaks a handler's file.
    """
    try:
        "".join(traceback.format_exception(cause)).encode()
    except BaseException:  # noqa: BLE001 - a handler's exception may be as broken as it likes
        return None
    return cause
