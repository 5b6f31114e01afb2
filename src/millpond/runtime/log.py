"""Log records say which pool and which task they are about: on every record of ours, or None.

What one is about stands in `extra` where it is made. One that is made while a handler runs, and
does not say, is about the handler's task.
"""

from __future__ import annotations

import logging

from millpond.core.task import CALLBACKS
from millpond.runtime.job import current_job

OURS = (
    "millpond",
    "millpond.cli",
    "millpond.cron",
    "millpond.hooks",
    "millpond.joins",
    "millpond.maintenance",
    "millpond.poll",
    "millpond.postgres",
    "millpond.processes",
    "millpond.renewal",
    "millpond.report",
    "millpond.runtime",
    "millpond.sqlite",
    "millpond.store",
    "millpond.submit",
    "millpond.telemetry",
    "millpond.watchdog",
    "millpond.webhooks",
    "millpond.worker",
)
"""Every logger of this library; what a filter of one sees is not seen by that of its parent."""


class TaskFilter(logging.Filter):
    """Puts `pool`, `task`, `function` and `attempt` on every record; lets all of them pass.

    Add it to a handler, and they can stand in its format, also for records of your own handlers and
    of whatever these call. What a record is not about is `missing`.
    """

    def __init__(self, missing: str | None = "-") -> None:
        super().__init__()
        self._missing = missing

    def filter(self, record: logging.LogRecord) -> bool:
        """Say what a record is about."""
        told = vars(record)
        known = _of_the_job(told)
        for name in ("pool", "task", "function", "attempt"):
            if told.get(name) is None:
                told[name] = known.get(name, self._missing)
        return True


def _of_the_job(told: dict[str, object]) -> dict[str, object]:
    """Return what is known of the task at work here, unless the record is about something else."""
    job = current_job.get()
    if job is None:
        return {}
    leased = job.leased
    known = {
        "pool": leased.pool.removesuffix(CALLBACKS),
        "task": leased.fence.task,
        "function": leased.call.function,
        "attempt": leased.fence.attempt,
    }
    about = {name: told[name] for name in ("pool", "task") if told.get(name) is not None}
    return known if about.items() <= known.items() else {}


def mark_ours() -> None:
    """Have our own records marked, whatever handlers there are."""
    for name in OURS:
        logger = logging.getLogger(name)
        if not any(isinstance(one, TaskFilter) for one in logger.filters):
            logger.addFilter(TaskFilter(missing=None))
