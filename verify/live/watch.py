"""What an onlooker of the whole fleet can check that the judge of the store cannot.

Handlers run only while they hold a lease; every waiter gets an answer, and the right one; no worker
sleeps while there is work; and no process spins.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millpond.core.control import DeclareDead
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Status, Transition
from millpond.core.settle import Settled
from millpond.errors import (
    MillpondError,
    RunStopped,
    TaskCancelled,
    TaskFailed,
    TaskRejected,
)
from millpond.pool.internals import internals_of
from millpond.runtime.fleet.poll import POLL_FLOOR
from millpond.runtime.jobs.job import current_job
from millpond.testing.simulation.invariants import Violated, is_claim, is_current

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from millpond.core.task import Fence
    from millpond.pool.handle import Handle
    from millpond.pool.outcome import Outcome, RunOutcome
    from millpond.runtime.jobs.job import Job
    from millpond.runtime.worker.worker import Worker
    from millpond.testing.simulation.trace_model import Step, Witness
    from verify.live.process import Process
    from verify.live.world import LiveWorld

T = TypeVar("T")

MOST_AT_ONCE = 3_000
"""Verbs of a fleet at one time: above this a process spins."""

TICKS = 1e-5
"""A store knows whole microseconds, so a time may be one or two later than given."""

RECOVERED = 7.0
"""Seconds after which a process that was in trouble is as good as any other."""


CHECK_AGAIN_AFTER = 0.2
"""Seconds between two looks at who sleeps, where a poll is given a second anyway."""


def read(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the answer of a view that never waits, as that of memory does not."""
    try:
        coroutine.send(None)
    except StopIteration as answer:
        return answer.value  # type: ignore[no-any-return]
    raise AssertionError("the view waits for something")


class Inside:
    """A handler at work."""

    def __init__(self, process: Process, job: Job, since: float) -> None:
        self.process = process
        self.job = job
        self.fence: Fence = job.leased.fence
        self.pool = job.leased.pool
        self.since = since
        self.deaf = False
        self.claimed = False
        """Whether it was begun from a prefetched claim, and the store does not know yet."""


class Watch:
    """Looks at handlers, waiters and sleepers of a fleet."""

    def __init__(self, world: LiveWorld) -> None:
        self.world = world
        self.handlers: dict[int, Inside] = {}
        self.ends: dict[int, list[Status]] = {}
        self.results: dict[int, Any] = {}
        self.lost: set[Fence] = set()
        self.made: dict[str, Fence] = {}
        self.runs: dict[tuple[str, str | None], int] = {}
        self.finished: set[int] = set()
        self._due_since: dict[tuple[str, str], float] = {}
        self._look_again_at = 0.0
        self._strange_since: dict[Worker, float] = {}
        self.truths = 0

    @property
    def witness(self) -> Witness:
        """What the judge has seen."""
        return self.world.stage.judge.witness

    # What the store does

    def see(self, step: Step) -> None:
        """Take in one verb that was carried out."""
        by_time = step.verb == "recover" or isinstance(step.asked, DeclareDead)
        for record in step.records:
            if record.detail == "run finished" and record.run is not None:
                self.finished.add(record.run)
            if record.task is None or record.event is None or record.after is None:
                continue
            if record.after.terminal:
                self.ends.setdefault(record.task, []).append(record.after)
            if by_time and record.before is Status.RUNNING:
                self.world.fault("lease lost")
                self._lost(record.task, expired=step.verb == "recover")
        if step.verb == "settle":
            self._settled(step)
        ask = step.asked[1] if step.verb == "settle" else step.asked
        if isinstance(ask, LeaseRequest):
            self._asked_for_work(ask)
        if step.verb == "submit":
            answers = getattr(step.answer, "batches", ())
            for answer in answers:
                if answer.refusal is not None and answer.refusal.may_wait:
                    self.world.fault("parked submitter")
                if answer.run is not None:
                    self.runs[answer.run.pool, answer.run.name] = answer.run.id

    def _asked_for_work(self, ask: LeaseRequest) -> None:
        """Start the time of sleepers again: of the asking worker, and of those left without work.

        A worker that asks is awake, whatever it got. Where it took all that was due, work that
        becomes due later is other work: a poll of another worker may have fallen in between.
        """
        ready, now = self.world.stage.store.view.ready, self.world.now
        for worker, pool in [key for key in self._due_since if key[1] == ask.pool]:
            if worker == ask.worker or not read(ready(pool, worker, now=now)):
                del self._due_since[worker, pool]

    def _settled(self, step: Step) -> None:
        for one, settled in zip(step.asked[0], getattr(step.answer, "settled", ()), strict=False):
            if settled is Settled.APPLIED and one.event is Transition.COMPLETE and one.result:
                result = msgspec.json.decode(one.result)
                self.results[one.fence.task] = result
                maker = self.made.get(result) if isinstance(result, str) else None
                if maker is not None and maker != one.fence:
                    raise Violated("I3", f"{one.fence} was settled with the result of {maker}")

    def _lost(self, task: int, *, expired: bool) -> None:
        """The store took a lease away: a handler that obeys and can know has stopped by now."""
        for inside in self.handlers.values():
            if inside.fence.task != task or inside.fence in self.lost:
                continue
            self.lost.add(inside.fence)
            process = inside.process
            excused = (
                inside.deaf
                or process.dead
                or process.frozen
                or process.thawed_at >= inside.since
                or self.world.jumped_at >= inside.since
            )
            if expired and not excused:
                raise Violated("I1", f"a handler of task {task} went on while its lease expired")

    # Handlers

    @contextmanager
    def inside(self, process: Process) -> Iterator[None]:
        """Watch a handler for as long as it runs."""
        job = current_job.get()
        assert job is not None
        inside = Inside(process, job, self.world.now)
        fact = self.witness.tasks.get(job.id)
        inside.claimed = fact is None or not is_current(fact, inside.fence)
        number = self.world.serial()
        self.handlers[number] = inside
        try:
            self.rightly_at_work(inside)
            yield
        finally:
            del self.handlers[number]

    def rightly_at_work(self, newcomer: Inside) -> None:
        """I1: every running handler holds a lease, except lost and deaf ones."""
        for inside in self.handlers.values():
            if inside.pool != newcomer.pool or self.world.over:
                continue
            fact = self.witness.tasks.get(inside.fence.task)
            held = fact is not None and (
                is_current(fact, inside.fence) or is_claim(fact, inside.fence)
            )
            if held or inside.deaf or inside.fence in self.lost or inside.process.dead:
                continue
            if inside.process.frozen:
                # It stands still, and so cannot know that its claim was taken away.
                continue
            if self._lost_unseen(inside) or self._lease_not_stored_yet(inside):
                continue
            self.world.broke(
                Violated("I1", f"a handler of {inside.fence} is at work without its lease")
            )
        self._local_limit(newcomer)

    def _lost_unseen(self, inside: Inside) -> bool:
        """Return whether a lease was lost before its handler had begun: its answer came late."""
        process = inside.process
        return process.thawed_at >= 0 or self.world.jumped_at >= 0 or bool(process.line.slow)

    def _lease_not_stored_yet(self, inside: Inside) -> bool:
        """Return whether a claim begun ahead was taken away, and its worker may not know yet."""
        process, now = inside.process, self.world.now
        answered = inside.since + 4 * process.line.slowest + TICKS
        return inside.claimed and (now <= answered or self._in_trouble(process))

    def _local_limit(self, newcomer: Inside) -> None:
        process = newcomer.process
        if process.concurrency is None or newcomer.pool.endswith("~callbacks"):
            return
        here = [
            one
            for one in self.handlers.values()
            if one.process is process
            and not one.pool.endswith("~callbacks")
            and one.fence not in self.lost
            # Closures that outlive their worker are seen to by another, beside it.
            and not one.job.worker.own
        ]
        if len(here) > process.concurrency:
            self.world.broke(
                Violated("I1", f"{len(here)} handlers in {process.name}, of {process.concurrency}")
            )

    def deaf(self, process: Process) -> None:
        """A handler got a stop request and does not stop."""
        job = current_job.get()
        for inside in self.handlers.values():
            if inside.job is job:
                inside.deaf = True
        self.world.fault("deaf handler")
        del process

    def result(self, text: str) -> str:
        """Return a result that only this attempt returns."""
        job = current_job.get()
        made = f"{text}/{self.world.serial()}"
        if job is not None:
            self.made[made] = job.leased.fence
        return made

    # Those who wait

    def outcome_received(self, outcome: Outcome) -> None:
        """An outcome that a waiter received must be in the store."""
        self._happened(outcome.task_id, Status(outcome.status))

    def run_outcome_received(self, outcome: RunOutcome) -> None:
        """The outcome of a run that its callback received must be that of a run that ended."""
        ends = (outcome.completed, outcome.failed, outcome.cancelled, outcome.rejected)
        if outcome.run_id not in self.finished or sum(ends) != outcome.total:
            self.world.broke(Violated("I10", f"a callback got {outcome}"))
        for one in outcome.tasks:
            self.outcome_received(one)

    async def awaited(self, handle: Handle[Any]) -> None:
        """Await a handle: what it gives must be what happened."""
        try:
            value = await handle
        except TaskFailed:
            self._happened(handle.id, Status.FAILED)
        except TaskCancelled:
            self._happened(handle.id, Status.CANCELLED)
        except TaskRejected:
            self._happened(handle.id, Status.REJECTED)
        else:
            self._happened(handle.id, Status.COMPLETED)
            known = self.results.get(handle.id, value)
            if value != known:
                raise Violated("I2", f"task {handle.id} gave {value!r}, the store has {known!r}")

    def compare(self, handle: Handle[Any]) -> None:
        """Compare a handle that says it knows the end."""
        self._happened(handle.id, Status(handle.status))

    def _happened(self, task: int, status: Status) -> None:
        self.truths += 1
        if status not in self.ends.get(task, ()):
            self.world.broke(
                Violated("I2", f"task {task} was reported as {status}: {self.ends.get(task)}")
            )

    @contextmanager
    def run(self, pool: str, name: str) -> Iterator[None]:
        """I8: a waiter for a run continues only when the run is over."""
        try:
            yield
        except RunStopped:
            self._run_is_over(pool, name)
            raise
        except MillpondError:
            raise
        else:
            self._run_is_over(pool, name)

    def _run_is_over(self, pool: str, name: str) -> None:
        run = self.runs.get((pool, name))
        if run is not None and run not in self.finished:
            self.world.broke(Violated("I8", f"run {name!r} was called over, and is not"))

    # What there is

    def knows(self, task: int) -> bool:
        """Return whether a task was ever accepted, and not rejected since."""
        fact = self.witness.tasks.get(task)
        return fact is not None and fact.status is not Status.REJECTED

    def live(self, pool: str) -> list[int]:
        """Return the tasks of a pool that wait or run."""
        facts = self.witness.pools.get(pool)
        return [] if facts is None else list(facts.live)

    def ended(self, pool: str, how: tuple[Status, ...]) -> list[int]:
        """Return the tasks of a pool that ended in one of some ways."""
        tasks = self.witness.tasks.values()
        return [fact.id for fact in tasks if fact.pool == pool and fact.status in how]

    # Asleep, or spinning

    def not_spinning(self, verbs: int) -> None:
        """I11: no process calls the store in a loop without time passing."""
        if verbs > MOST_AT_ONCE:
            raise Violated("I11", f"{verbs} verbs at one moment")

    def no_worker_sleeps(self) -> None:
        """I11: with work due, no worker that could start it has gone to sleep for long."""
        world, now = self.world, self.world.now
        if world.over or now < self._look_again_at:
            return
        self._look_again_at = now if world.solo else now + CHECK_AGAIN_AFTER
        if now < world.jumped_at + RECOVERED:
            self._due_since.clear()
            return
        still: dict[tuple[str, str], float] = {}
        due = read(world.stage.store.view.due(now=now))
        known = read(world.stage.store.view.workers())
        for process in world.processes:
            if not process.healthy or self._in_trouble(process):
                continue
            for worker in internals_of(process.mp).runtime.workers:
                if worker.joined and not worker.stopping:
                    self._judge_stranger(worker, known)
                if worker.slots.ready:
                    world.broke(Violated("I11", f"{worker.name} holds work and starts none"))
                for pool in due:
                    if self._could_start(worker, pool):
                        since = still[worker.name, pool] = self._due_since.get(
                            (worker.name, pool), now
                        )
                        self._judge_sleeper(process, worker, pool, since)
        self._due_since = still

    def _judge_stranger(self, worker: Worker, known: frozenset[str]) -> None:
        """A worker that the store has forgotten must join again, and soon."""
        now = self.world.now
        if worker.name in known:
            self._strange_since.pop(worker, None)
        elif now - self._strange_since.setdefault(worker, now) > RECOVERED:
            self.world.broke(
                Violated("I11", f"{worker.name} is unknown to the store, and stays so")
            )

    def _in_trouble(self, process: Process) -> bool:
        line, recovered = process.line, process.troubled_at + RECOVERED
        return not self.world.solo and (line.cut or bool(line.bad) or self.world.now < recovered)

    def _could_start(self, worker: Worker, pool: str) -> bool:
        if not worker.serves(pool) or worker.queues.free(pool) < 1:
            return False
        view = self.world.stage.store.view
        return bool(read(view.ready(pool, worker.name, now=self.world.now)))

    def _judge_sleeper(self, process: Process, worker: Worker, pool: str, since: float) -> None:
        world = self.world
        # With events there are ten queues, asked one after the other.
        ways = 20 if world.eventful else 8
        patience = TICKS if world.solo else POLL_FLOOR + ways * process.line.slowest + 0.5
        if world.now - since >= patience:
            late = world.now - since
            world.broke(
                Violated("I11", f"{worker.name} sleeps for {late:g} s with work due in {pool}")
            )
