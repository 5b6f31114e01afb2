"""The runtime of one open Millpond: builds its services and closes them in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from millpond.errors import NotOpen
from millpond.runtime.answers import Answers
from millpond.runtime.caller_transactions import CallerTransactions
from millpond.runtime.control import Control
from millpond.runtime.declarations import Declarations
from millpond.runtime.environment import Environment
from millpond.runtime.fleet.closure_worker import ClosureWorker
from millpond.runtime.fleet.compact import Compactor
from millpond.runtime.fleet.dead_workers import DeadWorkers
from millpond.runtime.fleet.hint_listener import HintListener
from millpond.runtime.fleet.leader import Leadership
from millpond.runtime.fleet.local_workers import LocalWorkers
from millpond.runtime.fleet.maintain import Maintenance
from millpond.runtime.fleet.poll import Polling
from millpond.runtime.fleet.prune import Pruner
from millpond.runtime.fleet.recovery_delay import RecoveryDelay
from millpond.runtime.fleet.registration import Registration
from millpond.runtime.fleet.renew import Renewals
from millpond.runtime.fleet.session import SessionKeeper
from millpond.runtime.fleet.unserved_pools import UnservedPools
from millpond.runtime.jobs.job import job_of
from millpond.runtime.kept_pools import KeptPools
from millpond.runtime.observe.evictions import Evictions
from millpond.runtime.observe.failure_log import Failures
from millpond.runtime.observe.hook_caller import HookCaller
from millpond.runtime.observe.hooks import Counts
from millpond.runtime.observe.log_filters import mark_ours
from millpond.runtime.observe.outage import Outages
from millpond.runtime.observe.report import Report
from millpond.runtime.run_to_completion import run_to_completion
from millpond.runtime.send import Sender
from millpond.runtime.submit import Submitter
from millpond.runtime.waiting.deadlock import Waits
from millpond.runtime.waiting.joined_tasks import JoinedTasks
from millpond.runtime.waiting.progress import ProgressBoard
from millpond.runtime.waiting.results import Waiting
from millpond.runtime.worker.announce import Announcer
from millpond.runtime.worker.state import WorkerServices
from millpond.runtime.worker.workers import no_slot, served

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from millpond.core.spec import PoolSpec
    from millpond.runtime.identity import Identity
    from millpond.runtime.jobs.job import Closure, Handler, Job
    from millpond.runtime.jobs.policy import Policy
    from millpond.runtime.observe.hooks import Hooks
    from millpond.runtime.worker.worker import Worker
    from millpond.store.protocol import Store

mark_ours()


class Runtime:
    """The services of one open Millpond in one process."""

    def __init__(
        self,
        store: Store,
        *,
        functions: Mapping[str, Handler],
        retries: Mapping[str, Policy],
        hooks: Hooks,
        shared: bool,
        identity: Identity | None = None,
        clock: Callable[[], float] | None = None,
        lease: float = 30.0,
    ) -> None:
        env = self.env = Environment(store, shared=shared, identity=identity, clock=clock)
        self.store, self.view, self.shared_store = env.store, env.view, env.shared_store
        self.shared, self.owner, self.new_id = env.shared, env.owner, env.new_id
        self.loop, self.thread, self.process = env.loop, env.thread, env.process
        self.clock, self.steady, self.random = env.clock, env.steady, env.random
        self.spawn, self.must_be_open = env.spawn, env.must_be_open
        self.hooks = hooks
        self.counts = hooks.counts = Counts()
        self.workers: list[Worker] = []
        self.closures: dict[int, Closure] = {}
        """The code of closures that were submitted here, by task."""
        self.temporary_workers: dict[str, Any] = {}
        """Workers that serve one pool while it is drained."""
        self._closing: asyncio.Task[None] | None = None
        self._closers: dict[asyncio.Task[Any], None] = {}
        self._nudged = asyncio.Event()
        self._build_base(functions)
        self._build_submit()
        self._build_fleet(functions)
        self._build_workers(functions, retries, lease)

    def _build_base(self, functions: Mapping[str, Handler]) -> None:
        env, specs = self.env, dict[str, "PoolSpec"]()
        self._outages = Outages(env.steady)
        self._joined_tasks = JoinedTasks()
        self.waiting = Waiting(env, self.closures, self._joined_tasks)
        self.waits = Waits(env, self.workers, self.waiting)
        self.progress = ProgressBoard(env, self.waiting)
        self._failures = Failures(env)
        self._report = Report(env, specs)
        self._hook_caller = HookCaller(env, self.hooks, functions)
        self._kept_pools = KeptPools(specs, self._nudged.set)
        self.answers = Answers(
            self.workers,
            self.closures,
            self._kept_pools,
            self.waiting,
            self._hook_caller,
            self._failures,
            self._offer_room,
        )
        self.declarations = Declarations(env, self.workers, self.answers, specs)
        self.control = Control(env, self.workers, self.answers, self.waiting, self.progress)
        self.unserved = UnservedPools(env, self.workers)

    def _build_submit(self) -> None:
        env, specs, nudge = self.env, self.declarations.specs, self._nudged.set
        sender = Sender(env, self.workers, self.answers, Evictions(env, self.hooks, specs), nudge)
        self.submitter = Submitter(env, sender, specs, self._hook_caller, self._poll_soon)
        self.caller_transactions = CallerTransactions(
            env, self.answers, self.declarations, self.waiting, self._joined_tasks, nudge
        )

    def _build_fleet(self, functions: Mapping[str, Handler]) -> None:
        env, workers, outages = self.env, self.workers, self._outages
        delay = RecoveryDelay(env.steady)
        leadership = Leadership(env, workers, delay)
        dead_workers = DeadWorkers(
            env, self.answers, self._failures, self.hooks, leadership, self._nudged.set
        )
        self.renewals = Renewals(env, outages, delay, self.control, dead_workers)
        self.session = SessionKeeper(
            env,
            workers,
            lambda: leadership.leads,
            self.renewals.hurry_all,
            dead_workers.without_session,
        )
        self.registration = Registration(
            env, workers, self.answers, self.renewals, functions, self.session
        )
        self.maintenance = Maintenance(
            env,
            outages,
            workers,
            self.answers,
            self._failures,
            self.hooks,
            self.waiting,
            self._kept_pools,
            leadership,
            delay,
            self.renewals,
            Pruner(
                env,
                outages,
                leadership,
                self.waiting,
                self._kept_pools,
                self.declarations.specs,
            ),
            Compactor(env, outages),
            self._nudged,
        )
        self.polling = Polling(
            env,
            outages,
            workers,
            self.submitter,
            self.waiting,
            self.progress,
            self.renewals,
            self.maintenance,
        )
        self.hint_listener = HintListener(
            env,
            workers,
            self.closures,
            self.waiting,
            self.submitter,
            self.polling,
            self.control,
        )

    def _build_workers(
        self, functions: Mapping[str, Handler], retries: Mapping[str, Policy], lease: float
    ) -> None:
        announcer = Announcer(
            self.env,
            self.closures,
            self._kept_pools,
            self.waiting,
            self._failures,
            self._report,
            self.hooks,
            self._hook_caller,
            self._nudged.set,
        )
        services = WorkerServices(
            runtime=self,
            env=self.env,
            answers=self.answers,
            announcer=announcer,
            waiting=self.waiting,
            outages=self._outages,
            hooks=self.hooks,
            registrar=self.registration,
            functions=functions,
            retries=retries,
            closures=self.closures,
            specs=self.declarations.specs,
            session=self.session,
            found_work=self._found_work,
            stalled=announcer.stalled,
            report_progress=self._report_progress,
        )
        self.closure_worker = ClosureWorker(
            self.env,
            self.workers,
            self.closures,
            lambda: self.local_workers.start(own=True),
        )
        self.local_workers = LocalWorkers(
            self.env,
            self.workers,
            services,
            self.registration,
            self.maintenance,
            self.closure_worker,
            self.session,
            lease,
        )

    # Links between services that need each other

    def _offer_room(self) -> None:
        self.submitter.room_anywhere()

    def _poll_soon(self) -> None:
        self.polling.poll_soon()

    def _found_work(self, pool: str) -> None:
        """A worker leased tasks of a pool: hints for it are worth a wake, and it may have room."""
        self.hint_listener.found_work(pool)
        self.submitter.room(pool)

    def _report_progress(self, job: Job, fraction: float, text: str) -> None:
        self.env.spawn(self.control.report_progress(job, fraction, text))

    # What pools ask about workers

    @property
    def closed(self) -> bool:
        """Whether the Millpond is closed, or closes."""
        return self.env.closed

    def served(self, pool: str) -> bool:
        """Return whether a worker of this process serves a pool."""
        return served(self.workers, pool)

    def job_of(self, task: int) -> Job | None:
        """Return the job that runs a task in this process, or None."""
        return job_of(self.workers, task)

    def no_slot(self, pool: str) -> str | None:
        """Return which tasks hold the slots that a pool waits for here; None if one is free."""
        return no_slot(self.workers, pool, self.clock())

    # Start and close

    def start(self) -> None:
        """Listen to other processes and poll the store, if it is shared."""
        self.hint_listener.start()
        self.polling.start()

    async def close(self, grace: float = 0.0) -> None:
        """Give back what this process holds, end every wait, and close the store.

        A second call waits for the same end. A cancelled caller leaves nothing half closed.
        """
        caller = asyncio.current_task()
        if caller is not None:
            self._closers[caller] = None
        if self._closing is None:
            self._closing = self.env.new_task(self._close(grace))
        await run_to_completion(self._closing)

    async def _close(self, grace: float) -> None:
        self.env.closed = True
        error = NotOpen("the Millpond was closed while this waited; what is stored stays stored")
        self.submitter.close(error)
        await self.local_workers.stop_all(grace)
        if self.hooks.probes is not None:
            self.hooks.probes.closing()
        await self.maintenance.stop()
        await self.renewals.stop()
        await self.session.stop()
        await self.polling.stop()
        self._report.stop()
        self.waiting.close(error)
        await self._failures.finish()
        # A hook that closes waits for this, and must not be waited for.
        await self.env.cancel_background(but=self._closers)
        self.submitter.close(error)
        self.closures.clear()
        self.local_workers.release_lock()
        await self.store.close()
