"""The nouns: a task as submitted, a task as kept, and the fence that guards its running."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TypeAlias

import msgspec

from millpond.core import check
from millpond.core.errors import ConfigError
from millpond.core.lifecycle import Status

TaskId: TypeAlias = int
"""63 bits, made by the submitter: a submit whose answer was lost can be repeated safely."""


CALLBACKS = "~callbacks"
"""The suffix of the queue that holds a pool's on_complete callbacks; no pool name may have ~."""


class Dedupe(StrEnum):
    """How long an idempotency key answers with its task."""

    FOREVER = "forever"
    SUCCESS = "success"
    INFLIGHT = "inflight"
    RUN = "run"


class Fence(msgspec.Struct, frozen=True, gc=False):
    """The right to write for one attempt of one task. Every claim makes a new one."""

    task: TaskId
    attempt: int
    token: int


UNREADABLE = ""
"""The function of a task whose record cannot be read: no real one has this name."""


UNTOLD = (1 << 63) - 1
"""The fingerprint of a call that was told in SQL: its arguments cannot be compared with others'."""


class Call(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A registered function's name and its encoded arguments."""

    function: str
    payload: bytes = b""


class NewTask(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A task as its submitter describes it; nothing here ever changes.

    What it does not say is not stored, so a default may never change: stored tasks mean it too.
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
    """Not before this moment of the store's clock; wins over delay."""
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
    """What only the runtime reads (retry policy and the like)."""

    def __post_init__(self) -> None:
        # Nearly every task says nothing about most of this, so it is asked for in one go.
        if (
            self.weight < 1
            or self.attempts < 1
            or self.delay != 0.0
            or self.run_at is not None
            or self.expires_in is not None
            or self.timeout is not None
        ):
            self._check_numbers()
        if self.key is not None:
            _check_text("key", self.key)
        if self.share is not None and self.share is not self.key:
            _check_text("share", self.share)
        if self.idempotency_key is not None:
            _check_text("idempotency_key", self.idempotency_key)

    def _check_numbers(self) -> None:
        """Object to numbers that no store could keep.

        A weight of -1 would fill a bucket instead of emptying it, and a delay that is not a
        number would never be due.
        """
        if self.weight < 1:
            raise ConfigError("weight", self.weight, "must be at least 1")
        if self.attempts < 1:
            raise ConfigError("attempts", self.attempts, "must be at least 1")
        if not 0.0 <= self.delay < math.inf:
            raise ConfigError("delay", self.delay, "must be finite and not negative")
        for name in ("expires_in", "timeout"):
            if (limit := getattr(self, name)) is not None and not 0.0 < limit < math.inf:
                raise ConfigError(name, limit, "must be finite and above 0")
        if self.run_at is not None and not math.isfinite(self.run_at):
            raise ConfigError("run_at", self.run_at, "must be finite")

    @property
    def is_callback(self) -> bool:
        """Whether it is an on_complete callback, in its pool's own queue for those."""
        return self.pool.endswith(CALLBACKS)


LONGEST_KEY = 512


def _check_text(option: str, value: str) -> None:
    """Object to a key that some store could not keep: empty, very long, or no text at all."""
    if not value or len(value) > LONGEST_KEY or "\0" in value:
        raise ConfigError(
            option, value, f"must have 1 to {LONGEST_KEY} characters, none of them NUL"
        )
    if not value.isascii():
        check.encodable(option, value)


class Task(msgspec.Struct, kw_only=True, gc=False):
    """A task as a store keeps it."""

    new: NewTask
    status: Status
    seq: int
    """Its place in the pool: commit order; a retry keeps it, a redrive gets a new one."""
    rank: int
    """Its order within a key, lowest first, before seq; fixed at submit."""
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
    """Queued, and held ahead by `worker`: its next attempt has a fence and is not charged yet."""
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
    """How far its handler said it is: a fraction and a text."""
    steps: dict[str, bytes] | None = None
    """Results of steps its attempts have done (ctx.once), by name."""

    @property
    def fence(self) -> Fence:
        """The fence in force while the task runs, or of the claim that holds it ahead."""
        return Fence(self.new.id, self.attempt + self.claimed, self.token)

    @property
    def unit(self) -> str | None:
        """What its concurrency is limited by: its lane where lanes are strict, else its key."""
        return self.lane if self.lane is not None else self.new.key


def key_of(new: NewTask) -> tuple[str, int | None]:
    """Return the name under which an idempotency key is kept: per run where it counts per run."""
    return new.idempotency_key or "", new.run if new.dedupe is Dedupe.RUN else None
