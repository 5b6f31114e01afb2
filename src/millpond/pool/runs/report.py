"""Reports: the result of a run or a drain, as a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.lifecycle import Status

if TYPE_CHECKING:
    from millpond.core.run import RunView


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run or of a drain, or how far a run is."""

    pool: str
    """The pool it was drained in."""
    name: str | None
    """The name of the run."""
    total: int
    """Tasks it had: seed, follow-ups and all."""
    completed: int
    """Those that completed."""
    failed: int
    """Those that failed."""
    cancelled: int
    """Those that were cancelled."""
    rejected: int
    """Those that a full queue dropped."""
    finished: bool = True
    """Whether it has ended; a run that a task is redriven in goes on."""
    stopped: str | None = None
    """Why it was stopped before its end: `run_failed`, `over_budget` or `cancelled`."""
    finished_before: bool = False
    """The run of that name had ended already: nothing was seeded."""
    resumed: bool = False
    """The run of that name was under way: nothing was seeded, and it went on."""

    @property
    def ok(self) -> bool:
        """Whether it has ended and every task completed."""
        return self.finished and self.completed == self.total


def report_of(view: RunView) -> RunReport:
    """Return the report of a run; it says whether the run had finished before."""
    finished_before = view.finished and view.resumed
    return RunReport(
        pool=view.pool,
        name=view.name,
        total=view.total,
        completed=view.ended.get(Status.COMPLETED, 0),
        failed=view.ended.get(Status.FAILED, 0),
        cancelled=view.ended.get(Status.CANCELLED, 0),
        rejected=view.ended.get(Status.REJECTED, 0),
        finished=view.finished,
        stopped=view.stopped,
        finished_before=finished_before,
        resumed=view.resumed and not finished_before,
    )
