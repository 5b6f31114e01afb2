"""One pool: its settings, its queue and its counts."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from millpond.core.adaptive import Limiter
from millpond.core.bucket import fresh as fresh_buckets
from millpond.core.lifecycle import Status
from millpond.core.order.backlog import Backlog
from millpond.core.task import CALLBACKS
from millpond.store.verbs.arrivals import Arrivals
from millpond.store.verbs.tables.rows import DictKeys, DictLanes, DictParked
from millpond.store.verbs.unclaimed import UnclaimedTasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millpond.core.spec import PoolSpec
    from millpond.core.task import Task
    from millpond.store.verbs.tables.rows import KeyRows, LaneRows, ParkedRows

MEASURED = 1_000
"""How many settled attempts the percentiles of a pool look back."""

_NO_UNITS: set[str] = set()


class PoolTable:
    """One pool: its settings, its queue and its counts."""

    __slots__ = (
        "_paused_units",
        "arrivals",
        "backlog",
        "buckets",
        "claimed",
        "closed",
        "created_at",
        "declared",
        "fresh",
        "holding",
        "hungry",
        "internal",
        "keys",
        "lanes",
        "limiter",
        "live",
        "name",
        "next_lane",
        "next_seq",
        "not_before",
        "old_keys",
        "operator_limit",
        "parked",
        "parked_apart",
        "paused",
        "redriven",
        "revision",
        "revisions",
        "run_times",
        "running",
        "spec",
        "stale_settles",
        "starved",
        "succeeded",
        "totals",
        "unsuccessful",
        "waits",
    )

    def __init__(self, spec: PoolSpec, now: float) -> None:
        self.created_at = now
        self.name = spec.name
        self.internal = spec.name.endswith(CALLBACKS)
        """Whether it holds the callbacks of another pool: nothing from outside."""
        self.declared = spec
        self.spec = spec
        self.revision = 1
        self.revisions: dict[int, PoolSpec] = {}
        """Former settings, by revision."""
        self.paused = False
        self._paused_units: set[str] = _NO_UNITS
        self.closed = False
        self.not_before = 0.0
        self.backlog = Backlog(spec)
        self.fresh = UnclaimedTasks(spec)
        self.parked: ParkedRows = DictParked()
        self.parked_apart = 0
        """Parked tasks outside the backlog; the head of a strict lane blocks it from within."""
        self.live = 0
        """How many tasks wait or run."""
        self.running = 0
        self.claimed = 0
        """Prefetched tasks: queued, but not in the backlog."""
        self.hungry: dict[str, float] = {}
        """Workers that found nothing while others had prefetched tasks; until when that counts."""
        self.holding: dict[str, int] = {}
        self.starved: dict[str, tuple[float, float]] = {}
        """Starved workers: since when, and when they last asked."""
        self.buckets = fresh_buckets(spec.rates)
        """The state of its rates, in their order."""
        self.operator_limit: int | None = None
        """The limit that an operator set by resize; it stays until reset."""
        self.limiter: Limiter | None = Limiter(spec.adaptive) if spec.adaptive else None
        """Adapts its limit, if it is adaptive."""
        self.next_seq = 0
        self.lanes: LaneRows = DictLanes()
        self.next_lane = 0
        self.keys: KeyRows = DictKeys()
        self.succeeded: deque[Task] | None = None
        self.unsuccessful: deque[Task] | None = None
        """Ended tasks, oldest first; redriven ones are skipped."""
        self.redriven = 0
        """How many of the ended tasks were redriven since."""
        self.old_keys: dict[tuple[str, int | None], float] = {}
        """Keys of removed tasks, and when those ended."""
        self.totals: dict[str, int] = {}
        self.stale_settles = 0
        self.waits: deque[float] | None = None
        self.run_times: deque[float] | None = None
        """Seconds of the last settled attempts; none before the first."""
        self.arrivals = Arrivals()

    @property
    def queued(self) -> int:
        """How many tasks wait: ready, scheduled, parked or prefetched."""
        return self.live - self.running

    def measure(self, waited: float, ran: float) -> None:
        """Note how long a task had waited for its start, and how long it ran."""
        if self.waits is None or self.run_times is None:
            self.waits, self.run_times = deque(maxlen=MEASURED), deque(maxlen=MEASURED)
        self.waits.append(waited)
        self.run_times.append(ran)

    def measure_all(self, times: list[tuple[float, float]]) -> None:
        """Note the times of several tasks."""
        for waited, ran in times:
            self.measure(waited, ran)

    def pause(self, unit: str, *, paused: bool) -> None:
        """Note which lanes and keys are paused."""
        if paused:
            self._paused_units = {*self._paused_units, unit}
        else:
            self._paused_units = self._paused_units - {unit}

    def paused_units(self) -> set[str]:
        """Return the lanes or keys that are paused on their own."""
        return self._paused_units

    def forget_pauses(self) -> None:
        """Forget the paused lanes: none of them exists any more."""
        self._paused_units = _NO_UNITS


def ended_tasks(pool: PoolTable, status: Status) -> deque[Task]:
    """Return the list of ended tasks that retention keeps a `status` in."""
    if status is Status.COMPLETED:
        if pool.succeeded is None:
            pool.succeeded = deque()
        return pool.succeeded
    if pool.unsuccessful is None:
        pool.unsuccessful = deque()
    return pool.unsuccessful


def lane_without_key(pool: PoolTable, first: int, coming: Mapping[str, int] | None = None) -> int:
    """Return the number of the lane for a task without a key: from `first` on, but for full ones.

    `coming` is how many of the same batch come to each lane before it. The number is that of the
    turn: the lane is its remainder.
    """
    lanes, policy = pool.spec.lanes or 1, pool.spec.backpressure
    if policy is None or policy.per_lane is None:
        return first
    for number in range(first, first + lanes):
        lane = str(number % lanes)
        if pool.fresh.of_lane(lane) + (coming or {}).get(lane, 0) < policy.per_lane:
            return number
    return first
