"""A task as submitted, a task as stored, and the fence of its attempt."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from operator import attrgetter
from typing import TypeAlias

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.lifecycle import Status
from millpond.errors import ConfigError

TaskId: TypeAlias = int
"""63 bits, drawn by the submitter, so that a submit can be repeated after a lost answer."""


CALLBACKS = "~callbacks"
"""The suffix of the queue that holds a pool's on_complete callbacks; no pool name may have ~."""


class Dedupe(StrEnum):
    """How long an idempotency key answers with its task."""

    FOREVER = "forever"
    SUCCESS = "success"
    INFLIGHT = "inflight"
    RUN = "run"
    WAITING = "waiting"
    REPLACE = "replace"

    @property
    def of_waiting(self) -> bool:
        """Whether only a task that no worker holds answers."""
        return self is Dedupe.WAITING or self is Dedupe.REPLACE


class Fence(msgspec.Struct, frozen=True, gc=False):
    """Proof of the current attempt of a task. Every claim makes a new fence."""

    task: TaskId
    attempt: int
    token: int


UNREADABLE = ""
"""The function of a task whose stored body is damaged; no function has this name."""


NO_FINGERPRINT = (1 << 63) - 1
"""The fingerprint of a task submitted in SQL: its arguments cannot be compared."""


TRIED = "\x1e"
"""Separates a function from its signatures that did not fit."""

EVERY = "*"
"""Stands for all signatures: too many did not fit to try another."""

MOST_TRIED = 16
"""How many signatures of its function a task is tried with before it waits for a redrive."""


def needed(function: str, misfits: tuple[str, ...]) -> str:
    """Return the need of a task: its function, and the signatures that did not fit."""
    return f"{function}{TRIED}{','.join(misfits)}" if misfits else function


def tried(need: str) -> tuple[str, tuple[str, ...]]:
    """Return the function of a need, and its signatures that did not fit."""
    function, found, misfits = need.partition(TRIED)
    return function, tuple(misfits.split(",")) if found else ()


def with_misfit(misfits: tuple[str, ...], signature: str) -> tuple[str, ...]:
    """Return the signatures that did not fit, with one more."""
    if len(misfits) >= MOST_TRIED and signature not in misfits:
        signature = EVERY
    return tuple(sorted({*misfits, signature}))


class Call(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A registered function's name and its encoded arguments."""

    function: str
    payload: bytes = b""


class NewTask(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A task as submitted; an update of a waiting task makes another one of the next revision.

    Defaults are not stored, so a default may never change: stored tasks rely on it.
    """

    id: TaskId
    pool: str
    call: Call
    key: str | None = None
    share: str | None = None
    """The partition in a fair pool; None is the shared default."""
    labels: dict[str, str] = {}
    priority: int = 0
    weight: int = 1
    delay: float = 0.0
    run_at: float | None = None
    """Not before this moment of the store's clock; overrides delay."""
    expires_in: float | None = None
    timeout: float | None = None
    attempts: int = 3
    idempotency_key: str | None = None
    dedupe: Dedupe = Dedupe.FOREVER
    fingerprint: int = 0
    """Of function and arguments: the same key with another one is a conflict."""
    on_complete: Call | None = None
    owner: str | None = None
    """The process that holds the code of a closure; only its workers may run it."""
    run: int | None = None
    submitted_by: str = "user"
    options: bytes = b""
    """Options that only the runtime reads, such as the retry policy."""
    revision: int = 0
    """How often it was updated while it waited."""
    source: TaskId | None = None
    """The id of the submit that replaced it last, so that the same submit can be repeated."""

    def __post_init__(self) -> None:
        # Most tasks keep the defaults: one condition checks them all.
        if (
            self.weight != 1
            or not 1 <= self.attempts <= bounds.MAX_COUNT
            or self.priority != 0
            or self.delay != 0.0
            or self.run_at is not None
            or self.expires_in is not None
            or self.timeout is not None
        ):
            self._check_numbers()
        if self.key is not None:
            check.storable("key", self.key, bounds.MAX_KEY)
        if self.share is not None and self.share is not self.key:
            check.storable("share", self.share, bounds.MAX_KEY)
        if self.idempotency_key is not None:
            check.storable("idempotency_key", self.idempotency_key, bounds.MAX_KEY)
        if self.labels:
            check_labels("labels", self.labels)
        function = self.call.function
        if (
            self.submitted_by not in _SUBMITTERS
            or len(function) > _SURELY_SHORT
            or not function.isprintable()
            or self.owner is not None
            or self.on_complete is not None
        ):
            self._check_names()

    def _check_names(self) -> None:
        """Raise ConfigError for names that are too long for an index, or no text."""
        if self.submitted_by not in _SUBMITTERS:
            check.storable("submitted_by", self.submitted_by, bounds.MAX_SUBMITTED_BY, least=0)
        check.storable("function", self.call.function, bounds.MAX_FUNCTION, least=0)
        if self.owner is not None:
            check.storable("owner", self.owner, bounds.MAX_OWNER)
        if self.on_complete is not None:
            check.storable("on_complete", self.on_complete.function, bounds.MAX_FUNCTION)

    def _check_numbers(self) -> None:
        """Raise ConfigError for numbers that no store can keep.

        A weight of -1 would fill a bucket instead of emptying it, and a delay that is not a
        number would never be due.
        """
        check.integer("weight", self.weight, least=1)
        check.integer("attempts", self.attempts, least=1)
        check.integer("priority", self.priority, least=bounds.MIN_PRIORITY)
        check.seconds("delay", self.delay)
        for name in ("expires_in", "timeout"):
            if (limit := getattr(self, name)) is not None:
                check.seconds(name, limit, above=0.0)
        if self.run_at is not None:
            check.moment("run_at", self.run_at)

    @property
    def is_callback(self) -> bool:
        """Whether it is an on_complete callback, in its pool's own queue for those."""
        return self.pool.endswith(CALLBACKS)


_SURELY_SHORT = 64
"""Characters of a function's name that need no counting: they have four bytes each at most."""

_SUBMITTERS = frozenset({"user", "sql", "cron"})
"""The usual values of submitted_by, which need no check of their length."""


def check_labels(option: str, labels: Mapping[str, str]) -> None:
    """Raise ConfigError for labels that are too many, too long, or no text."""
    if len(labels) > bounds.MAX_LABELS:
        raise ConfigError(option, f"{len(labels)} labels", f"are more than {bounds.MAX_LABELS}")
    for label, value in labels.items():
        if check.surely_fits(label, bounds.MAX_LABEL_NAME) and check.surely_fits(
            value, bounds.MAX_LABEL
        ):
            continue
        check.storable(f"{option} key", label, bounds.MAX_LABEL_NAME, least=0)
        check.storable(f"{option}[{label!r}]", value, bounds.MAX_LABEL, least=0)


class Task(msgspec.Struct, kw_only=True, gc=False):
    """A task as a store keeps it now."""

    new: NewTask
    status: Status
    seq: int
    """Its place in the pool: commit order; a retry keeps it, a redrive gets a new one."""
    rank: int
    """Its order within a key, lowest first, before seq; only another priority changes it."""
    lane: str | None
    sequence: int
    """Gap-free per lane in a pool with lanes, else the pool's seq."""
    submitted_at: float
    due: float
    attempt: int = 0
    runs: int = 0
    fresh: bool = True
    """From outside and never claimed: what a bound counts and an eviction may take."""
    token: int = 0
    worker: str | None = None
    claimed: bool = False
    """Queued and prefetched by `worker`: its next attempt has a fence and is not charged yet."""
    started_at: float | None = None
    first_started_at: float | None = None
    """When the first attempt of its current budget began: what give_up_after is measured from."""
    finished_at: float | None = None
    expires_at: float | None = None
    """When it is too late to start."""
    cancel_requested: bool = False
    interrupt_requested: bool = False
    """Whether its handler is to be interrupted as well; never without `cancel_requested`."""
    parked: bool = False
    reason: str | None = None
    result: bytes | None = None
    error: bytes | None = None
    progress: tuple[float, str] | None = None
    """The progress that its handler reported: a fraction and a text."""
    steps: dict[str, bytes] | None = None
    """Results of steps that its attempts saved (ctx.once), by name."""
    misfits: tuple[str, ...] = ()
    """The signatures of its function that its arguments did not fit, as digests, sorted."""

    @property
    def waits(self) -> bool:
        """Whether it is queued and no worker holds it, so that an update may change it."""
        return self.status is Status.QUEUED and not self.claimed

    @property
    def fence(self) -> Fence:
        """The fence of the running attempt, or of the prefetch."""
        return Fence(self.new.id, self.attempt + self.claimed, self.token)

    @property
    def need(self) -> str:
        """What a worker must have to run it: its function, with a signature that may fit."""
        function = self.new.call.function
        return needed(function, self.misfits) if self.misfits else function

    @property
    def unit(self) -> str | None:
        """Its lane in a pool with lanes, else its key: what limits its concurrency."""
        return self.lane if self.lane is not None else self.new.key


_FIELDS = Task.__struct_fields__
_values_of = attrgetter(*_FIELDS)


def copied(task: Task) -> Task:
    """Return a copy of a task, without what a store keeps beside it."""
    copy = Task(**dict(zip(_FIELDS, _values_of(task), strict=True)))
    copy.steps = None if task.steps is None else dict(task.steps)
    return copy


def key_of(new: NewTask) -> tuple[str, int | None]:
    """Return the name under which an idempotency key is kept: per run where it counts per run."""
    return new.idempotency_key or "", new.run if new.dedupe is Dedupe.RUN else None
