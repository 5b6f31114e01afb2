"""Permits: one admitted slot of a bulkhead."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal, NoReturn, Self

from millpond.core import validation as check

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from millpond.bulkhead.shared_state import SharedState
    from millpond.bulkhead.waiters import Waiter
    from millpond.core.gate import Ticket


class Permit:
    """One admitted slot: release it exactly once, or use it as `with permit:`.

    A permit that is garbage-collected unreleased gives its slot back, is counted as leaked and
    warned about (ResourceWarning), but only when the collector finds it.
    """

    # The bulkhead sets each field: an `__init__` would cost more than the lock.
    __slots__ = (
        "__weakref__",
        "_held",
        "_load",
        "_started",
        "_state",
        "id",
        "revision",
        "weight",
    )

    id: int
    """Its number among the admissions of the bulkhead; hook events have it, too."""
    weight: int
    """The weight that it holds; `settle` changes it."""
    revision: int
    """The revision of the limits at its admission."""
    _state: SharedState
    _held: bool
    _started: float
    _load: int

    def release(self, failed: bool = False) -> None:
        """Give the slot back, to the first waiter if there is one; a second call is only counted.

        `failed` reports to an adaptive limit that the work did not succeed. Safe in finalizers and
        signal handlers.
        """
        state = self._state
        keys = state.keys
        try:
            keys.pop()
        except IndexError:
            if not state.lock.wait_briefly():
                state.postpone_release(self)
                return
        except BaseException:
            keys.append(None)
            raise
        try:
            held = self._held
            if held:
                settled = state.gate.leave(self.weight)
                self._held = False
            else:
                settled = ()
                state.double_release += 1
        finally:
            keys.append(None)
        if settled:
            state.wake(settled)
        if state.alert:
            if held:
                state.departed(self, failed=failed)
            state.catch_up()

    def settle(self, actual: int) -> None:
        """Correct the weight to the one really used: a refund, or a charge beyond the limit.

        While the total exceeds `max_weight` no caller is admitted. After the release it does
        nothing: the weight is already back.
        """
        check.integer("actual", actual, least=0)
        self._state.apply(self._reweigh, actual)

    def _reweigh(self, actual: int) -> Sequence[Waiter]:
        if not self._held:
            return ()
        delta, self.weight = actual - self.weight, actual
        return self._state.gate.adjust(delta)

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
        return self._state.name

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Permit is one slot: a copy of it could be released a second time")

    def __bool__(self) -> Literal[True]:
        return True

    def __repr__(self) -> str:
        state = "held" if self._held else "released"
        return f"<Permit {self.id} of {self.bulkhead!r}, weight {self.weight}, {state}>"

    def __del__(self) -> None:
        if self._held:
            self._held = False
            self._state.reclaim(self)
            message = f"permit {self.id} of bulkhead {self.bulkhead!r} was never released"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)


def issue(state: SharedState, ticket: Ticket) -> Permit:
    """Return the permit for the admission of a ticket."""
    permit = Permit()
    permit._state = state
    permit.id = ticket.id
    permit.weight = ticket.weight
    permit.revision = ticket.revision
    permit._held = True
    if state.alert:
        state.admitted(permit)
    return permit


def is_failure(kind: type[BaseException] | None) -> bool:
    """Return whether work that raised `kind` failed; a cancellation is not a failure."""
    return kind is not None and issubclass(kind, Exception)
