"""A worker: leases tasks of its pools, runs their handlers in slots and settles their attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.runtime.executors.executors import Executors
from millpond.runtime.jobs.job import CancelReason
from millpond.runtime.observe.watchdog import Watchdog
from millpond.runtime.worker.attempts import Attempts
from millpond.runtime.worker.lease_guard import LeaseGuard
from millpond.runtime.worker.leasing import Leasing
from millpond.runtime.worker.misfits import Misfits
from millpond.runtime.worker.one_by_one import OneByOne
from millpond.runtime.worker.prefetch import Prefetch
from millpond.runtime.worker.queues import Queues
from millpond.runtime.worker.schedule import TurnSchedule
from millpond.runtime.worker.second_call import SecondCall
from millpond.runtime.worker.settle import Settling
from millpond.runtime.worker.settle_answers import SettleAnswers
from millpond.runtime.worker.slots import Slots
from millpond.runtime.worker.state import WorkerState
from millpond.runtime.worker.stop import Stopping
from millpond.runtime.worker.turn import Quiet, Turns

if TYPE_CHECKING:
    import asyncio

    from millpond.runtime.jobs.job import Job


class Worker(WorkerState):
    """One worker of this process, made of parts that share its state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        services = self.services
        self.hooks = services.hooks
        self.watchdog = watchdog = Watchdog(self.loop, self, services.stalled)
        self.schedule = schedule = TurnSchedule(self)
        self.prefetch = prefetch = Prefetch(services.specs)
        self.queues = queues = Queues(self, schedule, prefetch)
        self.executors = executors = Executors(
            self.loop, self.concurrency, services.hooks, services.report_progress
        )
        misfits = Misfits(self)
        self.slots = slots = Slots(self, self)
        schedule.call_slot = slots.call_one
        self.attempts = attempts = Attempts(self, self, self, slots, prefetch, misfits)
        settling = Settling(self, schedule, queues, prefetch, slots, attempts)
        self.guard = guard = LeaseGuard(self, queues, attempts, settling)
        self.became_busy = guard.began
        leasing = Leasing(self, self, queues, prefetch, attempts, misfits, settling)
        answers = SettleAnswers(self, self, prefetch, attempts, leasing)
        one_by_one = OneByOne(self, attempts, answers)
        second = SecondCall(self, schedule, queues, prefetch, answers)
        self.quiet = quiet = Quiet(self.loop)
        self._turns = turns = Turns(
            self,
            self,
            schedule,
            queues,
            prefetch,
            slots,
            leasing,
            answers,
            one_by_one,
            second,
            watchdog,
            quiet,
        )
        stopping = Stopping(
            self, self, schedule, queues, slots, attempts, settling, turns, guard, executors, quiet
        )
        # Methods of its parts that others call on the worker.
        self.finished, self.give_back_prefetched = settling.finished, settling.give_back_prefetched
        self.committed, self.unreadable = answers.committed, misfits.unreadable
        self.safe_since, self.renewed = guard.safe_since, guard.renewed
        self.wind_down, self.leave = stopping.wind_down, stopping.leave
        self.leave_when_quiet, self.hurry = stopping.leave_when_quiet, stopping.hurry
        self.watch, self.woken = queues.watch, queues.woken
        self.look_everywhere, self.prefetched = queues.look_everywhere, prefetch.pools_of
        self.turn, self.turn_in_slot, self.held = turns.turn, turns.turn_in_slot, turns.held
        self.stop_job, self.in_thread = attempts.stop, executors.call

    def __repr__(self) -> str:
        pools = "all pools" if self.pools is None else ", ".join(sorted(self.pools))
        if self.own:
            pools = f"its own closures in {pools or 'no pool'}"
        return f"<worker {self.name} of {pools}: {len(self.jobs)} running>"

    # Start and stop

    async def start(self) -> None:
        """Register with the store and begin to look for work."""
        await self.services.registrar.register(self)
        self._turns.start()
        for pool in self.services.specs:
            self.watch(pool)

    async def stop(self, grace: float = 0.0) -> None:
        """Start nothing more, give running jobs `grace` seconds, interrupt and give back the rest.

        An interrupted attempt is given back without a charge. A task with one attempt that had
        begun fails instead, for it must not begin again. Safe before start, and safe twice.
        """
        await self.wind_down(grace)
        await self.leave()

    # Registration and leases

    def registered_as(self, name: str) -> None:
        """Go on under a new name, after the store had lost the old one."""
        self.name, self.fenced = name, False

    def lost_registration(self) -> None:
        """Stop all jobs and register again: the store has lost this worker and its leases."""
        if self.fenced:
            return
        self.fenced = True
        self.services.registrar.stop_renewing(self)
        self.services.announcer.leases_lost(list(self.jobs.values()))
        # The prefetched tasks are lost with the leases: there is nothing to give back.
        self.prefetch.clear()
        self.attempts.stop_all(CancelReason.LEASE_LOST)
        self.services.registrar.register_again(self)

    # Pools

    def add_pool(self, pool: str) -> None:
        """Serve one pool more."""
        if self.pools is not None and pool not in self.pools:
            self.pools |= {pool}
            self.watch(pool)

    def serves(self, pool: str) -> bool:
        """Return whether it runs tasks of a pool that any process submitted."""
        return self.joined and not self.stopping and not self.own and pool in self.queues

    def watches(self, pool: str) -> bool:
        """Return whether it asks a pool for work."""
        return pool in self.queues

    # Turns

    @property
    def scheduled(self) -> bool:
        """Whether a turn comes soon."""
        return self.schedule.scheduled

    @property
    def in_turn(self) -> bool:
        """Whether a turn is under way, or to be tried again."""
        return self.schedule.in_turn

    @property
    def turns(self) -> int:
        """How many verbs the store has answered."""
        return self._turns.answered

    @property
    def driver(self) -> asyncio.Task[None] | None:
        """The task that runs its turns."""
        return self._turns.driver

    # Jobs

    def holders(self, pool: str) -> list[Job]:
        """Return the jobs that keep it from starting more of a pool; none if it could."""
        return self.attempts.holders(pool, self.queues.free(pool))
