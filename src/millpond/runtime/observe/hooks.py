"""Hooks and observers: what they receive, and which of them are registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from millpond.runtime.error_info import ErrorInfo
from millpond.runtime.observe.probe import Probes

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.runtime.observe.probe import Probe


class Counts:
    """Counts of trouble in this process."""

    def __init__(self) -> None:
        self.hook_errors = 0
        """on_dead_letter and on_empty that raised."""
        self.observer_errors = 0
        """Observers and telemetry that raised."""
        self.stale_settles = 0
        """Settlements that came too late, and changed nothing."""
        self.leases_lost = 0
        """Attempts whose lease was gone before they were settled."""
        self.unknown_functions = 0
        """Functions that tasks wait for and that are not known here."""
        self.unfit_arguments = 0
        """Functions, and arguments of theirs, that stored tasks do not fit here."""
        self.corrupt = 0
        """Tasks whose arguments could not be read."""
        self.mended = 0
        """Inconsistent rows of the store that were repaired."""
        self.stuck = 0
        """Handlers that did not stop when they were asked to."""
        self.stalls = 0
        """Turns of workers that the store did not answer in time."""

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={count}" for name, count in vars(self).items() if count)
        return f"<counts {counts or 'nothing'}>"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A task that failed for good, as `on_dead_letter` gets it."""

    task_id: int
    """The task."""
    pool: str
    """Its pool."""
    function: str
    """The name of its function."""
    payload: bytes
    """Its arguments as stored, JSON."""
    args: tuple[Any, ...] = ()
    """Its positional arguments in the types of its function."""
    kwargs: dict[str, Any] = {}
    """Its arguments by name; all of them, as plain JSON values, where its function is not known
    here or no longer takes them."""
    error: ErrorInfo | None
    """What its last attempt raised."""
    reason: str | None
    """Why, where that was not its handler's doing."""
    attempts: int
    """Charged runs."""
    key: str | None
    """Its key."""
    labels: dict[str, str]
    """Its labels."""
    lane: str | None
    """Its lane."""
    sequence: int
    """Its number in its lane, or in the pool."""
    submitted_at: float
    """When it was submitted."""
    failed_at: float
    """When it failed."""


class Empty(msgspec.Struct, frozen=True, kw_only=True):
    """A lane, or a pool without lanes, that has run empty, as `on_empty` gets it."""

    pool: str
    """The pool."""
    lane: str | None
    """The lane; None for a pool without lanes."""
    processed: int
    """How many of its tasks ever completed or failed."""


Kind = Literal[
    "blocked",
    "completed",
    "failed",
    "cancelled",
    "rejected",
    "retry",
    "released",
    "stale",
    "stalled",
]


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """One event in this process, as observers get it."""

    kind: Kind
    """An end by its status, or `retry`, `released`, `stale`, `blocked`, `stalled`."""
    pool: str
    """Where."""
    task_id: int | None = None
    """To which task."""
    function: str = ""
    """The name of its function."""
    attempt: int = 0
    """Which charged run it was."""
    at: float = 0.0
    """When."""
    delay: float | None = None
    """Seconds until the next attempt, for a retry."""
    worker: str | None = None
    """The worker, where it is about one and not about a task."""
    error: ErrorInfo | None = None
    """The exception, if there was one."""


class Hooks:
    """The user's hooks of each pool, and observers of everything."""

    def __init__(self) -> None:
        self.on_dead_letter: dict[str, Callable[[DeadLetter], Any]] = {}
        self.on_empty: dict[str, Callable[[Empty], Any]] = {}
        self.observers: list[Callable[[Observed], object]] = []
        self.probes: Probes | None = None
        """Calls the telemetry; None = there is none."""
        self.counts = Counts()
        """Counts of the runtime that uses these hooks, once there is one."""

    def attach(self, probe: Probe) -> Callable[[], None]:
        """Add telemetry; return a function that removes it."""
        self._set_probes((*self.attached, probe))

        def stop() -> None:
            self._set_probes(tuple(one for one in self.attached if one is not probe))

        return stop

    @property
    def attached(self) -> tuple[Probe, ...]:
        """The probes that are attached."""
        return () if self.probes is None else self.probes.attached

    def _set_probes(self, probes: tuple[Probe, ...]) -> None:
        self.probes = Probes(probes, self._count_error) if probes else None

    def _count_error(self) -> None:
        self.counts.observer_errors += 1
