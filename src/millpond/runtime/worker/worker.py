"""A worker: leases tasks of its pools, runs their handlers in slots and settles their attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from millpond.runtime.executors.executors import Executors
from millpond.runtime.jobs.job import CancelReason
from millpond.runtime.worker.attempts import Attempts
from millpond.runtime.worker.lease_guard import LeaseGuard
from millpond.runtime.worker.leasing import Leasing
from millpond.runtime.worker.misfits import Misfits
from millpond.runtime.worker.one_by_one import OneByOne
from millpond.runtime.worker.prefetch import Prefetch
from millpond.runtime.worker.queues import Queues
from millpond.runtime.worker.schedule import TurnSchedule
from millpond.runtime.worker.settle import Settling
from millpond.runtime.worker.settle_answers import SettleAnswers
from millpond.runtime.worker.slots import Slots
from millpond.runtime.worker.state import WorkerServices, WorkerState
from millpond.runtime.worker.stop import Quiet, Stopping
from millpond.runtime.worker.turn import Turns

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Container

    from millpond.core.plan import Wake
    from millpond.core.settle import Outcome, Settlement, Unfit
    from millpond.runtime.jobs.job import Job
    from millpond.runtime.jobs.outcome import Unreadable
    from millpond.runtime.observe.watchdog import Watchdog
    from millpond.store.protocol import SettleAnswer

T = TypeVar("T")


class Worker(WorkerState):
    """One worker of this process, made of parts that share its state."""

    finished: Callable[[Job, Any, Outcome], None]
    """Called with a job that has ended, with what its handler returned or raised."""

    def __init__(
        self,
        services: WorkerServices,
        name: str,
        *,
        pools: frozenset[str] | None,
        concurrency: int | None,
        lease: float,
        resources: Any = None,  # noqa: ANN401 - what the user's lifespan yields
        own: bool = False,
    ) -> None:
        super().__init__(
            services,
            name,
            pools=pools,
            concurrency=concurrency,
            lease=lease,
            resources=resources,
            own=own,
        )
        self.hooks = services.hooks
        self.schedule = schedule = TurnSchedule(self)
        self.prefetch = prefetch = Prefetch(services.specs)
        self.queues = queues = Queues(self, schedule, prefetch)
        self.executors = Executors(self.loop, concurrency, services.hooks, services.report_progress)
        self._misfits = misfits = Misfits(self)
        self.slots = slots = Slots(self, self)
        self._attempts = attempts = Attempts(self, self, self, slots, prefetch, misfits)
        self._settling = settling = Settling(self, schedule, queues, prefetch, slots, attempts)
        self.finished = settling.finished
        self._guard = guard = LeaseGuard(self, queues, attempts, settling)
        self.became_busy = guard.began
        leasing = Leasing(self, self, queues, prefetch, slots, attempts, misfits, settling)
        self._settle_answers = SettleAnswers(self, self, prefetch, attempts, leasing)
        one_by_one = OneByOne(self, attempts, self._settle_answers)
        quiet = Quiet(self.loop)
        self._turns = turns = Turns(
            self,
            self,
            schedule,
            queues,
            prefetch,
            leasing,
            self._settle_answers,
            one_by_one,
            quiet.reached,
        )
        self._stopping = Stopping(
            self,
            self,
            schedule,
            queues,
            slots,
            attempts,
            settling,
            turns,
            guard,
            self.executors,
            quiet,
        )

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

    async def wind_down(self, grace: float) -> None:
        """Start nothing more, give running jobs `grace` seconds, interrupt the rest."""
        await self._stopping.wind_down(grace)

    async def leave_when_quiet(self) -> None:
        """Hold the tasks of handlers that do not stop until they end, or until `hurry`; leave."""
        await self._stopping.leave_when_quiet()

    async def leave(self) -> None:
        """Settle what is left without its handlers, and deregister."""
        await self._stopping.leave()

    def hurry(self) -> None:
        """While it stops, give running jobs no more time, and do not wait for them."""
        self._stopping.hurry()

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
        self._attempts.stop_all(CancelReason.LEASE_LOST)
        self.services.registrar.register_again(self)

    def safe_since(self, sent: float) -> None:
        """Note that its leases hold from `sent` on; any thread may call this."""
        self._guard.safe_since(sent)

    def renewed(self, sent: float) -> None:
        """Note that its leases hold from `sent` on, on the loop."""
        self._guard.renewed(sent)

    # Pools

    def watch(self, pool: str) -> None:
        """Serve a pool from now on, if it is one of its pools."""
        self.queues.watch(pool)

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

    def woken(self, wake: Wake) -> None:
        """Note that a pool may have something to start."""
        self.queues.woken(wake)

    def look_everywhere(self) -> None:
        """Ask every pool again."""
        self.queues.look_everywhere()

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
    def watchdog(self) -> Watchdog:
        """What reports a turn that the store does not answer."""
        return self._turns.watchdog

    @property
    def driver(self) -> asyncio.Task[None] | None:
        """The task that runs its turns."""
        return self._turns.driver

    async def turn(self) -> None:
        """Settle what has ended and lease what may start."""
        await self._turns.turn()

    # Jobs

    def held(self) -> list[int]:
        """Return the tasks that it holds: running, ended and not settled, prefetched."""
        return self._turns.held()

    def holders(self, pool: str) -> list[Job]:
        """Return the jobs that keep it from starting more of a pool; none if it could."""
        return self._attempts.holders(pool, self.queues.free(pool))

    def stop_job(self, job: Job, why: CancelReason, *, interrupt: bool = True) -> None:
        """Ask a job to stop."""
        self._attempts.stop(job, why, interrupt=interrupt)

    def unreadable(self, job: Job, error: Unreadable) -> Unfit:
        """Return the outcome of a task whose arguments cannot be read here."""
        return self._misfits.unreadable(job, error)

    def prefetched(self, tasks: Container[int]) -> list[str]:
        """Return the pools of which it has prefetched one of these tasks."""
        return self.prefetch.pools_of(tasks)

    def give_back_prefetched(self, pool: str | None = None) -> None:
        """Give back what it has prefetched of a pool, or of all pools."""
        self._settling.give_back_prefetched(pool)

    def in_thread(self, fn: Callable[[], T]) -> asyncio.Future[T]:
        """Call something that blocks in a thread."""
        return self.executors.call(fn)

    def committed(
        self,
        job: Job,
        decided: Settlement,
        value: Any,  # noqa: ANN401 - what the task returns
        answer: SettleAnswer,
    ) -> bool:
        """Note that a handler settled its attempt itself; return whether that was applied."""
        return self._settle_answers.committed(job, decided, value, answer)
