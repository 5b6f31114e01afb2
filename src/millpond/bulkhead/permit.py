"""The right to be inside a bulkhead."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal, NoReturn, Self

from millpond.core import validation as check

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from millpond.bulkhead.shared_state import Door
    from millpond.bulkhead.waiters import Waiter
    from millpond.core.gate import Ticket


class Permit:
    """One admitted slot: release it exactly once, or use it as `with permit:`.

    `id` counts the bulkhead's admissions, `revision` is that of the limits it was admitted under;
    hook events carry both. A permit that is collected unreleased gives its slot back, is counted
    as leaked and warned about (ResourceWarning): a safety net, and as late as the collector.
    """

    # Filled in by whoever admits, field by field: an `__init__` would cost more than the lock.
    __slots__ = ("__weakref__", "door", "held", "id", "load", "revision", "started", "weight")

    door: Door
    held: bool
    id: int
    weight: int
    revision: int
    started: float
    load: int

    def release(self, failed: bool = False) -> None:
        """Give the slot to whoever waits for it; a second call is counted and changes nothing.

        `failed` tells an adaptive limit that the work did not succeed. Safe in finalizers and
        signal handlers.
        """
        door = self.door
        keys = door.keys
        try:
            keys.pop()
        except IndexError:
            if not door.lock.wait_briefly():
                door.put_off(self)
                return
        except BaseException:
            keys.append(None)
            raise
        try:
            held = self.held
            if held:
                settled = door.gate.leave(self.weight)
                self.held = False
            else:
                settled = ()
                door.double_release += 1
        finally:
            keys.append(None)
        if settled:
            door.wake(settled)
        if door.alert:
            if held:
                door.departed(self, failed=failed)
            door.tidy()

    def settle(self, actual: int) -> None:
        """Correct the weight to what was really used: a refund, or a charge that may exceed.

        While the total exceeds `max_weight` nobody new is admitted. After the release it does
        nothing: the weight is already back.
        """
        check.integer("actual", actual, least=0)
        self.door.apply(self._reweigh, actual)

    def _reweigh(self, actual: int) -> Sequence[Waiter]:
        if not self.held:
            return ()
        delta, self.weight = actual - self.weight, actual
        return self.door.gate.adjust(delta)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release(failed=is_failure(kind))

    @property
    def bulkhead(self) -> str:
        """The name of the bulkhead it belongs to."""
        return self.door.name

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Permit is one slot: a copy of it could be released a second time")

    def __bool__(self) -> Literal[True]:
        return True

    def __repr__(self) -> str:
        state = "held" if self.held else "released"
        return f"<Permit {self.id} of {self.bulkhead!r}, weight {self.weight}, {state}>"

    def __del__(self) -> None:
        if self.held:
            self.held = False
            self.door.lose(self)
            message = f"permit {self.id} of bulkhead {self.bulkhead!r} was never released"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)


def issue(door: Door, ticket: Ticket) -> Permit:
    """The permit for an admission that a ticket went through."""
    permit = Permit()
    permit.door = door
    permit.id = ticket.id
    permit.weight = ticket.weight
    permit.revision = ticket.revision
    permit.held = True
    if door.alert:
        door.admitted(permit)
    return permit


def is_failure(kind: type[BaseException] | None) -> bool:
    """Whether work that ended with `kind` failed; being cancelled says nothing about a server."""
    return kind is not None and issubclass(kind, Exception)
