"""A worker: decide, act, wait. It leases where the plan says so, runs, settles, and sleeps.

A turn carries out what there is to do: it settles what has ended and, in the same verb, leases
what may start next. One turn at a time; what ends while a verb is on its way goes into the next.
Between two turns a worker waits for a wake-up or for the moment the plan named. It never polls a
pool that has nothing for it, and never sleeps through work that is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.control import Deregister, Disown
from millpond.core.event import SYSTEM
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Status, Transition
from millpond.core.order.heap import LazyHeap
from millpond.core.plan import ClaimTimer, Wake, Work
from millpond.core.settle import (
    Interrupted,
    Outcome,
    Raised,
    Settled,
    Settlement,
    Succeeded,
    Unfit,
    settle,
)
from millpond.core.task import CALLBACKS, tried
from millpond.errors import ArgumentsDoNotFit, MillpondError
from millpond.runtime.bad_values import ended_by, is_at_fault, is_the_stores, without_successor
from millpond.runtime.batching import portion, weight_of
from millpond.runtime.error_info import describe
from millpond.runtime.executors.dispatch import Elsewhere
from millpond.runtime.fleet.poll import FAR
from millpond.runtime.observe.watchdog import Watchdog
from millpond.runtime.waiting.task_result import End
from millpond.runtime.worker.batch import BatchCall, Batches
from millpond.runtime.worker.job import CancelReason, Closure, Handler, Job, Where, current_job
from millpond.runtime.worker.outcome import DEFAULT_RETRY, Misfit, formula_of
from millpond.runtime.worker.prefetch import Ahead
from millpond.runtime.worker.slot import Slot, interrupted, timed_out
from millpond.runtime.worker.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.task import Fence
    from millpond.runtime.observe.probe import Probes
    from millpond.runtime.runtime import Runtime
    from millpond.runtime.worker.outcome import Unreadable
    from millpond.store.protocol import LeaseAnswer, SettleAnswer

log = logging.getLogger("millpond.worker")

MOST_AT_ONCE = 1000
"""How many tasks one lease asks for, and one settle tells of, at most."""

STRETCH = 0.005
"""Seconds for which jobs that never wait may keep the loop from an answer of the store."""

WOKEN_AT_ONCE = 4
"""How many slots are woken for a batch of jobs, and by each job that has to wait."""

FEW_QUEUES = 16
"""Of up to so many queues each is asked for work; of more, one read first says which have any."""

SLOTS_KEPT = 256
"""How many idle slots are kept for later."""

STUCK_AFTER = 1.0
"""Seconds after it was told to stop at which a handler that goes on is reported as stuck."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds to wait after the store failed, doubling."""

MOST_REPORTED = 1000
"""How many functions, and arguments that do not fit them, are remembered as reported."""

STOP_WITHIN = 5.0
"""Seconds for which a worker that stops tries to tell a failing store what has ended."""

MARGIN = 0.1
"""The part of a lease before its end at which handlers are stopped if it was not renewed."""


class Worker:
    """Leases for its pools, runs handlers in slots, settles what they did."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        *,
        pools: frozenset[str] | None,
        concurrency: int | None,
        lease: float,
        resources: Any = None,  # noqa: ANN401 - whatever the user's lifespan yields
        own: bool = False,
    ) -> None:
        self.runtime = runtime
        self.loop = runtime.loop
        self.name = name
        self.pools = pools
        self.concurrency = concurrency
        self.lease = lease
        self.resources = resources
        self.own = own
        """Whether it takes nothing but closures of this process, of pools it is told of."""
        self.jobs: dict[int, Job] = {}
        self.stuck_since: dict[Job, float] = {}
        """Jobs whose handlers went on after their time, and when that was over."""
        self.stopping = False
        self.joined = False
        self.fenced = False
        """The store no longer knows it; it asks for nothing until it has joined anew."""
        self.late = False
        """It could not renew in time; it asks for nothing until it has."""
        self.safe_until = 0.0
        """Until when its leases are its own for sure, by the steady clock."""
        self._guard: asyncio.TimerHandle | None = None
        self._doubtful = False
        """An answer was lost: the store may hold leases for it that never reached it."""
        self._let_go_at = 0.0
        """When a slot last let the loop go on, by its clock."""
        self.turns = 0
        """How many verbs were answered."""
        self.tally = Tally()
        self._watches: dict[str, ClaimTimer] = {}
        self._dry: set[str] = set()
        """Pools whose last answer said that nothing waits in them."""
        self._unknown: set[tuple[str, str]] = set()
        """Pools, and what was reported of them that cannot be run here."""
        self._due: dict[str, None] = {}
        self._unseen: dict[str, None] = {}
        """Due queues of which nothing is known: whether they have work is looked up at once."""
        self._moments: LazyHeap[str] = LazyHeap()
        self._timer: asyncio.TimerHandle | None = None
        self._ended: list[tuple[Settlement, Job, Any]] = []
        self.ready: deque[Job] = deque()
        """Leased jobs whose handlers have not begun; it is empty again within a moment."""
        self.called = 0
        """How many slots were woken, or made, for a job and have not come yet."""
        self._idle: list[Slot] = []
        self._slots: set[Slot] = set()
        self._turning = False
        self._scheduled = False
        self._driver: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._pause = 0.0
        self._pauses: dict[str, float] = {}
        """Seconds for which pools are left alone of which nothing could be leased."""
        self._quiet: list[asyncio.Future[None]] = []
        self._in_grace = False
        self._after_turn: list[asyncio.Future[None]] = []
        self.elsewhere = Elsewhere(self)
        self.batches = Batches(self)
        self.ahead = Ahead(self)
        self.watchdog = Watchdog(self)

    # Its life

    async def start(self) -> None:
        """Present itself to the store and begin to look for work."""
        runtime = self.runtime
        sent = runtime.steady()
        runtime.heed(await runtime.presenting.present(self, self.name))
        self.joined = True
        runtime.renewals.keep(self, sent)
        self._driver = self.loop.create_task(self._drive(), name=f"millpond {self.name}")
        self._driver.add_done_callback(self._driven)
        for pool in runtime.declared:
            self.watch(pool)

    def __repr__(self) -> str:
        pools = "all pools" if self.pools is None else ", ".join(sorted(self.pools))
        if self.own:
            pools = f"its own closures in {pools or 'no pool'}"
        return f"<worker {self.name} of {pools}: {len(self.jobs)} running>"

    @property
    def at_it(self) -> bool:
        """Whether a turn is under way, or to be tried again."""
        return self._turning or self._pause > 0

    def watch(self, pool: str) -> None:
        """Look after a pool, and after its callbacks, from now on.

        Events and triggers are looked after whatever pools it was told to serve: their tasks are
        short, and those who serve only some pools may be all there are.
        """
        told = self.pools is None or pool in self.pools
        if not told and (self.own or not pool.startswith(SYSTEM)):
            return
        for name in (pool,) if self.own else (pool, pool + CALLBACKS):
            if name not in self._watches:
                self._watches[name] = ClaimTimer()
                self._unseen[name] = None
        self.kick()

    def also(self, pool: str) -> None:
        """Look after one pool more."""
        if self.pools is not None and pool not in self.pools:
            self.pools |= {pool}
            self.watch(pool)

    def safe_since(self, sent: float) -> None:
        """Its leases hold for as long as was asked for at `sent`; any thread may tell."""
        self.safe_until = max(self.safe_until, sent + self.lease * (1 - MARGIN))

    def renewed(self, sent: float) -> None:
        """Its leases hold for as long as was asked for at `sent`; stop work in time otherwise."""
        self.safe_since(sent)
        if self._guard is not None:
            self._guard.cancel()
        self._guard = None
        safe_for = self._guarded()
        if self.late and safe_for > 0:
            self.late = False
            self.look_everywhere()

    def _guarded(self) -> float:
        """Look again when its leases may be lost; return in how many seconds that is."""
        safe_for = self.safe_until - self.runtime.steady()
        self._guard = self.loop.call_later(max(safe_for, 0.0), self._unsafe)
        return safe_for

    def _unsafe(self) -> None:
        """It could not renew: its leases may be lost soon, so nothing of it may go on."""
        self._guard = None
        if self.safe_until > self.runtime.steady():
            # It was renewed from elsewhere, and the loop had no time to hear of it.
            self._guarded()
            return
        self.late = True
        if self.jobs:
            log.warning("worker %s cannot renew its leases and stops its handlers", self.name)
        self.give_back_ahead()
        self.runtime.lost(self)
        for job in list(self.jobs.values()):
            self.stop_job(job, CancelReason.LEASE_LOST)

    @property
    def may_lease(self) -> bool:
        """Whether it may ask for work: the store knows it, and its leases hold."""
        return not (self.stopping or self.fenced or self.late)

    def serves(self, pool: str) -> bool:
        """Return whether it looks after a pool, whoever's work that is."""
        return self.joined and not self.stopping and not self.own and pool in self._watches

    def watches(self, pool: str) -> bool:
        """Return whether it would ask a pool for work."""
        return pool in self._watches

    def look_everywhere(self) -> None:
        """Ask every pool again: what was known of them may be old."""
        for pool, watch in self._watches.items():
            watch.wake(Wake(pool, 0.0))
            self._unseen[pool] = None
        self._dry.clear()
        self.kick()

    def held(self) -> list[int]:
        """Return the tasks it holds: at work, or ended and not settled yet."""
        return [*self.jobs, *(job.id for _, job, _ in self._ended), *self.ahead.tasks()]

    async def stop(self, grace: float = 0.0) -> None:
        """Start nothing more, give running jobs `grace` seconds, interrupt and give back the rest.

        What was interrupted is released uncharged, but for tasks with one attempt that had begun:
        they fail, for they must not be begun again. Safe before start, and safe twice.
        """
        await self.wind_down(grace)
        await self.leave()

    async def wind_down(self, grace: float) -> None:
        """Start nothing more, give running jobs `grace` seconds, interrupt the rest.

        Handlers that do not stop may be left after this; those are in `jobs`.
        """
        if not self.joined:
            return
        self.stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self.give_back_ahead()
        if grace > 0 and self.jobs:
            self._in_grace = True
            await self._until_quiet(grace)
            self._in_grace = False
        for job in list(self.jobs.values()):
            self.stop_job(job, CancelReason.STOP)
        if self.jobs:
            await self._until_quiet(STUCK_AFTER)

    async def leave_when_quiet(self) -> None:
        """Hold the tasks of handlers that do not stop until they end, or until `hurry`; leave."""
        for job in self.jobs.values():
            log.warning(
                "worker %s has stopped, but the handler of task %d of pool %s has not: the task "
                "stays running, and is not given to others, until it ends or the Millpond closes",
                self.name,
                job.id,
                job.leased.pool,
                extra={"pool": job.leased.pool, "task": job.id},
            )
        self._in_grace = True
        await self._until_quiet(None)
        self._in_grace = False
        await self.leave()

    async def leave(self) -> None:
        """Settle what is left without its handlers, and tell the store that it goes."""
        if not self.joined:
            return
        for job in list(self.jobs.values()):
            self._settle_without(job)
        await self._tell_the_rest()
        self.joined = False
        self.runtime.renewals.drop(self)
        if self._guard is not None:
            self._guard.cancel()
        if self._driver is not None:
            self._driver.cancel()
        for slot in list(self._slots):
            slot.task.cancel()
        await asyncio.gather(
            *([self._driver] if self._driver else []),
            *(slot.task for slot in self._slots if slot.job is None),
            return_exceptions=True,
        )
        self.watchdog.stop()
        self.runtime.outages.gone(self)
        await self.elsewhere.close()
        try:
            self.runtime.heed(await self.runtime.store.control(Deregister(self.name)))
        except Exception as error:  # noqa: BLE001 - its lease will tell, if a little later
            log.warning("worker %s could not take its leave (%s)", self.name, error)

    def hurry(self) -> None:
        """Let a worker that stops give running jobs no more time, nor wait for them."""
        if self._in_grace:
            self._tell_quiet()

    async def _tell_the_rest(self) -> None:
        """Settle what has ended, after the turn under way; a failing store has some tries."""
        until = self.runtime.steady() + STOP_WITHIN
        while True:
            if self._turning:
                over = self.loop.create_future()
                self._after_turn.append(over)
                await over
                continue
            if not self._ended or self.runtime.steady() >= until:
                return
            await asyncio.sleep(self._pause)
            await self.turn()

    async def _until_quiet(self, seconds: float | None) -> None:
        quiet = self.loop.create_future()
        self._quiet.append(quiet)
        await asyncio.wait([quiet], timeout=seconds)

    # Waking

    def woken(self, wake: Wake) -> None:
        """Take in that a pool may have something to start."""
        watch = self._watches.get(wake.pool)
        if watch is None or (self.own and not self.runtime.closures):
            return
        watch.wake(wake)
        self._dry.discard(wake.pool)
        self.ahead.none_left.discard(wake.pool)
        self._look_at(wake.pool, watch)

    def _look_at(self, pool: str, watch: ClaimTimer) -> None:
        """Ask a pool when it is worth asking, which may be sooner than the latest word says."""
        moment = watch.moment
        if moment is None:
            return
        if moment <= self.runtime.clock():
            self._due[pool] = None
            self.kick()
        else:
            # The soonest of all that were named: a later one must not put off an earlier one.
            self._moments.set(pool, (self._watches[pool].moment or moment,))
            self._arm()

    @property
    def scheduled(self) -> bool:
        """Whether a turn is to come soon."""
        return self._scheduled

    def must_settle(self) -> bool:
        """Return whether a slot lets the loop go on before its next job, for what has ended.

        An end waits for no bigger batch than the store call under way makes of it: what was
        claimed ahead would keep the slots at work for as long as there is some, and a kill would
        cost every end that was not told.
        """
        if not self._ended or not self.runtime.shared:
            return False
        now = self.loop.time()
        if self._turning and now - self._let_go_at < STRETCH:
            return False
        self._let_go_at = now
        return True

    def kick(self) -> None:
        """See to it that a turn comes soon."""
        if self._turning or self._scheduled or not self.joined:
            return
        self._scheduled = True
        if self.runtime.inline:
            # Whoever did the verb does the turn too, in the same step.
            return
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def _drive(self) -> None:
        while True:
            if not self._scheduled or self._turning:
                # Whoever does a turn now sees to what was asked for meanwhile.
                self._wake = self.loop.create_future()
                await self._wake
            if self._pause:
                await asyncio.sleep(self._pause)
            await self.turn()

    def _driven(self, _driver: asyncio.Task[None]) -> None:
        """Nobody drives it any more: it was stopped, or the loop ends with it still open."""
        self.stopping = True

    def _arm(self) -> None:
        """Wake up at the soonest moment that time alone will help."""
        soonest = self._moments.lowest()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if soonest is not None and not self.stopping:
            delay = max(soonest[0] - self.runtime.clock(), 0.0)
            self._timer = self.loop.call_later(delay, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = self.runtime.clock()
        while (soonest := self._moments.lowest()) is not None and soonest[0] <= now:
            pool = self._moments.peek() or ""
            self._moments.discard(pool)
            self._due[pool] = None
        if self._due:
            self.kick()
        self._arm()

    # A turn

    async def turn(self) -> None:
        """Settle what has ended and lease what may start, until there is nothing of either."""
        if self._turning:
            self._scheduled = True
            return
        self._turning = True
        ended: list[tuple[Settlement, Job, Any]] = []
        ask: LeaseRequest | None = None
        store = self.runtime.store
        if self.runtime.shared and not self.watchdog.watching:
            # A store of our own answers at once, or not at all: see _failed.
            self.watchdog.watch()
        try:
            while True:
                self._scheduled = False
                if self._doubtful and not self._ended and self.may_lease:
                    ended, ask = [], None
                    await self._disown()
                ended, self._ended = self._ended, []
                if len(ended) > 1:
                    count = portion(ended, _weight, MOST_AT_ONCE)
                    ended, self._ended = ended[:count], ended[count:]
                ask = None
                if self.may_lease and not self._doubtful:
                    if self._unseen:
                        await self._look_up_queues()
                    if self._due:
                        ask = self._next_ask(settling=bool(ended))
                if ended:
                    try:
                        answer = await store.settle([one[0] for one in ended], then=ask)
                    except Exception as error:
                        if is_the_stores(error):
                            raise
                        await self._settle_apart(ended, ask, error)
                        continue
                    self._settled(ended, ask, answer)
                elif ask is not None:
                    try:
                        leased = await store.lease(ask)
                    except Exception as error:
                        if is_the_stores(error):
                            raise
                        self._cannot_lease(ask, error)
                        continue
                    self._pauses.pop(ask.pool, None)
                    self._take_in(ask, leased)
                else:
                    break
                self.turns += 1
                self._pause = 0.0
                self.runtime.outages.worked(self)
        except BaseException as error:
            # Nothing may be lost, whatever the store does and whoever is cancelled here.
            self._failed(ended, ask, error)
            if not isinstance(error, Exception):
                raise
        finally:
            # Also where this was cancelled: somebody must do what it leaves undone.
            self._turning = False
            _tell(self._after_turn)
            if self._scheduled:
                self._scheduled = False
                self.kick()
        if self.stopping and not self.jobs:
            self._tell_quiet()

    async def _look_up_queues(self) -> None:
        """Have those queues asked that hold something, of those of which nothing is known.

        Each ask takes the turn of a writer, so thousands of empty queues are not asked one by one.
        What is written meanwhile wakes its queue, as ever.
        """
        unseen, self._unseen = self._unseen, {}
        if len(unseen) <= FEW_QUEUES or not self.runtime.shared:
            self._due.update(unseen)
            return
        for pool in unseen:
            self._watches[pool].claim_sent()
        try:
            holding = set(await self.runtime.view.due(now=self.runtime.clock() + FAR))
        except BaseException:
            for pool in unseen:
                self._watches[pool].wake(Wake(pool, 0.0))
            self._unseen = unseen | self._unseen
            raise
        for pool in unseen:
            if pool in holding:
                self._watches[pool].wake(Wake(pool, 0.0))
                self._due[pool] = None

    def _next_ask(self, *, settling: bool) -> LeaseRequest | None:
        """Return what to ask for next: of a pool that is due and has room here, as the plan says.

        A pool that has no free slot here waits for one; the others need not wait for it.
        """
        now = self.runtime.clock()
        full = self.concurrency is not None and self._taken() >= self.concurrency
        for pool in list(self._due):
            free = 0 if full and not _is_aside(pool) else self._free(pool)
            if free < 1:
                if self.ahead.runs_low(pool, settling=settling):
                    # It stays due: this asks for nothing to start.
                    return LeaseRequest(
                        pool=pool, worker=self.name, want=0, ahead=self.ahead.room(pool)
                    )
                continue
            del self._due[pool]
            watch = self._watches[pool]
            plan = watch.plan(free=free, now=now)
            if isinstance(plan, Work):
                watch.claim_sent()
                want = min(plan.want, MOST_AT_ONCE)
                ahead = self.ahead.room(pool)
                return LeaseRequest(pool=pool, worker=self.name, want=want, ahead=ahead)
            if plan.moment is not None:
                self._moments.set(pool, (plan.moment,))
                self._arm()
        return None

    def _taken(self) -> int:
        """Return how many of its own slots are taken."""
        return len(self.jobs)

    def holders(self, pool: str) -> list[Job]:
        """Return the jobs that keep this worker from starting more of a pool; none if it could.

        Those that should have ended come first.
        """
        jobs = sorted(self.jobs.values(), key=lambda job: job not in self.stuck_since)
        if self._free(pool) <= 0:
            return jobs
        here = [job for job in jobs if job.leased.pool == pool]
        full = len(here) >= self.runtime.limit_of(pool)
        # Where all of them do what they should, the store's own count says it all.
        return here if full and here[0] in self.stuck_since else []

    def _free(self, pool: str) -> int:
        """Return how many jobs more of a pool may run here."""
        free = MOST_AT_ONCE
        if self.concurrency is not None:
            # Callbacks have their own limit: a worker full of long jobs still tells how they ended,
            # and what happened.
            free = MOST_AT_ONCE if _is_aside(pool) else self.concurrency - self._taken()
        return free

    def _failed(
        self,
        ended: list[tuple[Settlement, Job, Any]],
        ask: LeaseRequest | None,
        error: BaseException,
    ) -> None:
        """Keep what could not be told; ask again after a pause that grows."""
        if not self.runtime.outages.failed(self, error) and not self._pause:
            log.warning("worker %s failed (%s) and tries again", self.name, error, exc_info=error)
        self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        self.watchdog.watch()
        for _, job, _ in ended:
            job.unsure = True
            job.left_slot = False
        self._ended[:0] = ended
        if ask is not None:
            self._ask_again(ask)
        self._scheduled = True

    async def _settle_apart(
        self, ended: list[tuple[Settlement, Job, Any]], ask: LeaseRequest | None, error: Exception
    ) -> None:
        """Settle each by itself, after the store has refused one of them for what it is.

        The one at fault ends as failed. What is settled leaves `ended`: what is left there when
        this raises is put back.
        """
        log.warning("%d ends are stored one by one: %s", len(ended), error)
        if ask is not None:
            self._ask_again(ask)
        suspects: list[tuple[Settlement, Job, Any]] = []
        for _, job, _ in ended:
            job.unsure = True
        while ended:
            decided, job, value = ended[0]
            try:
                answer = await self.runtime.store.settle([decided])
            except Exception as alone:
                if is_the_stores(alone):
                    ended.extend(suspects)
                    raise
                error = alone
                if not is_at_fault(job, alone) or not await self._end_at_fault(*ended[0], alone):
                    suspects.append(ended[0])
            else:
                self._settled([(decided, job, value)], None, answer)
            del ended[0]
        if suspects:
            ended.extend(suspects)
            raise error

    async def _end_at_fault(
        self,
        decided: Settlement,
        job: Job,
        value: Any,  # noqa: ANN401 - what the handler returned or raised
        error: Exception,
    ) -> bool:
        """End a task as failed whose own end cannot be stored; return whether that could be."""
        del value
        failed, told = ended_by(job, decided, error)
        for attempt in (failed, without_successor(failed)):
            try:
                answer = await self.runtime.store.settle([attempt])
            except Exception as again:
                if is_the_stores(again):
                    raise
                continue
            if self.runtime.shared:
                self.runtime.waiting.expect(job, attempt, told)
            self._settled([(attempt, job, told)], None, answer)
            if attempt.successor is None and decided.successor is not None:
                self._lose_successor(decided)
            return True
        return False

    def _lose_successor(self, decided: Settlement) -> None:
        """Stop what was started from a claim of which the store cannot be told."""
        job = None if decided.successor is None else self.jobs.get(decided.successor.task)
        if job is not None and job.leased.fence == decided.successor:
            self.stop_job(job, CancelReason.LEASE_LOST)

    def _cannot_lease(self, ask: LeaseRequest, error: Exception) -> None:
        """Leave a pool alone for a while whose tasks cannot be leased; the others go on."""
        before = self._pauses.get(ask.pool)
        pause = FIRST_PAUSE if before is None else min(before * 2, LONGEST_PAUSE)
        self._pauses[ask.pool] = pause
        if before is None:
            log.error(
                "nothing of pool %s can be leased (%s); it is tried again, other pools go on",
                ask.pool,
                error,
                exc_info=error,
                extra={"pool": ask.pool},
            )
        moment = self.runtime.clock() + pause
        self._watches[ask.pool].wake(Wake(ask.pool, moment))
        self._moments.set(ask.pool, (moment,))
        self._doubtful = True
        self._arm()

    def _ask_again(self, ask: LeaseRequest) -> None:
        """Ask a pool once more: whether the store has heard it is not known."""
        self._watches[ask.pool].wake(Wake(ask.pool, 0.0))
        self._due[ask.pool] = None
        self._doubtful = True

    async def _disown(self) -> None:
        """Give back what the store thinks it holds and never reached it.

        Part of a turn, so no lease is on its way at the same time; and after all that ended was
        settled, for the lost verb may have settled a task and leased it again. So what is held is
        known, and told by its task.
        """
        answer = await self.runtime.store.control(Disown(self.name, tuple(self.held())))
        self._doubtful = False
        self.runtime.outages.worked(self)
        self.runtime.heed(answer)

    def _take_in(self, ask: LeaseRequest, answer: LeaseAnswer) -> None:
        """Start what was leased, and remember when to ask again."""
        runtime, pool = self.runtime, ask.pool
        if answer.wakes or answer.ended or answer.finished_runs or answer.emptied:
            runtime.heed(answer, asked=(self, pool))
        if answer.fenced:
            if ask.worker == self.name:
                runtime.fenced(self)
            return
        if answer.unknown:
            self._report_unknown(pool, answer.unknown)
        if answer.claimed or self.ahead.held or self.ahead.none_left:
            self.ahead.take_in(pool, answer)
        if ask.ahead and not answer.claimed:
            self.ahead.none_left.add(pool)
        if self.may_lease:
            for leased in answer.leased:
                self._start(leased)
            if self.ready:
                self.wake_slots()
        else:
            # It stopped, or was late, while the answer was on its way.
            for leased in answer.leased:
                self._give_back(leased)
        if answer.give_back or not self.may_lease:
            self.give_back_ahead(pool)
        elif answer.claimed and self._ended:
            self._start_late(pool)
        got = len(answer.leased)
        if answer.drained:
            self._dry.add(pool)
        elif self._dry:
            self._dry.discard(pool)
        if not ask.want:
            return
        self._watches[pool].claim_answered(asked=ask.want, got=got, next_at=answer.next_at, now=0.0)
        if got >= ask.want:
            self._due[pool] = None
        elif answer.next_at is not None:
            self._look_at(pool, self._watches[pool])
        if got:
            runtime.hearing.found_work(pool)
            runtime.submitter.room(pool)

    # Jobs

    def _start(self, leased: Leased) -> None:
        """Give a leased task to a slot, or say at once that it cannot be run here."""
        if self.ahead.gone and leased.fence in self.ahead.gone:
            # A claim of its own that it began, or gave back, while the store started it, too.
            return
        body = self.runtime.body_of(leased)
        if body is None:
            self._unfit(leased)
            return
        job = self.jobs[leased.fence.task] = Job(leased, self, body, self.runtime.clock())
        if type(body) is Handler and body.batch is not None:
            self.batches.add(job, body.batch)
            return
        if leased.timeout is not None:
            self.time(job)
        self.give(job)

    def time(self, job: Job) -> None:
        """Let the time of an attempt begin."""
        seconds = job.leased.timeout
        if seconds is not None:
            job.deadline = self.runtime.clock() + seconds
            job.timer = self.loop.call_later(seconds, self.stop_job, job, CancelReason.TIMEOUT)

    def give(self, job: Job) -> None:
        """Let a slot run a job in a context of its own."""
        body = job.body
        base = body.context if type(body) is Closure else self.runtime.context
        context = job.context = base.copy()
        context.run(current_job.set, job)
        self.ready.append(job)

    def wake_slots(self) -> None:
        """Wake a few slots for the jobs that are ready; each that has to wait wakes a few more."""
        for _ in range(min(len(self.ready) - self.called, WOKEN_AT_ONCE)):
            self.called += 1
            if self._idle:
                self._idle.pop().wake()
            else:
                self._slots.add(Slot(self))

    def has_room_for(self, slot: Slot) -> bool:
        """Return whether a slot that has nothing to do is kept for later, and keep it if so."""
        if len(self._idle) < SLOTS_KEPT and self.joined:
            self._idle.append(slot)
            return True
        self._slots.discard(slot)
        return False

    def lost(self, slot: Slot) -> None:
        """A slot is gone; what is ready must not wait for it."""
        self.called -= slot.called
        if slot not in self._slots:
            # It went by itself, as one too many.
            return
        self._slots.discard(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        if self.ready and self.joined:
            self.wake_slots()

    def wants_turn(self) -> bool:
        """Return whether whoever asks should do the turn itself: nobody else is at work."""
        if not self._ended or self._turning or self._pause:
            return False
        if self._scheduled:
            return False
        if self.jobs or self.runtime.shared:
            # Others are at work: what ends in this round of the loop is settled in one verb. And
            # a verb on its way to a shared store must not keep a slot that counts as idle.
            self.kick()
            return False
        return True

    def _unfit(self, leased: Leased) -> None:
        """Give back a task whose code is not here: parked, not charged."""
        job = Job(leased, self, NOBODY, self.runtime.clock())
        self._report_unknown(leased.pool, (leased.call.function,))
        self._settle(job, None, Unfit(corrupt=False))

    def unreadable(self, job: Job, error: Unreadable) -> Unfit:
        """Return what becomes of a task that cannot be read here: parked, or set aside for good."""
        if not isinstance(error, Misfit):
            self.runtime.corrupt()
            return Unfit(corrupt=True, error=describe(error))
        takes = job.body.takes.text if isinstance(job.body, Handler) and job.body.takes else ""
        call, pool = job.leased.call.function, job.leased.pool
        told = ArgumentsDoNotFit(
            f"the stored arguments of task {job.id} in pool {pool!r} do not fit function {call!r} "
            f"on worker {self.name}: {error}. The worker has {takes or call}. Deploy a worker "
            "that takes these arguments, or redrive the task after a fix",
            task_id=job.id,
            pool=pool,
            function=call,
            field=error.field,
            worker=self.name,
            reason=str(error),
        )
        served = pool.removesuffix(CALLBACKS)
        if self._is_news(served, f"{call}: {error.field or error}"):
            self._is_news(served, f"{call}: parked")
            self.runtime.counts.unfit_arguments += 1
            log.warning(
                "%s. Tasks like it are parked for a worker that can read them, for a day at most",
                told,
                extra={"pool": pool, "task": job.id},
            )
        return Unfit(corrupt=False, misfit=True, error=describe(told))

    def _is_news(self, pool: str, about: str) -> bool:
        """Return whether this was not reported of a pool before."""
        if (pool, about) in self._unknown:
            return False
        if len(self._unknown) >= MOST_REPORTED:
            self._unknown.clear()
        self._unknown.add((pool, about))
        return True

    def _report_unknown(self, pool: str, needs: Sequence[str]) -> None:
        """Say once of each function that its tasks cannot be run here."""
        pool = pool.removesuffix(CALLBACKS)
        for need in needs:
            function, misfits = tried(need)
            if misfits and self.runtime.functions.get(function) is not None:
                self._report_misfits(pool, function)
                continue
            if not self._is_news(pool, function):
                continue
            self.runtime.counts.unknown_functions += 1
            log.warning(
                "no function named %r is known here: its tasks in pool %s wait for a worker that "
                "has it, for a day at most",
                function,
                pool,
                extra={"pool": pool},
            )

    def _report_misfits(self, pool: str, function: str) -> None:
        """Say once of a function that tasks are parked which it cannot read as it is here."""
        if self._is_news(pool, f"{function}: parked"):
            log.warning(
                "%s tasks of function %r in pool %s are parked: their arguments do not fit it as "
                "it is here; `millpond tasks %s --status parked` lists them",
                ArgumentsDoNotFit.code,
                function,
                pool,
                pool,
                extra={"pool": pool},
            )

    def give_back_ahead(self, pool: str | None = None) -> None:
        """Give back what is claimed ahead of a pool, or of all: not charged, to its own place."""
        claims = self.ahead.given_up(pool)
        for claim in claims:
            self.ahead.gone.add(claim.fence)
            self._give_back(claim)
        if claims:
            self.kick()

    def _start_ahead(self, job: Job) -> Fence | None:
        """Start the first claim of a pool in the slot that a job left; its end is to say so."""
        claim = self.ahead.next(job.leased.pool)
        if claim is None:
            return None
        self._start(claim)
        self.ahead.gone.add(claim.fence)
        if job.slot is None:
            # Else the slot that the job left looks for another at once.
            self.wake_slots()
        return claim.fence

    def _start_late(self, pool: str) -> None:
        """Start claims in the slots of jobs that ended while none was held.

        Their ends are not told yet. So the slots are at work while they are.
        """
        for at, (decided, job, value) in enumerate(self._ended):
            if pool not in self.ahead.held:
                break
            if decided.successor is None and job.left_slot and job.leased.pool == pool:
                late = msgspec.structs.replace(decided, successor=self._start_ahead(job))
                self._ended[at] = (late, job, value)
        self.wake_slots()

    def _give_back(self, leased: Leased) -> None:
        """Give back a task that must not be started here any more: not charged."""
        unbegun = Interrupted(begun=False)
        self._settle(Job(leased, self, NOBODY, self.runtime.clock()), None, unbegun)

    def finished(self, job: Job, value: Any, outcome: Outcome) -> None:  # noqa: ANN401
        """Take in how a job ended; it is settled with the next turn."""
        if isinstance(job.body, BatchCall):
            job.body.over(job, value, failed=not isinstance(outcome, Succeeded))
            return
        if job.timer is not None:
            job.timer.cancel()
        if job.committed:
            self._went_on(job, value, outcome)
        elif not job.settled:
            self._settle(job, value, outcome)

    def _settle(
        self,
        job: Job,
        value: Any,  # noqa: ANN401 - what the handler returned or raised
        outcome: Outcome,
        *,
        vacated: bool = True,
    ) -> None:
        """Decide what an outcome means; `vacated` tells whether the job has left its slot."""
        runtime = self.runtime
        successor = None
        if vacated and self.may_lease and job.body is not NOBODY:
            if self.ahead.held:
                successor = self._start_ahead(job)
            job.left_slot = True
        # Only a failure asks for the policy, and so for chance and for the time.
        try:
            decided = self._decided(job, outcome, successor)
        except MillpondError as error:
            # A policy or a weight that was changed behind our back: no value is worth a slot.
            end = Settlement(fence=job.leased.fence, event=Transition.FAIL, successor=successor)
            decided, value = ended_by(job, end, error)
        job.settled = True
        self.stuck_since.pop(job, None)
        if self.jobs.get(job.leased.fence.task) is job:
            # After a lost lease the same task may be at work here again.
            del self.jobs[job.leased.fence.task]
        self._ended.append((decided, job, value))
        if runtime.shared and (type(job.body) is Closure or isinstance(value, BaseException)):
            # A look at the store may find the end before the answer to its settlement is here.
            runtime.waiting.expect(job, decided, value)
        pool = job.leased.pool
        if pool not in self._due and pool not in self._dry and pool in self._watches:
            self._watches[pool].wake(Wake(pool, 0.0))
            self._due[pool] = None

    def _decided(self, job: Job, outcome: Outcome, successor: Fence | None) -> Settlement:
        """Return what an outcome makes of a task."""
        runtime = self.runtime
        if type(outcome) is Raised:
            decided = settle(
                job.leased,
                outcome,
                formula_of(job),
                jitter=runtime.chance(),
                now=runtime.clock(),
                started_at=job.started_at,
                successor=successor,
            )
        else:
            decided = settle(job.leased, outcome, DEFAULT_RETRY, jitter=0.0, successor=successor)
        if job.weight is not None:
            decided = msgspec.structs.replace(decided, weight=job.weight)
        return decided

    def _settle_without(self, job: Job) -> None:
        """Settle a job whose handler does not stop, for a worker that leaves."""
        if job.settled or job.committed:
            return
        pool, error = job.leased.pool, None
        outcome: Outcome = interrupted(job, begun=job.began or self.batches.began(job))
        if job.timed_out:
            error, outcome = timed_out(job)
        if job not in self.stuck_since:
            self.runtime.counts.stuck += 1
        log.warning(
            "worker %s leaves task %d of pool %s, whose handler does not stop: the task is settled "
            "without it and may be run by others while it goes on in this process",
            self.name,
            job.id,
            pool,
            extra={"pool": pool, "task": job.id},
        )
        self._settle(job, error, outcome, vacated=False)
        self.kick()

    def _has_slot_for(self, pool: str) -> None:
        """Ask a pool again: a local slot came free that no settlement tells of."""
        if pool in self._watches:
            self._watches[pool].wake(Wake(pool, 0.0))
            self._due[pool] = None
        self.kick()

    def committed(self, job: Job, decided: Settlement, value: Any, answer: SettleAnswer) -> bool:  # noqa: ANN401
        """Take in that a handler settled its attempt itself; return whether that was applied.

        The handler may go on for a moment and keeps its local slot, but nothing it does is settled.
        """
        applied = answer.settled[0] is Settled.APPLIED
        job.committed = job.committed or applied
        self._settled([(decided, job, value)], None, answer)
        return applied

    def _went_on(self, job: Job, value: Any, outcome: Outcome) -> None:  # noqa: ANN401
        """Take in the end of a handler that had settled its attempt itself."""
        pool = job.leased.pool
        if self.jobs.get(job.id) is job:
            del self.jobs[job.id]
        if isinstance(outcome, Raised):
            log.warning(
                "task %d of pool %s raised after it had committed its completion, which stands",
                job.id,
                pool,
                exc_info=value if isinstance(value, BaseException) else None,
                extra={"pool": pool, "task": job.id},
            )
        self.stuck_since.pop(job, None)
        self._has_slot_for(pool)

    def _settled(
        self,
        ended: list[tuple[Settlement, Job, Any]],
        ask: LeaseRequest | None,
        answer: SettleAnswer,
    ) -> None:
        """Tell everybody who waits how these attempts ended, and start what was leased."""
        runtime, count = self.runtime, len(ended)
        if (
            answer.settled.count(Settled.APPLIED) == count
            and answer.after.count(Status.COMPLETED) == count
            and not any(answer.follow_ups)
        ):
            # Most turns end so, and what is the same for all need not be asked of each.
            self.tally.completed += count
            told = runtime.completed(ended)
        else:
            told = self._settled_each(ended, answer)
        if runtime.hooks.probes is not None:
            self._probed(runtime.hooks.probes, ended, answer)
        if self.ahead.gone:
            self.ahead.gone.difference_update([job.leased.fence for _, job, _ in ended])
        if Settled.STALE in answer.started:
            self._started(ended, answer)
        if ask is None or answer.lease is None:
            runtime.heed(answer, told=told)
            return
        runtime.heed(answer, asked=(self, ask.pool), told=told)
        self._take_in(ask, answer.lease)

    def _settled_each(
        self, ended: list[tuple[Settlement, Job, Any]], answer: SettleAnswer
    ) -> dict[int, None]:
        """Tell how each attempt ended; return the tasks that did."""
        runtime = self.runtime
        told: dict[int, None] = {}
        for number, ((decided, job, value), settled, after) in enumerate(
            zip(ended, answer.settled, answer.after, strict=True)
        ):
            if settled is Settled.STALE and job.unsure:
                runtime.told_twice(job, decided, value)
            elif settled is Settled.STALE:
                self.tally.stale += 1
                runtime.stale(job)
            elif after is not None and after is not Status.QUEUED:
                told[job.leased.fence.task] = None
                self.tally.ended(after)
                if decided.follow_ups:
                    runtime.followed(decided, job, answer.follow_ups[number])
                runtime.ended(job.leased, after, End.of(decided, job, value, after))
            else:
                self.tally.queued_again(decided)
                runtime.retried(job.leased, decided)
        return told

    def _probed(
        self, probes: Probes, ended: list[tuple[Settlement, Job, Any]], answer: SettleAnswer
    ) -> None:
        """Tell those who measure how each attempt ended, but for what they were told before."""
        for (decided, job, _), settled, after in zip(
            ended, answer.settled, answer.after, strict=True
        ):
            if job.body is not NOBODY and not (settled is Settled.STALE and job.unsure):
                probes.settled(job, decided, settled, after)

    def _started(self, ended: list[tuple[Settlement, Job, Any]], answer: SettleAnswer) -> None:
        """Stop what was started from a claim that the store had taken back meanwhile."""
        for (decided, _, _), started in zip(ended, answer.started, strict=True):
            if started is Settled.STALE and decided.successor is not None:
                job = self.jobs.get(decided.successor.task)
                if job is not None and job.leased.fence == decided.successor:
                    self.stop_job(job, CancelReason.LEASE_LOST)

    def stop_job(self, job: Job, why: CancelReason, *, interrupt: bool = True) -> None:
        """Tell a job to stop; one that does not keeps its task and its slot until it does."""
        if job.settled:
            return
        job.tell(why)
        job.interrupted = job.interrupted or (interrupt and why is CancelReason.CANCEL)
        if job.slot is not None:
            if interrupt:
                job.slot.interrupt(job)
        elif job in self.ready:
            job.stopped_early = job.stopped_early or interrupt
        else:
            self.batches.stop(job, interrupt=interrupt)
        if not interrupt:
            return
        if why is CancelReason.TIMEOUT:
            job.timer = self.loop.call_later(STUCK_AFTER, self._overran, job)

    def _overran(self, job: Job) -> None:
        """Say that a handler goes on after its time: its attempt is settled when it ends.

        Until then the task is leased. So its next attempt never runs beside this one, here or
        elsewhere, and the limits count it.
        """
        if job.settled or job.committed:
            return
        pool = job.leased.pool
        self.stuck_since[job] = self.runtime.clock() - STUCK_AFTER
        self.runtime.counts.stuck += 1
        log.warning(
            "task %d of pool %s ran out of time and does not stop: it stays running and keeps its "
            "slot until its handler ends",
            job.id,
            pool,
            extra={"pool": pool, "task": job.id},
        )

    async def run_elsewhere(self, job: Job) -> Any:  # noqa: ANN401 - whatever the handler returns
        """Run a handler in a thread or a process."""
        return await self.elsewhere.run(job)

    def _tell_quiet(self) -> None:
        _tell(self._quiet)


def _is_aside(pool: str) -> bool:
    """Return whether tasks of a pool run beside what a worker was told to run."""
    return pool.endswith(CALLBACKS) or pool.startswith(SYSTEM)


def _tell(waiting: list[asyncio.Future[None]]) -> None:
    """Let everybody go on who waits, and forget them."""
    for one in waiting:
        if not one.done():
            one.set_result(None)
    waiting.clear()


NOBODY = Handler("", Where.LOOP, lambda _: None, lambda _: b"")


def _weight(ended: tuple[Settlement, Job, Any]) -> int:
    return weight_of(ended[0])
