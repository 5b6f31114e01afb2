"""The runtime of one open Millpond: its store, its workers, and everybody who waits."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.control import Cancel, CancelRun, Declare, DeclareBudget, Progress
from millpond.core.lifecycle import Event, Status
from millpond.core.retention import in_force
from millpond.core.settle import Settled
from millpond.core.task import CALLBACKS
from millpond.core.why import span
from millpond.errors import ConfigError, NotOpen, UnknownTask
from millpond.runtime.caller_transactions import Joins
from millpond.runtime.fleet.closure_worker import OwnWorker
from millpond.runtime.fleet.dead_workers import Burials
from millpond.runtime.fleet.hint_listener import Hearing
from millpond.runtime.fleet.identity import Identity
from millpond.runtime.fleet.maintain import NEVER, Maintenance
from millpond.runtime.fleet.poll import Polling
from millpond.runtime.fleet.registration import Presenting
from millpond.runtime.fleet.renew import Renewals
from millpond.runtime.fleet.shared_store import Abilities
from millpond.runtime.fork_safety import used_by_millpond
from millpond.runtime.observe.failure_log import Failures
from millpond.runtime.observe.hooks import Counts, Hooks
from millpond.runtime.observe.log_filters import mark_ours
from millpond.runtime.observe.outage import Outages, insisted
from millpond.runtime.observe.report import Report
from millpond.runtime.run_to_completion import carried_through
from millpond.runtime.submit import Submitter
from millpond.runtime.waiting.deadlock import Waits
from millpond.runtime.waiting.progress import ProgressBoard
from millpond.runtime.waiting.results import Waiting
from millpond.runtime.waiting.task_result import End
from millpond.runtime.waiting.unserved_pools import UnservedPools
from millpond.runtime.worker.job import CancelReason
from millpond.runtime.worker.worker import Worker
from millpond.store.clock import kernel_times, steady
from millpond.store.protocol import SubmitAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine, Iterable, Mapping, Sequence

    from millpond.core.control import Order
    from millpond.core.lease import Leased
    from millpond.core.plan import Wake
    from millpond.core.settle import Settlement
    from millpond.core.spec import BudgetSpec, PoolSpec
    from millpond.runtime.worker.job import Closure, Handler, Job
    from millpond.runtime.worker.outcome import Policy
    from millpond.store.protocol import Admission, Batch, ControlAnswer, Store, View

log = logging.getLogger("millpond.runtime")
mark_ours()


DECLARED_AT_ONCE = 100
"""How many pools are made known to a store together, where there are many."""

ON_ITS_WAY = (0.0, 1.0, 60.0)
"""Seconds between looks at whether a submit that nobody waits for was stored; then it was not."""


SLOTS_NAMED = 3
"""How many of the tasks that hold slots are named."""


def wall_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the clock that goes with a loop: one with its own time has its own wall clock."""
    return getattr(loop, "wall_time", time.time)


def steady_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the clock that nobody sets: any thread may read it."""
    return loop.time if hasattr(loop, "wall_time") else time.monotonic


def lasting_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return a clock that nobody sets and that goes on while the machine is suspended."""
    return loop.time if hasattr(loop, "wall_time") else steady


def evidence_of(loop: asyncio.AbstractEventLoop) -> Callable[[], list[float]] | None:
    """Return what tells what time it is if the wall clock is in doubt; None in virtual time."""
    return None if hasattr(loop, "wall_time") else kernel_times


class Runtime:
    """What one open Millpond does in one process."""

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
        self.store = store
        self.view: View = store.view
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.process = os.getpid()
        used_by_millpond(self.loop)
        self.clock = clock or wall_clock(self.loop)
        self.lease = lease
        self.steady = steady_clock(self.loop)
        """A clock that nobody sets: for how long something took, or may take."""
        self.outages = Outages(self.steady)
        self.context = contextvars.copy_context()
        self.functions = functions
        self.retries = retries
        self.hooks = hooks
        self.shared = shared
        """Whether other processes may use the store: then silence here proves nothing."""
        self.abilities = Abilities(store, shared=shared)
        identity = identity or Identity()
        self.dice = identity.dice
        self.chance = self.dice.random
        self.owner = identity.owner
        self.declared: dict[str, PoolSpec] = {}
        self.budgets: Mapping[str, BudgetSpec] = {}
        """The budgets that pools of this process may share, by name."""
        self._declared_budgets: set[str] = set()
        self.closures: dict[int, Closure] = {}
        self.counts = hooks.counts = Counts()
        self.workers: list[Worker] = []
        self.own = OwnWorker(self)
        self.brought: dict[str, Any] = {}
        """Workers that were brought for one pool, for as long as somebody drains it."""
        self.waiting = Waiting(self)
        self.waits = Waits(self)
        self.unserved = UnservedPools(self)
        self.submitter = Submitter(self)
        self.joins = Joins(self)
        self.progress = ProgressBoard(self)
        self.renewals = Renewals(self)
        self.presenting = Presenting(self)
        self.burials = Burials(self)
        self.maintenance = Maintenance(self)
        self.polling = Polling(self)
        self.hearing = Hearing(self)
        self.report = Report(self)
        self.failures = Failures(self)
        self.closed = False
        self.inline = False
        """Whether the step under way ends with the turns it makes necessary."""
        self.new_id = identity.new_id
        self._appeared = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closing: asyncio.Task[None] | None = None
        self._closers: dict[asyncio.Task[Any], None] = {}
        self._lingering: dict[asyncio.Task[None], Worker] = {}
        """Workers that have stopped and hold tasks whose handlers have not."""

    # Its life

    def begin(self) -> None:
        """Listen to other processes, and look at the store now and then, if there may be any."""
        self.hearing.begin()
        self.polling.start()

    async def close(self, grace: float = 0.0) -> None:
        """Give back what this process holds, tell everybody who waits, and let the store go.

        Whoever asks twice waits for the same end, and being cancelled leaves nothing half closed.
        """
        caller = asyncio.current_task()
        if caller is not None:
            self._closers[caller] = None
        if self._closing is None:
            self._closing = self.loop.create_task(self._close(grace), context=self.context.copy())
        await carried_through(self._closing)

    async def _close(self, grace: float) -> None:
        self.closed = True
        error = NotOpen("the Millpond was closed while this waited; what is stored stays stored")
        self.submitter.close(error)
        for worker in self.workers:
            # All of them first: none is to begin what another gives back.
            worker.stopping = True
        for worker in list(self.workers):
            await worker.stop(grace)
        for worker in self._lingering.values():
            worker.hurry()
        await asyncio.gather(*self._lingering)
        self.workers.clear()
        if self.hooks.probes is not None:
            self.hooks.probes.closing()
        await self.maintenance.stop()
        await self.renewals.stop()
        await self.polling.stop()
        self.report.stop()
        self.waiting.close(error)
        await self.failures.finish()
        # A hook that closes waits for this, and must not be waited for.
        beside = [task for task in self._tasks if task not in self._closers]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        self.submitter.close(error)
        self.closures.clear()
        if self._appeared and self.abilities.presence is not None:
            self.abilities.presence.leave(self.owner)
        await self.store.close()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside everything else, and see to it that it is not lost.

        It runs in the context of the Millpond: it is nobody's, whoever was the occasion for it.
        """
        task = self.loop.create_task(work, context=self.context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        """Take in the end of something done on the side; an error of it is told, not lost."""
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("something done on the side failed: %s", error)

    async def declare(self, spec: PoolSpec) -> None:
        """Make a pool known to the store and to the workers."""
        if self.declared.get(spec.name) == spec:
            return
        for name in spec.budgets:
            await self.declare_budget(name)
        self.heed(await self.store.control(Declare(spec)))
        self.declared[spec.name] = spec
        if self.shared and spec.keep is not None and not spec.keep.given:
            await self._say_what_is_kept(spec)
        for worker in self.workers:
            worker.watch(spec.name)

    async def _say_what_is_kept(self, spec: PoolSpec) -> None:
        """Say so where this Millpond's default is not what is stored with a pool."""
        view = await self.view.pool(spec.name, measured=False)
        stored = in_force(None if view is None else view.declared.keep)
        wanted = in_force(spec.keep)
        if str(stored) != str(wanted):
            log.warning(
                "pool %s is stored with keep=%s, which stays; Millpond(keep=%s) here counts for "
                "new pools only: give the pool a keep= of its own to change it",
                spec.name,
                stored,
                wanted,
                extra={"pool": spec.name},
            )

    async def declare_all(self, specs: Sequence[PoolSpec]) -> None:
        """Make pools known, in order; many of them by the batch, so that they share commits."""
        at_once = DECLARED_AT_ONCE if self.shared and len(specs) > DECLARED_AT_ONCE else 1
        for first in range(0, len(specs), at_once):
            batch = specs[first : first + at_once]
            if at_once == 1:
                await self.declare(batch[0])
                continue
            answers = await asyncio.gather(*map(self.declare, batch), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer

    async def declare_budget(self, name: str) -> None:
        """Make a budget known to the store, once."""
        if name not in self._declared_budgets:
            self.heed(await self.store.control(DeclareBudget(self.budgets[name])))
            self._declared_budgets.add(name)

    async def add_worker(
        self,
        *,
        pools: frozenset[str] | None = None,
        concurrency: int | None = None,
        resources: Any = None,  # noqa: ANN401 - whatever the user's lifespan yields
        own: bool = False,
    ) -> Worker:
        """Start one more worker; one of its `own` takes nothing but closures of this process."""
        if self.abilities.presence is not None and not self._appeared:
            # Before anybody can hear of its workers: a lock nobody holds means that we are dead.
            self.abilities.presence.appear(self.owner)
            self._appeared = True
        worker = Worker(
            self,
            self.presenting.new_name(own=own),
            pools=frozenset() if own else pools,
            concurrency=concurrency,
            # Nobody else could take over what runs here: such a lease needs no renewal.
            lease=self.lease if self.shared else NEVER,
            resources=resources,
            own=own,
        )
        self.workers.append(worker)
        try:
            await worker.start()
        except BaseException:
            # Unless everything was closed meanwhile, and with it this one.
            if worker in self.workers:
                self.workers.remove(worker)
            raise
        self.maintenance.start()
        return worker

    async def remove_worker(self, worker: Worker, grace: float = 0.0) -> None:
        """Stop a worker; what it runs is given `grace` seconds, or less if this is cancelled."""
        stopping = self.loop.create_task(self._retire(worker, grace), context=self.context.copy())
        try:
            await carried_through(stopping, worker.hurry)
        finally:
            if worker in self.workers:
                self.workers.remove(worker)

    async def _retire(self, worker: Worker, grace: float) -> None:
        try:
            await self.own.take_over(worker)
        except Exception as error:  # noqa: BLE001 - it leaves all the same
            log.warning("nobody could be brought for the closures of this process: %s", error)
        await worker.wind_down(grace)
        if not worker.jobs or self.closed:
            await worker.leave()
            return
        lingering = self.loop.create_task(worker.leave_when_quiet(), context=self.context.copy())
        self._lingering[lingering] = worker
        lingering.add_done_callback(self._lingering.pop)

    # What verbs tell

    def heed(
        self,
        answer: Any,  # noqa: ANN401 - the answer of any verb
        asked: tuple[Worker, str] | None = None,
        told: Container[int] = (),
    ) -> None:
        """Pass on what an answer tells: pools to look at, tasks and runs that ended.

        `asked` is the worker and pool that the same verb leased for, `told` the tasks of which
        more is known already than that they ended.
        """
        if answer.wakes:
            for wake in answer.wakes:
                self._wake(wake, asked)
        if answer.ended:
            unseen = [task for task in answer.ended if task not in told]
            for task in unseen:
                self._heard_of_end(task)
            if unseen and type(answer) is not SubmitAnswer:
                # A submit evicts tasks and fails none.
                self.failures.ended_unseen(unseen)
        if answer.finished_runs:
            for run in answer.finished_runs:
                self.waiting.run_ended(run)
        if answer.emptied:
            for empty in answer.emptied:
                self.hooks.emptied(self, empty)

    def _wake(self, wake: Wake, asked: tuple[Worker, str] | None) -> None:
        for worker in self.workers:
            if asked is None or asked[0] is not worker or asked[1] != wake.pool:
                worker.woken(wake)

    def _heard_of_end(self, task: int) -> None:
        """A task was ended by something else than a handler of ours."""
        self.closures.pop(task, None)
        self.maintenance.keep(None)
        self.waiting.ended(task, None)
        self.submitter.room_anywhere()
        self.hooks.ended_unseen(self, task)

    def ended(self, leased: Leased, status: Status, end: End) -> None:
        """One of our own settlements ended a task."""
        task = leased.fence.task
        self.closures.pop(task, None)
        pool = leased.pool.removesuffix(CALLBACKS)
        if not self.maintenance.keeps(pool):
            self.maintenance.keep(pool)
        if self.report.timer is None:
            self.report.begin()
        if status is Status.FAILED:
            self.failures.failed(leased, end)
        self.waiting.ended(task, end)
        self.hooks.settled(self, leased, status, end)

    def completed(self, ended: Sequence[tuple[Settlement, Job, Any]]) -> dict[int, None]:
        """Our own settlements completed tasks: as `ended`, for many; return which."""
        for pool in {job.leased.pool.removesuffix(CALLBACKS) for _, job, _ in ended}:
            if not self.maintenance.keeps(pool):
                self.maintenance.keep(pool)
        if self.report.timer is None:
            self.report.begin()
        closures, tell, completed = self.closures, self.waiting.ended, Status.COMPLETED
        told: dict[int, None] = {}
        for decided, job, value in ended:
            task = job.leased.fence.task
            told[task] = None
            if closures:
                closures.pop(task, None)
            end = End.of(decided, job, value, completed)
            tell(task, end)
            if self.hooks.observers:
                self.hooks.settled(self, job.leased, completed, end)
        return told

    def followed(self, decided: Settlement, job: Job, stored: tuple[Admission, ...]) -> None:
        """One of our own settlements stored what its handler submitted, or found it known."""
        now = self.clock()
        for tell, admission in zip(job.on_stored or (), stored, strict=False):
            tell(admission, now)
        if self.hooks.probes is not None:
            for new, admission in zip(decided.follow_ups, stored, strict=False):
                self.hooks.probes.stored(new.pool, (admission,))
        if any(new.expires_in is not None for new in decided.follow_ups):
            self.maintenance.nudge()

    def retried(self, leased: Leased, decided: Settlement) -> None:
        """One of our own settlements put a task back into the queue."""
        # It may expire there, or be parked for a while only.
        self.maintenance.nudge()
        if self.report.timer is None:
            self.report.begin()
        if decided.event is Event.RETRY and decided.spend:
            # A wish to come back later that costs nothing is no failure.
            self.failures.retried(leased, decided)
        self.hooks.retried(self, leased, decided)

    def stalled(self, worker: str) -> None:
        """A worker's loop makes no progress."""
        self.counts.stalls += 1
        self.hooks.stalled(self, worker)

    def corrupt(self) -> None:
        """Count a stored call that cannot be read; its failure is logged once it is settled."""
        self.counts.corrupt += 1

    def stale(self, job: Job) -> None:
        """A settlement came too late: somebody else owns the task now, and nothing was changed."""
        self.counts.stale_settles += 1
        self.hooks.stale(self, job.leased)

    def told_twice(self, job: Job, decided: Settlement, value: Any) -> None:  # noqa: ANN401
        """A settlement that was sent again came too late: perhaps it had come in time before."""
        self.spawn(self._find_out(job, decided, value))

    async def _find_out(self, job: Job, decided: Settlement, value: Any) -> None:  # noqa: ANN401
        task = await insisted(partial(self.view.task, job.id), lambda: self.closed)
        if task is None or task.token != job.leased.fence.token:
            settled = Settled.STALE
            job.worker.tally.stale += 1
            self.stale(job)
        else:
            settled = Settled.APPLIED
            if task.status.terminal:
                job.worker.tally.ended(task.status)
                self.ended(job.leased, task.status, End.of(decided, job, value, task.status))
            else:
                self.retried(job.leased, decided)
        if self.hooks.probes is not None:
            after = None if task is None else task.status
            self.hooks.probes.settled(job, decided, settled, after)

    def gone(self, task: int) -> Exception:
        """Return the error for a task that the store does not know."""
        return self.joins.undone(task) or UnknownTask(
            f"no task {task} is known; it may have ended and been forgotten (see Keep)",
            task_id=task,
        )

    def forget_closures(self, tasks: Iterable[int]) -> None:
        """Let go of code that no stored task stands for."""
        for task in tasks:
            self.closures.pop(task, None)

    async def forget_unknown(self, tasks: Sequence[int]) -> None:
        """Let go of the code of those tasks that the store does not know, and will not know.

        A submit whose caller was cancelled may be on its way to a shared store, and be stored after
        all: then its code is needed.
        """
        for pause in ON_ITS_WAY if self.shared else (0.0,):
            await asyncio.sleep(pause)
            known = zip(tasks, await self.view.status(tasks), strict=True)
            tasks = [task for task, status in known if status == "unknown"]
            if not tasks:
                return
        self.forget_closures(tasks)

    # What workers ask

    def body_of(self, leased: Leased) -> Handler | Closure | None:
        """Return the code of a leased task, or None if it is not here."""
        closure = self.closures.get(leased.fence.task)
        return closure if closure is not None else self.functions.get(leased.call.function)

    def limit_of(self, pool: str) -> int:
        """Return how many tasks of a pool may run, as far as this process knows."""
        spec = self.declared.get(pool.removesuffix(CALLBACKS))
        if spec is None:
            return 1
        return spec.max_callbacks if pool.endswith(CALLBACKS) else spec.most_concurrent

    def no_slot(self, pool: str) -> str | None:
        """Return who holds the slots of this process that a pool waits for; None if one is free.

        Only this process knows which of its handlers have run out of time and go on.
        """
        serving = [(worker, worker.holders(pool)) for worker in self.workers if worker.serves(pool)]
        if not serving or not all(jobs for _, jobs in serving):
            return None
        now = self.clock()
        told = [_holding(worker, job, now) for worker, jobs in serving for job in jobs]
        if len(told) == 1:
            return f"the only slot of this process is held by {told[0]}"
        more = f" and {len(told) - SLOTS_NAMED} more" if len(told) > SLOTS_NAMED else ""
        return f"all slots of this process are held by {', '.join(told[:SLOTS_NAMED])}{more}"

    def job_of(self, task: int) -> Job | None:
        """Return the job that runs a task in this process, or None."""
        for worker in self.workers:
            job = worker.jobs.get(task)
            if job is not None:
                return job
        return None

    def serves_all(self) -> bool:
        """Return whether one worker of this process looks after every pool."""
        return any(worker.pools is None for worker in self.workers)

    def served(self, pool: str) -> bool:
        """Return whether a worker of this process looks after a pool."""
        return any(worker.serves(pool) for worker in self.workers)

    def fenced(self, worker: Worker) -> None:
        """The store no longer knows a worker: its leases are lost, and it starts anew."""
        if worker.fenced:
            return
        worker.fenced = True
        self.renewals.drop(worker)
        self.lost(worker)
        # Its claims are lost with its leases: there is nothing to give back.
        worker.ahead.given_up()
        for job in list(worker.jobs.values()):
            worker.stop_job(job, CancelReason.LEASE_LOST)
        self.spawn(self.presenting.again(worker))

    def lost(self, worker: Worker) -> None:
        """Count the leases that a worker has lost."""
        self.counts.leases_lost += len(worker.jobs)
        if self.hooks.probes is not None:
            self.hooks.probes.lost(worker)

    async def tell_progress(self, job: Job, fraction: float, text: str) -> None:
        """Store how far an attempt has come, if it still holds its lease."""
        if not 0.0 <= fraction <= 1.0:
            raise ConfigError("fraction", fraction, "must be from 0 to 1")
        text = check.cut(check.encodable("text", check.text("text", text)), bounds.MAX_PROGRESS)
        self.heed(await self.store.control(Progress(job.leased.fence, fraction, text)))
        self.progress.told(job.id, fraction, text)

    def must_be_open(self) -> None:
        """Object to waiting for what will not come any more."""
        if self.closed:
            raise NotOpen("the Millpond was closed while this waited")

    # Orders

    async def cancel(
        self,
        tasks: tuple[int, ...],
        *,
        interrupt: bool,
        of: str | None = None,
        by: str | None = None,
    ) -> int:
        """Cancel tasks (of one pool); a running one here is told at once."""
        answer = await self.store.control(Cancel(tasks, interrupt, of, by))
        self.heed(answer)
        self.give_back_ahead()
        for task in tasks:
            job = self.job_of(task)
            if job is not None and of in (None, job.leased.pool.removesuffix(CALLBACKS)):
                job.worker.stop_job(job, CancelReason.CANCEL, interrupt=interrupt)
        return answer.count

    async def cancel_run(self, run: int, *, by: str | None = None) -> None:
        """Stop a run: what waits of it is cancelled, what runs of it here is told at once."""
        self.heed(await self.store.control(CancelRun(run, by)))
        for worker in self.workers:
            for job in list(worker.jobs.values()):
                if job.leased.run == run and not job.leased.pool.endswith(CALLBACKS):
                    worker.stop_job(job, CancelReason.CANCEL, interrupt=False)

    async def cancel_one(self, task: int, *, interrupt: bool, of: str | None = None) -> bool:
        """Cancel a task and return whether that changed anything; UnknownTask if it never was."""
        changed = bool(await self.cancel((task,), interrupt=interrupt, of=of))
        if not changed and await self.view.status((task,)) == ("unknown",):
            raise self.gone(task)
        return changed

    async def order(self, order: Order) -> ControlAnswer:
        """Have an order carried out, in as many pages as it takes; return what all came to."""
        answer = await self.store.control(order)
        self.heed(answer)
        count, cancelled, interrupted = answer.count, answer.cancelled, answer.interrupted
        while answer.more is not None:
            # Others have their turn in between, here and in the store.
            await asyncio.sleep(0)
            answer = await self.store.control(msgspec.structs.replace(order, page=answer.more))
            self.heed(answer)
            count, cancelled = count + answer.count, cancelled + answer.cancelled
            interrupted += answer.interrupted
        return msgspec.structs.replace(
            answer, count=count, cancelled=cancelled, interrupted=interrupted
        )

    def cancelled_all(
        self, pool: str, *, before: float | None, unit: str | None, interrupt: bool
    ) -> None:
        """Tell the jobs of a pool that they were cancelled with the rest of it."""
        for worker in self.workers:
            for job in list(worker.jobs.values()):
                leased = job.leased
                own = leased.lane if leased.lane is not None else leased.key
                meant = leased.pool == pool and unit in (None, own)
                if meant and (before is None or leased.submitted_at < before):
                    worker.stop_job(job, CancelReason.CANCEL, interrupt=interrupt)

    def give_back_ahead(self, pool: str | None = None) -> None:
        """Give back what is claimed ahead: an order may have been about some of it."""
        for worker in self.workers:
            if worker.ahead.held:
                worker.give_back_ahead(pool)

    def told_to_cancel(self, tasks: tuple[int, ...], interrupted: tuple[int, ...]) -> None:
        """Somebody else cancelled tasks that run here, and interrupts some of them.

        A renewal says so again and again: a handler that cleans up must not be hit once more.
        """
        for task in tasks:
            job = self.job_of(task)
            if job is not None:
                hit = task in interrupted and not job.interrupted
                job.worker.stop_job(job, CancelReason.CANCEL, interrupt=hit)
        for worker in self.workers if tasks else ():
            for pool in worker.ahead.pools_of(tasks):
                worker.give_back_ahead(pool)

    def observe_blocked(self, pool: str, batch: Batch) -> None:
        """A submitter waits for room."""
        self.hooks.blocked(self, pool, batch)


def _holding(worker: Worker, job: Job, now: float) -> str:
    """Return which task holds a slot; of one whose handler did not stop, since when."""
    name = f"task {job.id} ({job.leased.call.function or 'a closure'})"
    since = worker.stuck_since.get(job)
    if since is None:
        return name
    return f"{name}, which is stuck: its time was over {span(now - since)} ago, its handler goes on"
