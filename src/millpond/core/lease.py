"""Leases: the right to run one attempt of one task, and the fence that proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.task import EVERY, TRIED, Call, Fence, tried

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from millpond.core.spec import PoolSpec
    from millpond.core.task import Task

NO_STEPS: dict[str, bytes] = {}
"""Shared by every lease of a task without saved steps; never written to."""

RELEASE = "~millpond"
"""Among the functions that a worker knows: its signature is the release that the worker runs."""

_MASK = (1 << 64) - 1

STARVED_FOR = 1.0
"""Seconds for which a worker that got nothing limits the others to an even share."""


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker requests up to `want` tasks to start and `ahead` to prefetch, from one pool."""

    pool: str
    worker: str
    want: int
    ahead: int = 0
    """How many more tasks it wants to prefetch; the pool's `prefetch` is the bound."""


class Leased(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One task to run, with everything that its worker needs."""

    fence: Fence
    pool: str
    call: Call
    key: str | None
    lane: str | None
    sequence: int
    max_attempts: int
    timeout: float | None
    run: int | None
    weight: int
    submitted_at: float
    labels: dict[str, str]
    options: bytes
    steps: dict[str, bytes] = msgspec.field(default_factory=lambda: NO_STEPS)
    """Results of steps that earlier attempts saved, by name."""
    first_started_at: float | None = None
    """When the first attempt of the current budget began; None = it is this one."""
    due: float | None = None
    """When it became due; None = when it was submitted."""


class Holding:
    """The running tasks of a worker, and the pool of each."""

    __slots__ = ("_pools",)

    def __init__(self) -> None:
        self._pools: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._pools)

    def add(self, task: int, pool: str) -> None:
        """Add a task that has started."""
        self._pools[task] = pool

    def add_all(self, tasks: Sequence[Task]) -> None:
        """Add several tasks."""
        self._pools.update([(task.new.id, task.new.pool) for task in tasks])

    def discard(self, task: int) -> None:
        """Remove a task, if it is here."""
        self._pools.pop(task, None)

    def discard_all(self, tasks: Sequence[Task]) -> None:
        """Remove several tasks."""
        for task in tasks:
            self._pools.pop(task.new.id, None)

    def ids(self) -> Iterable[int]:
        """Return the ids of all."""
        return self._pools

    def of_pool(self, pool: str) -> list[int]:
        """Return the ids of those of one pool."""
        return [task for task, where in self._pools.items() if where == pool]


class Prefetched:
    """The prefetched tasks of a worker, and the settings of their pools at the claim.

    The first claimed comes first.
    """

    __slots__ = ("_specs",)

    def __init__(self) -> None:
        self._specs: dict[int, PoolSpec] = {}

    def __len__(self) -> int:
        return len(self._specs)

    @property
    def specs(self) -> dict[int, PoolSpec]:
        """The settings by task, to be read."""
        return self._specs

    def add(self, task: int, spec: PoolSpec) -> None:
        """Add a task that was claimed."""
        self.specs[task] = spec

    def remove(self, task: int) -> None:
        """Remove a task: it has started, or was returned."""
        del self.specs[task]

    def of_pool(self, pool: str) -> list[int]:
        """Return the ids of those of one pool."""
        return [task for task, spec in self.specs.items() if spec.name == pool]

    def pools(self) -> set[str]:
        """Return the pools of which there are some."""
        return {spec.name for spec in self.specs.values()}


class RegisteredWorker(msgspec.Struct, kw_only=True):
    """A worker in the store: renewal writes this one row, however many tasks it runs."""

    id: str
    owner: str | None
    expires_at: float
    lease: float
    number: int = 0
    """In order of registration."""
    functions: frozenset[str] | None = None
    """The functions it knows; None = all; none at all = it runs closures of its owner only."""
    signatures: dict[str, str] = {}
    """The digest of each function's signature, where the worker sent it."""
    unknown: set[str] = set()
    """Functions that it received and did not know, whatever it registered."""
    holding: Holding = msgspec.field(default_factory=Holding)
    ahead: Prefetched = msgspec.field(default_factory=Prefetched)

    @property
    def closures_only(self) -> bool:
        """Whether it runs nothing but the closures of its owner."""
        return self.functions is not None and not self.functions


def knows(worker: RegisteredWorker, need: str) -> bool:
    """Return whether a worker can run a task with this need, as far as the store knows.

    A need is a function, or a function and the signatures of it that could not read the task.
    """
    if need in worker.unknown:
        return False
    if TRIED not in need:
        return worker.functions is None or need in worker.functions
    function, misfits = tried(need)
    if not knows(worker, function) or EVERY in misfits:
        return False
    return worker.signatures.get(function, "") not in misfits


def tokens(entropy: int) -> Iterator[int]:
    """Yield 63-bit numbers drawn from `entropy` (SplitMix64: Steele, Lea and Flood, 2014)."""
    state = entropy & _MASK
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        yield (mixed ^ (mixed >> 31)) >> 1


def may_hold(limit: int, workers: int, *, starved: bool) -> int:
    """Return how many leases of a pool one worker may hold.

    All of them, unless another live worker asked and got none: then no more than an even share,
    so that slots come free for it as work ends.
    """
    return -(-limit // max(workers, 1)) if starved else limit
