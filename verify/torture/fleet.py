"""The fleet's program: the pools and handlers that every process of it declares."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any

from millpond.core.backoff import Retry
from millpond.core.rate import Rate
from millpond.core.spec import bounded, fair_round_robin, fifo, priority
from millpond.pool.context import Context, SyncContext
from millpond.pool.millpond import Millpond
from millpond.pool.options import Options
from millpond.pool.outcome import Outcome
from millpond.runtime.jobs.job import current_job
from verify.torture.ledger import CallbackRan, CancelNoticed
from verify.torture.plan import Behaviour, Plan

if TYPE_CHECKING:
    from millpond.core.task import Fence
    from millpond.pool.pool import Pool
    from millpond.pool.task import BoundCall
    from verify.torture.ledger import Ledger
    from verify.torture.plan import Item, Settings, Web

PATIENT = Retry(attempts=30, initial=0.05, factor=1.5, max_delay=1.0, jitter=0.5)
"""So many attempts that innocent tasks outlive every kill they are caught in."""


WAYS = ("cooperative", "interrupt", "thread")
"""How the handlers of cancelled tasks run, and notice it."""


class HandlerError(Exception):
    """What a handler raises when it fails."""


class Fleet:
    """One process's view of the pools; all processes declare the same."""

    def __init__(self, settings: Settings, ledger: Ledger, mp: Millpond | None = None) -> None:
        self.settings = settings
        self.ledger = ledger
        self.plan = Plan(settings)
        self.mp = mp or Millpond(settings.url, lease=settings.lease)
        self.pools = declare(self.mp)
        self._webs = {web.name: web for web in self.plan.webs}
        self._register()

    def _register(self) -> None:
        mp, crawl = self.mp, self.pools["crawl"]

        @mp.task
        async def work(ctx: Context, n: int, milliseconds: int, behaviour: str) -> str:  # noqa: ARG001
            fence, pool = at_work()
            with self.ledger.attempt(fence, pool, str(n)):
                await asyncio.sleep(self._seconds(milliseconds, behaviour, fence, pool))
                return act_on_behaviour(n, behaviour, fence)

        @mp.task
        def labour(ctx: SyncContext, n: int, milliseconds: int, behaviour: str) -> str:  # noqa: ARG001
            fence, pool = at_work()
            with self.ledger.attempt(fence, pool, str(n)):
                time.sleep(self._seconds(milliseconds, behaviour, fence, pool))
                return act_on_behaviour(n, behaviour, fence)

        @crawl.task
        async def visit(ctx: Context, web: str, page: int) -> str:
            fence, pool = at_work()
            with self.ledger.attempt(fence, pool, f"{web}/{page}"):
                links = self._webs[web].links(page)
                await ctx.submit_many(self.page(web, link) for link in links)
                await asyncio.sleep(0.01)
                return result_of(f"{web}/{page}", fence)

        @mp.task
        async def on_end(ctx: Context, outcome: Outcome, n: int) -> None:  # noqa: ARG001
            fence, pool = at_work()
            with self.ledger.attempt(fence, pool, f"callback {n}"):
                self.ledger.write(CallbackRan, task=outcome.task_id, status=outcome.status)
                await asyncio.sleep(0.005)

        @mp.task
        async def endless(ctx: Context, n: int, way: str) -> None:
            fence, pool = at_work()
            with self.ledger.attempt(fence, pool, f"off {n}"):
                try:
                    await (asyncio.sleep(3600) if way == "interrupt" else ctx.cancelled.wait())
                finally:
                    if ctx.cancelled.is_set():
                        self._noticed(fence)
                raise asyncio.CancelledError

        @mp.task
        def endless_labour(ctx: SyncContext, n: int) -> None:
            fence, pool = at_work()
            with self.ledger.attempt(fence, pool, f"off {n}"):
                while not (ctx.cancelled or ctx.lease_lost):
                    time.sleep(0.01)
                if ctx.cancelled:
                    self._noticed(fence)
                raise asyncio.CancelledError

        self._work: Any = work
        self._labour: Any = labour
        self._visit: Any = visit
        self._callback: Any = on_end
        self._endless: Any = endless
        self._endless_labour: Any = endless_labour

    def _noticed(self, fence: Fence) -> None:
        self.ledger.write(CancelNoticed, task=fence.task, attempt=fence.attempt, token=fence.token)

    def _seconds(self, milliseconds: int, behaviour: str, fence: Fence, pool: str) -> float:
        """Return how long an attempt takes.

        One that follows a lost one takes its time, every other time: it is still at work when the
        process that lost it comes back, and wants to settle. Not in lanes, which would never end.
        """
        lost = (
            behaviour == Behaviour.FINE and fence.attempt > 1 and not self.pools[pool].spec.strict
        )
        waits = 0.9 * self.settings.lease if lost and fence.token % 2 else 0.0
        return waits + milliseconds / 1000

    def call(self, item: Item) -> BoundCall[str]:
        """Return an item as a call to submit."""
        options: Options = {"priority": item.priority}
        if item.key is not None:
            options["key"] = item.key
        if item.delay:
            options["delay"] = item.delay
        if item.attempts is not None:
            options["retry"] = Retry(attempts=item.attempts, initial=0.05, max_delay=0.5)
        if item.idempotency_key is not None:
            options["idempotency_key"] = item.idempotency_key
        if item.has_callback:
            options["on_complete"] = self._callback.bind(item.n)
        function = self._labour if item.in_thread else self._work
        call: BoundCall[str] = function.bind(item.n, item.milliseconds, str(item.behaviour))
        return call.options(**options)

    def endless(self, n: int, way: str) -> BoundCall[None]:
        """Return a task that goes on until it is cancelled, in one of WAYS."""
        call: BoundCall[None]
        call = self._endless_labour.bind(n) if way == "thread" else self._endless.bind(n, way)
        return call

    def page(self, web: str, page: int) -> BoundCall[str]:
        """Return the visit of a page: once in a run, however many pages link to it."""
        call: BoundCall[str] = self._visit.bind(web, page)
        return call.options(idempotency_key=str(page), dedupe="run")

    def seed_of(self, web: Web) -> list[BoundCall[str]]:
        """Return what a run begins with."""
        return [self.page(web.name, 0)]


def declare(mp: Millpond) -> dict[str, Pool]:
    """Declare the pools: between them, every limit and every order that a torture looks at."""
    pools = (
        mp.pool("fair", max_concurrent=6, queue=fair_round_robin(), max_per_key=2, retry=PATIENT),
        mp.pool("lanes", lanes=4, retry=PATIENT),
        mp.pool("ordered", ordered=True, max_concurrent=4, retry=PATIENT),
        mp.pool("priority", max_concurrent=5, queue=priority(), retry=PATIENT),
        mp.pool("rate", max_concurrent=8, rate=Rate(20, per=1.0, burst=8), retry=PATIENT),
        mp.pool("bounded", max_concurrent=4, queue=fifo(), backpressure=bounded(25), retry=PATIENT),
        mp.pool("twice", max_concurrent=4, retry=PATIENT),
        mp.pool(
            "ahead",
            max_concurrent=4,
            prefetch=4,
            max_per_key=2,
            rate=Rate(40, per=1.0, burst=20),
            retry=PATIENT,
        ),
        mp.pool("crawl", max_concurrent=4, retry=PATIENT),
        mp.pool("poison", max_concurrent=1, retry=PATIENT),
        mp.pool("off", max_concurrent=4, retry=PATIENT),
        mp.pool("pulse"),
    )
    return {pool.name: pool for pool in pools}


def at_work() -> tuple[Fence, str]:
    """Return the fence of the attempt whose handler asks, and its pool."""
    job = current_job.get()
    assert job is not None
    return job.leased.fence, job.leased.pool


def result_of(item: str, fence: Fence) -> str:
    """Return a result that is unique to an attempt."""
    return f"{item} by {fence.attempt}/{fence.token}"


def act_on_behaviour(n: int, behaviour: str, fence: Fence) -> str:
    """Return, raise, or worse."""
    match Behaviour(behaviour):
        case Behaviour.POISON:
            os.kill(os.getpid(), signal.SIGKILL)
        case Behaviour.DOOMED:
            raise HandlerError(result_of(str(n), fence))
        case Behaviour.FLAKY if (
            fence.attempt < 4 and random.Random(n + fence.attempt).random() < 0.6
        ):
            raise HandlerError(result_of(str(n), fence))
        case _:
            pass
    return result_of(str(n), fence)
