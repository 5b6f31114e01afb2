"""Abilities: what a store that several processes use may do beyond the protocol.

Each is asked for by name, and each may be missing: a store in memory has none. What is missing
is done without: more slowly, never less correctly.

    renewer()     a connection of its own for renewals, to be used from a thread
    presence      lock files: which processes of this host are gone
    changed()     whether others wrote since it was last asked; the one thing an idle process asks
    listen(tell)  hints of other processes, told on the loop
    elects        whether one of the processes leads maintenance; those that renew apart do
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from millpond.store.protocol import Hint, RenewAnswer, Store


class Renewer(Protocol):
    """Renews from a thread, and waits there: it has a connection to the store of its own."""

    def renew(self, worker: str, lease: float) -> RenewAnswer:
        """Keep everything a worker holds for `lease` seconds more."""
        ...

    def close(self) -> None:
        """Let its connection go."""
        ...


class Presence(Protocol):
    """Which processes of this host are there: each holds a lock that ends with it."""

    def appear(self, owner: str) -> None:
        """Take the lock of this process, before anybody hears of its workers."""
        ...

    def leave(self, owner: str) -> None:
        """Let it go in good order."""
        ...

    def gone(self) -> tuple[str, ...]:
        """Return other processes whose lock is free: they are dead, and nobody has buried them."""
        ...

    def forget(self, owner: str) -> None:
        """Remove what a dead process left, once its workers are buried."""
        ...


class Abilities:
    """What the store at hand can do."""

    def __init__(self, store: Store, *, shared: bool) -> None:
        self.renewer: Callable[[], Renewer] | None = getattr(store, "renewer", None)
        self.presence: Presence | None = getattr(store, "presence", None)
        self.changed: Callable[[], Awaitable[bool]] | None = getattr(store, "changed", None)
        self.listen: Callable[[Callable[[Hint], None]], object] | None
        self.listen = getattr(store, "listen", None)
        self.elects: bool = shared and getattr(store, "elects", self.renewer is not None)
