"""Turns: settle what has ended and, in the same verb, lease what may start next.

One turn at a time; what ends while a verb is under way goes into the next, or into a second one
that is sent at once (`second_call.py`). Between two turns a worker waits for a wake or for the
moment that the plan named.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from millpond.core.control import Disown
from millpond.core.log_fields import about
from millpond.core.service import Service
from millpond.runtime.bad_values import is_store_failure
from millpond.runtime.worker.state import mark_unsure

if TYPE_CHECKING:
    from millpond.core.lease import LeaseRequest
    from millpond.core.settle import Settlement
    from millpond.runtime.jobs.job import Job, WorkerProtocol
    from millpond.runtime.observe.watchdog import Watchdog
    from millpond.runtime.worker.leasing import Leasing
    from millpond.runtime.worker.one_by_one import OneByOne
    from millpond.runtime.worker.prefetch import Prefetch
    from millpond.runtime.worker.queues import Queues
    from millpond.runtime.worker.schedule import TurnSchedule
    from millpond.runtime.worker.second_call import Call, SecondCall
    from millpond.runtime.worker.settle_answers import SettleAnswers
    from millpond.runtime.worker.slots import Slots
    from millpond.runtime.worker.state import WorkerState
    from millpond.store.protocol import SettleAnswer

log = logging.getLogger("millpond.worker")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds to wait after the store failed, doubling."""


class Quiet:
    """Waits until a stopping worker runs no job any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.waiting: list[asyncio.Future[None]] = []

    async def wait(self, seconds: float | None) -> None:
        """Wait until no job runs, for some seconds at most."""
        quiet = self._loop.create_future()
        self.waiting.append(quiet)
        await asyncio.wait([quiet], timeout=seconds)

    def reached(self) -> None:
        """Let those who wait go on."""
        _release(self.waiting)


class Turns(Service):
    """Runs the turns of one worker."""

    _worker: WorkerProtocol
    _state: WorkerState
    _schedule: TurnSchedule
    _queues: Queues
    _prefetch: Prefetch
    _slots: Slots
    _leasing: Leasing
    _settle_answers: SettleAnswers
    _one_by_one: OneByOne
    _second: SecondCall
    watchdog: Watchdog
    _quiet: Quiet
    driver: asyncio.Task[None] | None = None
    """The task that runs turns while no other does."""
    answered: int = 0
    """How many verbs the store has answered."""
    _after_turn: list[asyncio.Future[None]] = []

    def __post_init__(self) -> None:
        self._env = self._state.env
        self._outages = self._state.services.outages

    def start(self) -> None:
        """Run turns whenever one is scheduled."""
        self.driver = self._env.loop.create_task(self._drive(), name=f"millpond {self._state.name}")
        self.driver.add_done_callback(self._driver_ended)

    async def _drive(self) -> None:
        while True:
            await self._schedule.until_scheduled()
            await self.turn()

    def _driver_ended(self, _driver: asyncio.Task[None]) -> None:
        """Stop: the driver was cancelled, or the loop ends with the Millpond still open."""
        self._state.stopping = True

    async def until_over(self) -> None:
        """Wait for the end of the turn under way."""
        over = self._env.loop.create_future()
        self._after_turn.append(over)
        await over

    async def turn(self) -> None:
        """Settle what has ended and lease what may start, until there is nothing of either."""
        try:
            await self.turn_in_slot()
        finally:
            self._start_leased()

    async def turn_in_slot(self) -> None:
        """Do the same for a slot, which then runs the last leased tasks."""
        state, schedule, second = self._state, self._schedule, self._second
        if schedule.turning:
            schedule.scheduled = True
            return
        schedule.turning = True
        ended: list[tuple[Settlement, Job, Any]] = []
        ask: LeaseRequest | None = None
        store = self._env.store
        if self._env.shared and not self.watchdog.watching:
            # A private store answers at once, or not at all: see _failed.
            self.watchdog.watch()
        try:
            while True:
                schedule.scheduled = False
                if (sent := second.take()) is not None:
                    ended, ask = sent.ended, sent.ask
                else:
                    if state.unsure and not state.ended and state.may_lease:
                        ended, ask = [], None
                        self._start_leased()
                        await self._disown()
                    ended = state.take_ended()
                    ask = None
                    if state.may_lease and not state.unsure:
                        if self._queues.unseen:
                            self._start_leased()
                            await self._queues.look_up_unseen()
                        if self._queues.due:
                            ask = self._queues.next_ask(settling=bool(ended))
                if ended or ask is not None:
                    self._start_leased()
                if ended:
                    try:
                        answer = await self._settled(ended, ask, sent)
                    except Exception as error:
                        if is_store_failure(error):
                            raise
                        await second.land()
                        if ask is not None:
                            self._ask_again(ask)
                        await self._one_by_one.settle(ended, error)
                        continue
                    if answer is None:
                        # It was the second, and the store refused it: what it ends goes first.
                        await second.land()
                        state.ended[:0] = ended
                        ended, ask = [], None
                        continue
                    if sent is None:
                        self._settle_answers.apply(ended, ask, answer)
                    else:
                        second.apply(sent, answer)
                elif ask is not None:
                    try:
                        leased = await store.lease(ask)
                    except Exception as error:
                        if is_store_failure(error):
                            raise
                        self._queues.cannot_lease(ask, error)
                        continue
                    self._queues.leased(ask.pool)
                    self._leasing.apply(ask, leased)
                else:
                    break
                self.answered += 1
                schedule.pause = 0.0
                self._outages.worked(self._worker)
        except BaseException as error:
            # Nothing may be lost, whatever the store does and whichever task is cancelled here.
            try:
                await second.land(abandon=not isinstance(error, Exception))
            finally:
                self._failed(ended, ask, error)
            if not isinstance(error, Exception):
                raise
        finally:
            # Also where this was cancelled: another turn must do what it leaves undone.
            schedule.turning = False
            _release(self._after_turn)
            if schedule.scheduled:
                schedule.scheduled = False
                schedule.kick()
        if state.stopping and not state.jobs:
            self._quiet.reached()

    def _start_leased(self) -> None:
        """Let slots begin the leased tasks, which must not wait for the next verb."""
        if self._slots.ready:
            self._slots.wake()

    async def _settled(
        self,
        ended: list[tuple[Settlement, Job, Any]],
        ask: LeaseRequest | None,
        sent: Call | None,
    ) -> SettleAnswer | None:
        """Settle these, or wait for the answer to a call that was sent; allow one behind it."""
        second = self._second
        second.open(ended[0][1].leased.pool, ask)
        try:
            if sent is None:
                return await self._env.store.settle([one[0] for one in ended], then=ask)
            if len(self._state.ended) >= self._schedule.enough:
                second.gathered()
            return await sent.answer
        finally:
            second.shut()

    def _failed(
        self,
        ended: list[tuple[Settlement, Job, Any]],
        ask: LeaseRequest | None,
        error: BaseException,
    ) -> None:
        """Keep what the store may not have got; try again after a pause that grows."""
        schedule = self._schedule
        if not self._outages.failed(self._worker, error) and not schedule.pause:
            log.warning(
                "worker %s failed (%s); trying again",
                self._state.name,
                error,
                exc_info=error,
                extra=about("worker.failed", worker=self._state.name, reason=type(error).__name__),
            )
        schedule.pause = min(max(schedule.pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        self.watchdog.watch()
        mark_unsure(ended)
        self._state.ended[:0] = ended
        if ask is not None:
            self._ask_again(ask)
        schedule.scheduled = True

    def _ask_again(self, ask: LeaseRequest) -> None:
        """Ask a queue once more: the store may or may not have got the ask."""
        self._queues.ask_again(ask.pool)
        self._state.unsure = True

    async def _disown(self) -> None:
        """Give back the leases that the store has for this worker and that it does not know.

        This is part of a turn, so no lease is under way at the same time; and all that ended was
        settled before, for the lost verb may have settled a task and leased it again. So what the
        worker holds is known, and is named by task. Prefetched tasks go back as well: the lost
        verb may have started one, which the worker would hold as prefetched for ever.
        """
        self._prefetch.clear()
        answer = await self._env.store.control(Disown(self._state.name, tuple(self.held())))
        self._state.unsure = False
        self._outages.worked(self._worker)
        self._state.services.answers.apply(answer)

    def held(self) -> list[int]:
        """Return the tasks that the worker runs, or has run and not settled."""
        state = self._state
        return [*state.jobs, *(job.id for _, job, _ in state.ended)]


def _release(waiting: list[asyncio.Future[None]]) -> None:
    """Let every waiting task go on, and forget it."""
    for one in waiting:
        if not one.done():
            one.set_result(None)
    waiting.clear()
