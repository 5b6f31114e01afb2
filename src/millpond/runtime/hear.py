"""Hearing: what other processes tell after a commit. It is worth a look, and never the truth.

A hint may be lost, late, or about nothing that matters here: whoever is told looks for itself.
Hooks are not called for it: they belong to the process that did it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.runtime.runtime import Runtime
    from millpond.store.protocol import Hint


class Hearing:
    """Passes hints on to workers and to those who wait."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def begin(self) -> None:
        """Listen, if the store can tell."""
        runtime = self._runtime
        if runtime.shared and runtime.abilities.listen is not None:
            runtime.abilities.listen(self.heard)

    def heard(self, hint: Hint) -> None:
        """Take in a hint; on the loop."""
        runtime = self._runtime
        if runtime.closed:
            return
        for wake in hint.wakes:
            for worker in runtime.workers:
                worker.woken(wake)
        runtime.told_to_cancel(hint.cancelled, hint.interrupted)
        for task in hint.ended:
            runtime.closures.pop(task, None)
            runtime.waiting.ended_elsewhere(task)
        for run in hint.finished_runs:
            runtime.waiting.run_ended(run)
        if hint.ended:
            runtime.submitter.room_anywhere()
        if hint.ended or hint.finished_runs:
            runtime.waiting.stir()
        runtime.polling.stirred()
        if hint.more:
            runtime.polling.look_now()
