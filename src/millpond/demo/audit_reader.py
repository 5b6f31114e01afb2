"""Read the figures of a pool from its audit, not from the acts' own counters."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec

from millpond.core.lifecycle import Status, Transition
from millpond.pool.internals import internals_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond import Millpond, Pool
    from millpond.core.audit import Record
    from millpond.pool.snapshot import Snapshot


class Start(msgspec.Struct, frozen=True):
    """The start of an attempt, and the keys with ready tasks at that time."""

    at: float
    key: str
    attempt: int
    contenders: frozenset[str]


class Run(msgspec.Struct, frozen=True):
    """A running attempt: its key and its worker."""

    key: str
    worker: str


class Wait(msgspec.Struct):
    """The queue between a task's submit and its first start."""

    since: float
    ahead: int
    """How many tasks of its own key were queued before it."""
    passed: Counter[str]
    """How many tasks of each other key started meanwhile."""

    @property
    def fair(self) -> bool:
        """Whether no other key had more than one turn per task of its own key, plus one."""
        return max(self.passed.values(), default=0) <= self.ahead + 1


class AuditReader:
    """Counts per key from a pool's audit."""

    def __init__(self, mp: Millpond, pool: Pool) -> None:
        self._mp = mp
        self._pool = pool
        self._read = 0
        self._due: defaultdict[str, dict[int, float]] = defaultdict(dict)
        """Per key: queued tasks and when each is due."""
        self._waiting: defaultdict[str, dict[int, Wait]] = defaultdict(dict)
        """Per key: tasks that were never started."""
        self._ends: Counter[int] = Counter()
        self._running: dict[int, Run] = {}
        self.done: Counter[str] = Counter()
        self.done_by: Counter[str] = Counter()
        """How many tasks each worker has ended."""
        self.ended: Counter[Status] = Counter()
        self.attempts: dict[int, int] = {}
        """Per completed task: the attempt that completed it."""
        self.starts: list[Start] = []
        self.lost: list[tuple[Record, str]] = []
        """Tasks recovered from dead workers, and those workers."""
        self.submitted = 0
        self.workers: dict[str, None] = {}
        """Every worker that leased a task, in the order of their first lease."""
        self.waits: defaultdict[str, list[tuple[float, Wait]]] = defaultdict(list)
        """Per key: how long each task waited from submit to first start."""
        self.most_running = 0
        self.most_of_a_key = 0

    async def read(self) -> None:
        """Read the new records of the audit."""
        while True:
            page = await internals_of(self._mp).runtime.view.audit(after=self._read)
            self._read = page.next
            for record in page.records:
                if record.pool == self._pool.name:
                    self._enter(record)
            if not page.records:
                return

    def _enter(self, record: Record) -> None:
        task, key = record.task, record.key or ""
        if task is None or record.after is None:
            return
        if record.before is Status.QUEUED:
            self._due[key].pop(task, None)
        run = self._running.pop(task, None) if record.before is Status.RUNNING else None
        if record.event is Transition.SUBMIT:
            self._submit(record, task, key)
        if record.after is Status.QUEUED:
            self._due[key][task] = record.due
        if record.event is Transition.LEASE:
            self._lease(record, task, key)
        if run is not None and record.event in (Transition.LOSE, Transition.EXHAUST):
            self.lost.append((record, run.worker))
        if record.after.terminal:
            self.ended[record.after] += 1
            self._ends[task] += 1
            self.done[key] += 1
            self.done_by[run.worker if run is not None else ""] += 1
        if record.after is Status.COMPLETED:
            self.attempts[task] = record.attempt

    def _submit(self, record: Record, task: int, key: str) -> None:
        self.submitted += 1
        self._waiting[key][task] = Wait(record.at, len(self._waiting[key]), Counter())

    def _lease(self, record: Record, task: int, key: str) -> None:
        contenders = {one for one in self._due if self._ready(one, record.at)} | {key}
        self.starts.append(Start(record.at, key, record.attempt, frozenset(contenders)))
        begun = self._waiting[key].pop(task, None)
        if begun is not None:
            self.waits[key].append((record.at - begun.since, begun))
        for other, waiting in self._waiting.items():
            for wait in waiting.values() if other != key else ():
                wait.passed[key] += 1
        self.workers.setdefault(record.worker or "")
        self._running[task] = Run(key, record.worker or "")
        self.most_running = max(self.most_running, len(self._running))
        self.most_of_a_key = max(self.most_of_a_key, self.running(key))

    def _ready(self, key: str, now: float) -> int:
        return sum(due <= now for due in self._due[key].values())

    def waited(self, keys: Sequence[str], now: float) -> list[float]:
        """Return the waits of tasks of some keys, started and still waiting ones."""
        begun = [seconds for key in keys for seconds, _ in self.waits[key]]
        still = (wait for key in keys for wait in self._waiting[key].values())
        return begun + [now - wait.since for wait in still]

    def queued(self, key: str) -> int:
        """Return how many tasks of a key wait, for a slot or for their next attempt."""
        return len(self._due[key])

    def running(self, key: str) -> int:
        """Return how many tasks of a key run."""
        return sum(run.key == key for run in self._running.values())

    def held(self, worker: str) -> int:
        """Return how many tasks a worker holds."""
        return sum(run.worker == worker for run in self._running.values())

    @property
    def once(self) -> int:
        """Number of tasks that ended exactly once."""
        return sum(many == 1 for many in self._ends.values())

    def contested(self, keys: frozenset[str]) -> list[Start]:
        """Return the starts of the longest stretch in which all of the keys had work ready."""
        longest: list[Start] = []
        stretch: list[Start] = []
        for start in self.starts:
            stretch = [*stretch, start] if keys <= start.contenders else []
            if len(stretch) > len(longest):
                longest = stretch
        return longest

    def agree(self, snapshot: Snapshot) -> bool:
        """Return whether the pool's counts equal those of the audit, and every task is in one."""
        return (
            snapshot.total == self.submitted
            and snapshot.running == len(self._running)
            and snapshot.queued == sum(map(len, self._due.values()))
            and (snapshot.completed, snapshot.failed)
            == (self.ended[Status.COMPLETED], self.ended[Status.FAILED])
        )
