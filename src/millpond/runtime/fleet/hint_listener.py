"""Hearing: what other processes say after a commit. Each hint is checked before it has an effect.

A hint may be lost, late, about nothing that matters here, or forged: every role that can connect to
a PostgreSQL database may NOTIFY. So a wake makes a worker ask for work, and everything else is
looked up: an end, a run's end, a cancel. What the store does not confirm has no effect. Only tasks
that matter here are looked up, all that came meanwhile together, and looks that confirm nothing
become rare: a flood of hints is no flood of queries.

Hooks are not called for hints: they belong to the process that wrote.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millpond.core.lifecycle import Status
from millpond.core.plan import Wake
from millpond.store.hints import PendingHint
from millpond.store.protocol import Hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from millpond.runtime.runtime import Runtime
    from millpond.runtime.worker.job import Job

log = logging.getLogger("millpond.hints")

FREE_LOOKS, LOOKS_PER_SECOND = 32, 20.0
"""How many looks in a row may confirm nothing before they become rare, and how rare."""

AT_ONCE = 256
"""How many ids are looked up by one query."""

_ALIVE = (Status.QUEUED, Status.RUNNING)


class Allowance:
    """Looks that may still be made at once; those that were worth it cost nothing."""

    __slots__ = ("_at", "_left")

    def __init__(self, now: float) -> None:
        self._at = now
        self._left = float(FREE_LOOKS)

    def wait(self, now: float) -> float:
        """Return after how many seconds the next look may be made."""
        self._left = min(self._left + (now - self._at) * LOOKS_PER_SECOND, float(FREE_LOOKS))
        self._at = now
        return 0.0 if self._left >= 1.0 else (1.0 - self._left) / LOOKS_PER_SECOND

    def spend(self, looks: int) -> None:
        """Note that looks were made."""
        # A debt is paid within a second, however many one round made.
        self._left = max(self._left - looks, 1.0 - LOOKS_PER_SECOND)

    def refill(self) -> None:
        """Something was found: hints are worth a look."""
        self._left = float(FREE_LOOKS)


class Hearing:
    """Checks hints, and passes what is true on to workers and to those who wait."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pending = PendingHint()
        """What is to be looked up."""
        self._news = False
        """Whether anything ended anywhere: those who wait for room or watch many tasks look."""
        self._checking: asyncio.Task[None] | None = None
        self._allowance = Allowance(runtime.steady())
        self._asks: dict[str, Allowance] = {}
        """By pool: how often workers may still be sent there in vain."""
        self._held_back: dict[str, float] = {}
        """The earliest wake of pools to which nobody is sent for now."""

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
            self._wake(wake)
        runtime.polling.stirred()
        self._pending.add(
            Hint(
                ended=tuple(self._awaited(hint.ended)),
                finished_runs=tuple(filter(runtime.waiting.is_run_awaited, hint.finished_runs)),
                cancelled=tuple(self._told_elsewhere(hint.cancelled, hint.interrupted)),
                more=hint.more,
            )
        )
        self._news |= bool(
            (hint.ended or hint.finished_runs)
            and (runtime.submitter.has_lines or runtime.waiting.anybody_watches)
        )
        if self._checking is None and (self._pending or self._news):
            self._checking = runtime.spawn(self._check())

    # --- wakes: a worker asks for work, and so checks them itself ---------------------------------

    def found_work(self, pool: str) -> None:
        """Note that a worker was sent to a pool for something."""
        if self._asks:
            self._asks.pop(pool, None)

    def _wake(self, wake: Wake) -> None:
        runtime, pool = self._runtime, wake.pool
        if not any(worker.watches(pool) for worker in runtime.workers):
            return
        if pool in self._held_back:
            self._held_back[pool] = min(wake.at, self._held_back[pool])
            return
        now = runtime.steady()
        asks = self._asks.get(pool)
        if asks is None:
            asks = self._asks[pool] = Allowance(now)
        wait = asks.wait(now)
        if wait > 0:
            self._held_back[pool] = wake.at
            runtime.loop.call_later(wait, self._send_late, pool)
            return
        asks.spend(1)
        self._send(wake)

    def _send_late(self, pool: str) -> None:
        at = self._held_back.pop(pool)
        if not self._runtime.closed:
            self._wake(Wake(pool, at))

    def _send(self, wake: Wake) -> None:
        for worker in self._runtime.workers:
            worker.woken(wake)

    # --- everything else is looked up -------------------------------------------------------------

    def _awaited(self, tasks: Iterable[int]) -> Iterator[int]:
        waiting, closures = self._runtime.waiting, self._runtime.closures
        return (task for task in tasks if waiting.is_awaited(task) or task in closures)

    def _told_elsewhere(self, tasks: Iterable[int], interrupted: tuple[int, ...]) -> Iterator[int]:
        """Give those that are held here, and of which this is news."""
        for task in tasks:
            job = self._runtime.job_of(task)
            if job is None:
                if any(worker.ahead.pools_of((task,)) for worker in self._runtime.workers):
                    yield task
            elif not job.cancel_asked or (task in interrupted and not job.interrupted):
                yield task

    async def _check(self) -> None:
        """Look up what hints named, until there is nothing left."""
        runtime = self._runtime
        try:
            while (self._pending or self._news) and not runtime.closed:
                wait = self._allowance.wait(runtime.steady())
                if wait > 0:
                    await asyncio.sleep(wait)
                    continue
                pending, self._pending = self._pending.hint(), PendingHint()
                news, self._news = self._news, False
                await self._look_up(pending, news=news)
        except Exception as error:  # noqa: BLE001 - the poll and the next renewal find it as well
            log.debug("a hint could not be checked: %s", error)
        finally:
            self._checking = None

    async def _look_up(self, hint: Hint, *, news: bool) -> None:
        runtime = self._runtime
        looks = len(hint.finished_runs) + len(hint.cancelled) + -(-len(hint.ended) // AT_ONCE)
        self._allowance.spend(looks + news + hint.more)
        true = [await self._check_cancel(task) for task in hint.cancelled]
        true += [
            await self._check_ends(hint.ended[first : first + AT_ONCE])
            for first in range(0, len(hint.ended), AT_ONCE)
        ]
        true += [await self._check_run(run) for run in hint.finished_runs]
        if any(true):
            self._allowance.refill()
        if news:
            runtime.submitter.room_anywhere()
            runtime.waiting.stir()
        if hint.more:
            runtime.polling.look_now()

    async def _check_ends(self, tasks: tuple[int, ...]) -> bool:
        """Tell those who wait for tasks that have ended; return whether any has."""
        runtime, found = self._runtime, False
        for task, status in zip(tasks, await runtime.view.status(tasks), strict=True):
            if status in _ALIVE:
                continue
            if status != "unknown":
                # One that is unknown may be on its way to the store.
                found = True
                runtime.closures.pop(task, None)
            runtime.waiting.ended_elsewhere(task)
        return found

    async def _check_run(self, run: int) -> bool:
        view = await self._runtime.view.run(run)
        if view is None or not view.finished:
            return False
        self._runtime.waiting.run_ended(run)
        return True

    async def _check_cancel(self, task: int) -> bool:
        """Stop a task that the store says was cancelled; return whether it was."""
        runtime = self._runtime
        found = await runtime.view.task(task)
        if found is None:
            return False
        job = runtime.job_of(task)
        if job is not None and not _is_of(job, found.token):
            return False
        if not found.cancel_requested and not (job is None and found.status.terminal):
            return False
        runtime.told_to_cancel((task,), (task,) if found.interrupt_requested else ())
        return True


def _is_of(job: Job, token: int) -> bool:
    """Return whether the attempt that runs here is the one the store knows."""
    return job.leased.fence.token == token
