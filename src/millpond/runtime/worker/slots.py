"""Slots: the tasks in which a worker runs its jobs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from millpond.runtime.worker.slot import Slot

if TYPE_CHECKING:
    from millpond.runtime.jobs.job import Job
    from millpond.runtime.worker.slot import SlotOwner
    from millpond.runtime.worker.state import WorkerState

WOKEN_AT_ONCE = 4
"""How many slots are woken for a batch of jobs, and by each job that has to wait."""

SLOTS_KEPT = 256
"""How many idle slots are kept for later."""


class Slots:
    """Wakes and makes slots for the jobs that are ready."""

    def __init__(self, state: WorkerState, owner: SlotOwner) -> None:
        self._state = state
        self._owner = owner
        self.env = state.env
        self.process = state.env.process
        self.ready: deque[Job] = deque()
        """Leased jobs whose handlers have not begun; it is empty again within a moment."""
        self.called = 0
        """How many slots were woken, or made, for a job and have not started yet."""
        self.idle: list[Slot] = []
        self.all: set[Slot] = set()

    def wake(self) -> None:
        """Wake a few slots for the jobs that are ready; each that has to wait wakes a few more."""
        for _ in range(min(len(self.ready) - self.called, WOKEN_AT_ONCE)):
            self.called += 1
            if self.idle:
                self.idle.pop().wake()
            else:
                self.all.add(Slot(self, self._owner))

    def call_one(self) -> bool:
        """Wake an idle slot, to run a turn; return whether there is one."""
        if not self.idle:
            return False
        self.called += 1
        self.idle.pop().wake()
        return True

    def job_waits(self) -> None:
        """Let ready jobs begin, and what has ended be settled, while a job waits.

        Its slot may have run a job before this one. If every ready job has found a slot, no slot
        becomes idle and asks for the turn that settles the end of that job.
        """
        if self.ready:
            self.wake()
        if self._state.ended:
            self._owner.schedule.kick()

    def keep_idle(self, slot: Slot) -> bool:
        """Keep a slot that has nothing to do for later; return whether there is room for it."""
        if len(self.idle) < SLOTS_KEPT and self._state.joined:
            self.idle.append(slot)
            return True
        self.all.discard(slot)
        return False

    def lost(self, slot: Slot) -> None:
        """Note that a slot has ended; the ready jobs must not wait for it."""
        self.called -= slot.called
        self._owner.schedule.slot_rests()
        if slot not in self.all:
            # It ended by itself, as one too many.
            return
        self.all.discard(slot)
        if slot in self.idle:
            self.idle.remove(slot)
        if self.ready and self._state.joined:
            self.wake()
