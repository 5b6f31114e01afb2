"""Reports of a bulkhead: frozen values, each true at one instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from millpond.core.gate import RejectReason
from millpond.core.rejection import Rejection
from millpond.errors import BulkheadRejected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Capacity:
    """How full a bulkhead was at one instant."""

    in_flight: int
    pending: int
    max_concurrent: int
    max_queue: int
    weight_in_flight: int
    max_weight: int | None
    closed: bool
    revision: int


@dataclass(frozen=True, slots=True)
class PermitRejection(Rejection):
    """A refused permit: falsy, with the reason and how full the bulkhead was then."""

    reason: RejectReason
    bulkhead: str
    weight: int
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class Leftover:
    """How many callers were left when a drain returned; falsy if none."""

    in_flight: int
    pending: int

    def __bool__(self) -> bool:
        return bool(self.in_flight or self.pending)


@dataclass(frozen=True, slots=True)
class HookEvent:
    """One change, seen after it was made.

    `id` is that of the admission (the permit has the same one), None for refusals and for closing.
    `revision` is the one the admission was made under, whatever is in force by now.
    """

    kind: Literal["admit", "reject", "release", "close"]
    bulkhead: str
    id: int | None
    weight: int
    reason: RejectReason | None
    revision: int
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class Stats:
    """A pure read of a bulkhead: limits, levels and totals of one instant."""

    bulkhead: str
    in_flight: int
    pending: int
    max_concurrent: int
    max_queue: int
    weight_in_flight: int
    max_weight: int | None
    closed: bool
    revision: int
    admitted: int
    released: int
    rejected: int
    rejected_by_reason: Mapping[RejectReason, int]
    aborted: int
    timed_out: int
    double_release: int
    underflow: int
    """Zero unless this library has a bug. Alert on it."""
    leaked: int
    """Permits collected unreleased; their slots came back, later than they should have."""
    hook_errors: int


if TYPE_CHECKING:
    Hook = Callable[[HookEvent], object]


def as_error(rejection: PermitRejection) -> BulkheadRejected:
    """Return the refusal as an error."""
    return BulkheadRejected(
        f"bulkhead {rejection.bulkhead!r} refused: {rejection.reason}",
        bulkhead=rejection.bulkhead,
        reason=rejection.reason,
        capacity=rejection.capacity,
    )
