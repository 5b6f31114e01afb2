"""Abilities: what a store that several processes use may do beyond the protocol.

Each is asked for by name, and each may be missing: a store in memory has none. What is missing
is done without: more slowly, never less correctly.

    renewer()     a connection of its own for renewals, to be used from a thread
    presence      lock files: which processes of this host are gone
    changed()     whether others wrote since it was last asked; the one thing an idle process asks
    mend()        put right what does not fit together; what that was
    miscounted()  which counts are impossible, where the database does not refuse them itself
    listen(tell)  hints of other processes, told on the loop
    hears         whether no hint is lost as things stand, so that silence tells something
    elects        whether one of the processes leads maintenance; those that renew apart do
    submit_within(connection, batches)  a submit inside a transaction of the caller's, in his thread
    settle_with(settlement, write)      a settle in one transaction with what a handler writes
    hold(limit)   a transaction for a handler, ended by a settle
    announce(answer)  tell others what was stored inside somebody's transaction
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from millpond.core.settle import Settlement
    from millpond.store.protocol import Hint, RenewAnswer, SettleAnswer, Store


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


class Held(Protocol):
    """A transaction for a handler: it blocks, and may be used by one thread at a time."""

    @property
    def connection(self) -> Any:  # noqa: ANN401 - of the store's driver
        """The handler's connection, once it has begun."""
        ...

    def begin(self) -> None:
        """Wait for one's turn, and begin."""
        ...

    def give_up(self) -> None:
        """Do not begin if it has not yet; any thread may tell."""
        ...

    def settle(self, settlement: Settlement) -> SettleAnswer:
        """End an attempt and commit; if its fence is stale, write nothing."""
        ...

    def rollback(self) -> None:
        """Undo everything; safe at any time."""
        ...

    def must_not_be_too_long(self) -> None:
        """Raise if it was undone because it lasted too long."""
        ...


class Abilities:
    """What the store at hand can do."""

    def __init__(self, store: Store, *, shared: bool) -> None:
        self._store = store
        self.renewer: Callable[[], Renewer] | None = getattr(store, "renewer", None)
        self.presence: Presence | None = getattr(store, "presence", None)
        self.changed: Callable[[], Awaitable[bool]] | None = getattr(store, "changed", None)
        self.listen: Callable[[Callable[[Hint], None]], object] | None
        self.listen = getattr(store, "listen", None)
        self.mend: Callable[[], Awaitable[tuple[str, ...]]] | None = getattr(store, "repair", None)
        self.miscounted: Callable[[], Awaitable[tuple[str, ...]]] | None = getattr(
            store, "impossible_counts", None
        )
        self.submit_within: Callable[..., Any] | None
        """Gives a SubmitAnswer and what tells whether the transaction is open, or is awaited."""
        self.submit_within = getattr(store, "submit_within", None)
        self.settle_with: Callable[..., Awaitable[tuple[SettleAnswer, Any]]] | None
        self.settle_with = getattr(store, "settle_with", None)
        self.hold: Callable[[float], Held] | None = getattr(store, "handler_transaction", None)
        self.announce: Callable[[Any], Awaitable[None]] | None = getattr(store, "announce", None)
        self.elects: bool = shared and getattr(store, "elects", self.renewer is not None)

    @property
    def hears(self) -> bool:
        """Whether no hint is lost as things stand."""
        return bool(getattr(self._store, "receives_hints", False))
