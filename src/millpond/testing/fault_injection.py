"""Inject faults: a store that fails on request, before a verb takes effect or after."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from millpond.core import validation as check
from millpond.errors import StoreError

if TYPE_CHECKING:
    from millpond.store.protocol import Store
    from millpond.store.view import View

Verb: TypeAlias = Literal["submit", "lease", "renew", "settle", "recover", "control"]
When: TypeAlias = Literal["before", "after"]
Raised: TypeAlias = BaseException | type[BaseException]

VERBS = get_args(Verb)


class Fault:
    """A verb of the store that fails the next times; `left` is 0 once it has happened."""

    def __init__(self, verb: str, error: Raised | None, count: int, when: str) -> None:
        self.verb: str = check.one_of("verb", verb, VERBS)
        """The verb that fails."""
        self.when: str = check.one_of("when", when, ("before", "after"))
        """Whether it fails before it takes effect, or after."""
        self.left: int = check.integer("count", count, least=1)
        """How often it still will."""
        self._error = error

    def happen(self) -> None:
        """Raise, once less from now on."""
        self.left -= 1
        if self._error is None:
            lost = "its answer was lost" if self.when == "after" else "nothing was done"
            raise StoreError(f"the lab made {self.verb} fail: {lost}")
        raise self._error

    def __repr__(self) -> str:
        return f"<fault {self.when} {self.verb}, {self.left} left>"


def _failing(verb: Verb) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the method that carries out a verb, unless it is to fail before or after."""

    async def call(
        self: FaultyStore,
        *arguments: Any,  # noqa: ANN401 - each verb takes its own
        entropy: int | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        if self.cut_off:
            raise StoreError("this process is dead: its calls do not reach the store")
        self._fail(verb, "before")
        dice = self._dice.getrandbits(64)
        answer = await getattr(self._store, verb)(*arguments, entropy=entropy or dice, **options)
        self._fail(verb, "after")
        return answer

    return call


class FaultyStore:
    """A store behind which another does the work: seeded, able to fail, and to be cut off.

    What is cut off belongs to a process that died: whatever it still says is not heard.
    """

    def __init__(
        self,
        store: Store,
        faults: list[Fault],
        dice: random.Random,
        on_fault: Callable[[], None],
    ) -> None:
        self._store = store
        self._faults = faults
        self._dice = dice
        self._on_fault = on_fault
        self.shared = True
        self.cut_off = False

    @property
    def view(self) -> View:
        """The reading side."""
        return self._store.view

    def _fail(self, verb: Verb, when: When) -> None:
        for fault in self._faults:
            if fault.left and (fault.verb, fault.when) == (verb, when):
                self._on_fault()
                fault.happen()

    submit, lease, renew = _failing("submit"), _failing("lease"), _failing("renew")
    settle, recover, control = _failing("settle"), _failing("recover"), _failing("control")

    async def close(self) -> None:
        """Do nothing: the lab closes what it made when it ends."""
