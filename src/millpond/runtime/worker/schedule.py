"""When a worker's next turn comes."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.runtime.worker.state import WorkerState

STRETCH = 0.005
"""Seconds for which jobs that never wait may keep the loop from an answer of the store."""


GATHERED = 256
"""How many jobs that end at once are gathered for one call of the store, while others are ready."""


LOOKS = 3
"""In so many rounds the loop sees an answer, reads it, and lets the turn go on."""


def _nothing_to_see() -> bool:
    """Return that there is no answer to look for."""
    return False


class TurnSchedule:
    """Whether a turn is under way or to come, and what wakes the driver."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._env = state.env
        self.turning = False
        """Whether a turn is under way."""
        self.scheduled = False
        """Whether a turn is to come."""
        self.pause = 0.0
        """Seconds to wait before the next turn, after the store failed."""
        self.enough = inf
        """How many settlements make a second call; inf while no call is on its way."""
        self.gathered = _nothing_to_see
        """Called with so many: sends them, or returns whether to look for an answer instead."""
        self.call_slot: Callable[[], bool] = _no_slot
        """Wakes an idle slot, if there is one."""
        self._wake: asyncio.Future[None] | None = None
        self._looking = 0
        """For how many more rounds of the loop slots let it go after each job."""
        self._let_go_at = 0.0
        """When a slot last let the loop go on, by its clock."""

    @property
    def in_turn(self) -> bool:
        """Whether a turn is under way, or to be tried again."""
        return self.turning or self.pause > 0

    def kick(self) -> None:
        """Make a turn come soon."""
        if self.turning or self.scheduled or not self._state.joined:
            return
        self.scheduled = True
        if self._env.inline:
            # The submit under way runs the turn, in the same step.
            return
        if not (self._slot_takes_turn() and self.call_slot()):
            self._wake_driver()

    def _wake_driver(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    def _slot_takes_turn(self) -> bool:
        """Return whether a turn is best run by a slot, which then runs what the turn leases.

        So nothing has to be woken between the two. If other jobs run, the driver does it: all that
        end in this round of the loop are settled in one verb.
        """
        state = self._state
        return self._env.shared and state.joined and not (state.jobs or self.pause)

    def slot_takes_turn(self) -> bool:
        """Return whether the slot that asks must run a turn now."""
        return (
            (self.scheduled or bool(self._state.ended))
            and not self.turning
            and self._slot_takes_turn()
        )

    def slot_rests(self) -> None:
        """Leave to the driver what the slot that was called for a turn does not do."""
        if self.scheduled and not self.turning and not self._env.inline:
            self._wake_driver()

    async def until_scheduled(self) -> None:
        """Wait until a turn is to come, and for the pause after a failure."""
        if not self.scheduled or self.turning:
            # A turn that another task runs now also serves the requests that come meanwhile.
            self._wake = self._env.loop.create_future()
            await self._wake
        if self.pause:
            await asyncio.sleep(self.pause)

    def must_settle(self, *, others_wait: bool) -> bool:
        """Return whether a slot lets the loop go on before its next job, to settle what has ended.

        Settlements wait for the store call under way, and for jobs that are leased and have not
        begun (`others_wait`): if these end at once, one call settles all of them. Otherwise
        prefetched tasks would keep the slots busy for as long as there are some, and a kill would
        lose every end that the store does not know.
        """
        if not self._state.ended or not self._env.shared or self.slot_takes_turn():
            return False
        if len(self._state.ended) >= self.enough and self.gathered() and not self._looking:
            self._look(LOOKS)
        if self._looking:
            return True
        if others_wait and not self.turning and len(self._state.ended) < GATHERED:
            return False
        now = self._env.loop.time()
        if self.turning and now - self._let_go_at < STRETCH:
            return False
        self._let_go_at = now
        return True

    def _look(self, rounds: int) -> None:
        """Let the loop read an answer, if there is one, and the turn act on it."""
        self._looking = rounds
        if rounds:
            self._env.loop.call_soon(self._look, rounds - 1)

    def wants_turn(self) -> bool:
        """Return whether an idle slot should run the turn: no other job is running."""
        if not self._state.ended or self.turning or self.pause:
            return False
        if self.scheduled:
            return False
        if self._state.jobs or self._env.shared:
            # Other jobs run: all that end in this round of the loop are settled in one verb. And
            # a verb on its way to a shared store must not keep a slot that counts as idle.
            self.kick()
            return False
        return True


def _no_slot() -> bool:
    """Find no slot."""
    return False
