"""Log records that say which pool and task they are about, those of your own handlers too."""

from __future__ import annotations

import logging

from millpond.core.task import CALLBACKS
from millpond.runtime.job import current_job

NOBODY = "-"
"""What a record says that is about no pool, or no task."""


class TaskFilter(logging.Filter):
    """Puts `pool`, `task`, `attempt` and `function` on every record; lets all of them pass.

    Add it to a handler, and `%(pool)s` and `%(task)s` can stand in its format. A record that says
    itself what it is about keeps that. One that is made while a handler runs, by whatever library,
    is about the handler's task. Any other is about none, and says so: `-`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Say what a record is about."""
        about = vars(record)
        job = current_job.get()
        if job is not None and about.get("task") in (None, job.id):
            leased = job.leased
            about.setdefault("attempt", leased.fence.attempt)
            about.setdefault("function", leased.call.function)
            if about.get("pool") is None:
                about["pool"] = leased.pool.removesuffix(CALLBACKS)
            about["task"] = job.id
        for name in ("pool", "task", "attempt", "function"):
            if about.get(name) is None:
                about[name] = NOBODY
        return True
