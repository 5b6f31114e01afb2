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
    """How many callers are inside."""
    pending: int
    """How many callers wait."""
    max_concurrent: int
    """How many callers may be inside."""
    max_queue: int
    """How many callers may wait."""
    weight_in_flight: int
    """The sum of the weights inside."""
    max_weight: int | None
    """The bound of that sum; None: no bound."""
    closed: bool
    """Whether the bulkhead is closed."""
    revision: int
    """The revision of the limits; each `resize` raises it."""


@dataclass(frozen=True, slots=True)
class PermitRejection(Rejection):
    """A refused permit: falsy, with the reason and how full the bulkhead was then."""

    reason: RejectReason
    """Why."""
    bulkhead: str
    """The name of the bulkhead that refused."""
    weight: int
    """The weight that the caller asked for."""
    capacity: Capacity
    """How full the bulkhead was then."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """How many callers were left when a drain returned; falsy if none."""

    in_flight: int
    """How many callers were inside."""
    pending: int
    """How many callers waited."""

    def __bool__(self) -> bool:
        return bool(self.in_flight or self.pending)


@dataclass(frozen=True, slots=True)
class HookEvent:
    """One change of a bulkhead, as a hook gets it after the change."""

    kind: Literal["admit", "reject", "release", "close"]
    """What happened."""
    bulkhead: str
    """The name of the bulkhead."""
    id: int | None
    """The id of the permit; None for refusals and for closing."""
    weight: int
    """The weight of the caller."""
    reason: RejectReason | None
    """Why the caller was refused, if it was."""
    revision: int
    """The revision of the limits at the admission, whatever is in force by now."""
    capacity: Capacity
    """How full the bulkhead was after the change."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The limits, levels and totals of a bulkhead at one instant."""

    bulkhead: str
    """Its name."""
    in_flight: int
    """How many callers are inside."""
    pending: int
    """How many callers wait."""
    max_concurrent: int
    """How many callers may be inside."""
    max_queue: int
    """How many callers may wait."""
    weight_in_flight: int
    """The sum of the weights inside."""
    max_weight: int | None
    """The bound of that sum; None: no bound."""
    closed: bool
    """Whether the bulkhead is closed."""
    revision: int
    """The revision of the limits; each `resize` raises it."""
    admitted: int
    """How many callers it has admitted."""
    released: int
    """How many permits came back."""
    rejected: int
    """How many callers it has refused."""
    rejected_by_reason: Mapping[RejectReason, int]
    """The same, by reason."""
    aborted: int
    """How many of them gave up by their `signal`."""
    timed_out: int
    """How many of them waited for their `timeout`."""
    double_release: int
    """How often a permit was released that had been released before."""
    underflow: int
    """Zero unless this library has a bug. Alert on it."""
    leaked: int
    """Permits collected unreleased; their slots came back, later than they should have."""
    hook_errors: int
    """How many hooks raised."""


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
