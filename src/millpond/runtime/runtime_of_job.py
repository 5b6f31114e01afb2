"""From a job to its runtime, for code of handlers that must not import all of the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from millpond.runtime.jobs.job import Job
    from millpond.runtime.runtime import Runtime


def runtime_of(job: Job) -> Runtime:
    """Return the runtime that a job runs in."""
    return cast("Runtime", job.worker.runtime)
