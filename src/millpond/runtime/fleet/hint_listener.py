"""The hint listener: checks the hints that other processes send after a commit.

A hint may be lost, late, irrelevant or forged: every role that can connect to a PostgreSQL database
may NOTIFY. So a wake only makes a worker ask for work, and everything else is looked up in the
store: the end of a task, the end of a run, a cancel. A hint that the store does not confirm has no
effect. Only tasks that matter here are looked up, all hints that came meanwhile in one query, and
lookups that confirm nothing become rare: a flood of hints does not become a flood of queries.

Hints call no hooks: the process that wrote calls them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millpond.core.log_fields import about
from millpond.core.plan import Wake
from millpond.core.service import Service
from millpond.runtime.jobs.job import job_of
from millpond.runtime.waiting.result_reader import AT_ONCE, in_batches
from millpond.store.hints import PendingHint
from millpond.store.protocol import Hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, MutableMapping, Sequence

    from millpond.runtime.control import Control
    from millpond.runtime.environment import Environment
    from millpond.runtime.fleet.poll import Polling
    from millpond.runtime.jobs.job import Closure, WorkerProtocol
    from millpond.runtime.submit import Submitter
    from millpond.runtime.waiting.results import Waiting

log = logging.getLogger("millpond.hints")

FREE_LOOKUPS, LOOKUPS_PER_SECOND = 32, 20.0
"""How many lookups in a row may confirm nothing, and how many per second after that."""


class Allowance:
    """A token bucket of lookups; one that confirms a hint refills it."""

    __slots__ = ("_at", "_left")

    def __init__(self, now: float) -> None:
        self._at = now
        self._left = float(FREE_LOOKUPS)

    def wait(self, now: float) -> float:
        """Return after how many seconds the next lookup is allowed."""
        self._left = min(self._left + (now - self._at) * LOOKUPS_PER_SECOND, float(FREE_LOOKUPS))
        self._at = now
        return 0.0 if self._left >= 1.0 else (1.0 - self._left) / LOOKUPS_PER_SECOND

    def spend(self, lookups: int) -> None:
        """Note that lookups were made."""
        # A debt lasts at most a second, however many lookups one round made.
        self._left = max(self._left - lookups, 1.0 - LOOKUPS_PER_SECOND)

    def refill(self) -> None:
        """Note that a lookup confirmed a hint."""
        self._left = float(FREE_LOOKUPS)


class HintListener(Service):
    """Checks hints, and passes confirmed ones on to workers and waiters."""

    _env: Environment
    _workers: Sequence[WorkerProtocol]
    _closures: MutableMapping[int, Closure]
    _waiting: Waiting
    _submitter: Submitter
    _polling: Polling
    _control: Control
    _any_ended: bool = False
    """Whether a task ended somewhere: waiting submitters and watchers of many tasks look."""
    _checking: asyncio.Task[None] | None = None
    _wakes: dict[str, Allowance] = {}
    """By pool: how often a hint may still wake workers in vain."""
    _held_back: dict[str, float] = {}
    """The earliest wake of pools for which no worker is woken for now."""

    def __post_init__(self) -> None:
        self._pending = PendingHint()
        """Ids to look up."""
        self._allowance = Allowance(self._env.steady())

    def start(self) -> None:
        """Listen, if the store sends hints."""
        if self._env.shared and self._env.shared_store.listen is not None:
            self._env.shared_store.listen(self.received)

    def received(self, hint: Hint) -> bool:
        """Take a hint; on the loop. Return whether this process needs hints at once."""
        if self._env.closed:
            return True
        for wake in hint.wakes:
            self._wake(wake)
        self._polling.stay_awake()
        self._pending.add(
            Hint(
                ended=tuple(self._awaited(hint.ended)),
                finished_runs=tuple(filter(self._waiting.is_run_awaited, hint.finished_runs)),
                cancelled=tuple(self._newly_cancelled(hint.cancelled, hint.interrupted)),
                more=hint.more,
            )
        )
        self._any_ended |= bool(
            (hint.ended or hint.finished_runs)
            and (self._submitter.has_lines or self._waiting.has_watchers)
        )
        if self._checking is None and (self._pending or self._any_ended):
            self._checking = self._env.spawn(self._check())
        return self._polling.needs_hints

    # Wakes: a worker asks for work, and so checks them itself

    def found_work(self, pool: str) -> None:
        """Note that a worker found work in a pool."""
        if self._wakes:
            self._wakes.pop(pool, None)

    def _wake(self, wake: Wake) -> None:
        pool = wake.pool
        if not any(worker.watches(pool) for worker in self._workers):
            return
        if pool in self._held_back:
            self._held_back[pool] = min(wake.at, self._held_back[pool])
            return
        now = self._env.steady()
        allowance = self._wakes.get(pool)
        if allowance is None:
            allowance = self._wakes[pool] = Allowance(now)
        wait = allowance.wait(now)
        if wait > 0:
            self._held_back[pool] = wake.at
            self._env.loop.call_later(wait, self._wake_late, pool)
            return
        allowance.spend(1)
        for worker in self._workers:
            worker.woken(wake)

    def _wake_late(self, pool: str) -> None:
        at = self._held_back.pop(pool)
        if not self._env.closed:
            self._wake(Wake(pool, at))

    # Everything else is looked up

    def _awaited(self, tasks: Iterable[int]) -> Iterator[int]:
        waiting, closures = self._waiting, self._closures
        return (task for task in tasks if waiting.is_awaited(task) or task in closures)

    def _newly_cancelled(self, tasks: Iterable[int], interrupted: tuple[int, ...]) -> Iterator[int]:
        """Yield the tasks that this process holds and whose cancel is new to it."""
        for task in tasks:
            job = job_of(self._workers, task)
            if job is None:
                if any(worker.prefetched((task,)) for worker in self._workers):
                    yield task
            elif not job.cancel_asked or (task in interrupted and not job.interrupted):
                yield task

    async def _check(self) -> None:
        """Look up the ids of hints, until there is nothing left."""
        try:
            while (self._pending or self._any_ended) and not self._env.closed:
                wait = self._allowance.wait(self._env.steady())
                if wait > 0:
                    await asyncio.sleep(wait)
                    continue
                pending, self._pending = self._pending.hint(), PendingHint()
                any_ended, self._any_ended = self._any_ended, False
                await self._look_up(pending, any_ended=any_ended)
        except Exception as error:  # noqa: BLE001 - the poll and the next renewal find it as well
            log.debug(
                "cannot check a hint: %s",
                error,
                extra=about("hint.unchecked", reason=type(error).__name__),
            )
        finally:
            self._checking = None

    async def _look_up(self, hint: Hint, *, any_ended: bool) -> None:
        lookups = len(hint.finished_runs) + len(hint.cancelled) + -(-len(hint.ended) // AT_ONCE)
        self._allowance.spend(lookups + any_ended + hint.more)
        confirmed = [await self._check_cancel(task) for task in hint.cancelled]
        confirmed += [bool(await self._waiting.check(some)) for some in in_batches(hint.ended)]
        confirmed += [await self._check_run(run) for run in hint.finished_runs]
        if any(confirmed):
            self._allowance.refill()
        if any_ended:
            self._submitter.room_anywhere()
            self._waiting.stir()
        if hint.more:
            self._polling.poll_now()

    async def _check_run(self, run: int) -> bool:
        view = await self._env.view.run(run)
        if view is None or not view.finished:
            return False
        self._waiting.run_ended(run)
        return True

    async def _check_cancel(self, task: int) -> bool:
        """Stop a task if the store confirms its cancel; return whether it does."""
        found = await self._env.view.task(task)
        if found is None:
            return False
        job = job_of(self._workers, task)
        if job is not None and job.leased.fence.token != found.token:
            # It is another attempt than the one that the store knows.
            return False
        if not found.cancel_requested and not (job is None and found.status.terminal):
            return False
        self._control.cancelled_elsewhere((task,), (task,) if found.interrupt_requested else ())
        return True
