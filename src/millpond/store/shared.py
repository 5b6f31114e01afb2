"""Shared stores: what a store that several processes use may offer beyond the six verbs.

A store that has all of it inherits from `SharedStore`. A store may also have some of the members
only: the runtime looks each one up once (`SharedMembers`) and does without what is missing, more
slowly but never less correctly. The memory store has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from millpond.store.protocol import Store

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from millpond.core.lease import LeaseRequest
    from millpond.core.settle import Settlement
    from millpond.core.spec import PoolSpec
    from millpond.store.protocol import Batch, Hint, RenewAnswer, SettleAnswer


class Renewer(Protocol):
    """Renews leases from a thread, over its own connection to the store."""

    def renew(self, worker: str, lease: float) -> RenewAnswer:
        """Keep everything a worker holds for `lease` seconds more."""

    def close(self) -> None:
        """Close its connection."""


class Presence(Protocol):
    """Which processes of this host are alive: each holds a lock that ends with it."""

    def appear(self, owner: str) -> None:
        """Take the lock of this process, before other processes can see its workers."""

    def leave(self, owner: str) -> None:
        """Release the lock at a regular end."""

    def gone(self) -> tuple[str, ...]:
        """Return the processes whose lock is free: they are dead and not removed yet."""

    def forget(self, owner: str) -> None:
        """Remove the lock of a dead process, once its workers are removed."""


class WorkerSession(Protocol):
    """A session that the store has only while this process is alive; for one thread at a time."""

    mark: str
    """What the name of a worker has in it whose process keeps a session."""
    watches: bool
    """Whether the store lets this process watch the others."""

    def fileno(self) -> int:
        """Return the socket of the open session, which is readable when the session ends."""

    def open(self) -> None:
        """Open the session, so that other processes see it."""

    def is_impossible(self, error: Exception) -> bool:
        """Return whether an error of `open` means that there can be no session here."""

    def confirm(self, *, watch: bool) -> list[tuple[str, float]] | None:
        """Ask over the session, which proves that the store has it.

        With `watch`, or in the one process that the store lets watch: return the workers with the
        mark whose processes have no session, each with the end of its lease.
        """

    def close(self) -> None:
        """End the session; safe twice."""


class HandlerTransaction(Protocol):
    """A transaction for a handler: it blocks, and one thread at a time may use it."""

    @property
    def connection(self) -> Any:  # noqa: ANN401 - of the store's driver
        """The handler's connection, once the transaction has begun."""

    def begin(self) -> None:
        """Wait for the store's lock, and begin."""

    def give_up(self) -> None:
        """Do not begin if it has not begun yet; any thread may call this."""

    def settle(self, settlement: Settlement) -> SettleAnswer:
        """End an attempt and commit; if its fence is stale, write nothing."""

    def rollback(self) -> None:
        """Undo everything; safe at any time."""

    def must_not_be_too_long(self) -> None:
        """Raise if the store undid it because it lasted too long."""


class SharedStore(Store, Protocol):
    """A store that several processes use at the same time."""

    presence: Presence | None
    """Lock files: which processes of this host are dead; None = only leases show it."""

    @property
    def session(self) -> Callable[[str], WorkerSession] | None:
        """Makes the session of a process by its name; None = only leases show who is alive."""
        return None

    @property
    def receives_hints(self) -> bool:
        """Whether every hint of other processes arrives, so that silence means no change."""
        return False

    @property
    def elects(self) -> bool:
        """Whether the processes elect one that leads maintenance."""
        return True

    def renewer(self) -> Renewer:
        """Return a connection for renewals that a thread may use."""

    async def changed(self) -> bool:
        """Return whether another process wrote since the last call."""

    async def repair(self) -> tuple[str, ...]:
        """Repair rows that do not fit together; return the damage found."""

    async def impossible_counts(self) -> tuple[str, ...]:
        """Return which counts are impossible; a database that refuses them itself has none."""
        return ()

    def detour_counts(self) -> Mapping[tuple[str, str], int]:
        """Return how many verbs of this process took a slower way, by verb and reason."""
        return {}

    def listen(self, on_hint: Callable[[Hint], object], /) -> object:
        """Call `on_hint` on the loop with each hint of another process."""

    def await_ends(self, *, wanted: bool) -> asyncio.Future[None] | None:
        """Ask other processes for hints of the ends of tasks, or no longer; on the loop.

        Return a future if they hear of it later: tasks that ended before it is set may have ended
        without a hint. A store without this sends such hints always.
        """
        del wanted
        return None

    def submit_within(
        self, connection: object, batches: Sequence[Batch], *, declare: Sequence[PoolSpec] = ()
    ) -> Any:  # noqa: ANN401 - the answer and the caller's transaction, or an awaitable of both
        """Submit inside the transaction that is open on a connection of the caller."""

    def check_caller(self) -> None:
        """Raise if the calling thread has a transaction open that a write would wait for."""
        return

    async def settle_with(
        self, settlement: Settlement, write: Callable[[Any], Any]
    ) -> tuple[SettleAnswer, Any]:
        """Settle an attempt in one transaction with what a handler's function writes."""

    def handler_transaction(self, limit: float) -> HandlerTransaction:
        """Return a transaction for a handler that may last `limit` seconds."""

    async def announce(self, answer: Any) -> None:  # noqa: ANN401 - the answer of any verb
        """Notify other processes of what a transaction of the caller's stored."""

    def settle_behind(
        self, settlements: Sequence[Settlement], *, then: LeaseRequest
    ) -> Coroutine[Any, Any, SettleAnswer | None] | None:
        """Send a settle while another one of this process is on its way; None if that cannot be.

        It is on its way when this returns. The answer is None if the store refused all of it, and
        wrote nothing: it may depend on one before it that was refused. The caller settles it again
        after that one. So no fence counts as stale here.
        """
        del settlements, then
        return None


class SharedMembers:
    """The members of `SharedStore` that one store has; None stands for a missing one."""

    def __init__(self, store: Store, *, shared: bool) -> None:
        self._store = store
        # By name: a store may have some of them only, and a wrapper may delegate.
        self.renewer: Callable[[], Renewer] | None = getattr(store, "renewer", None)
        self.presence: Presence | None = getattr(store, "presence", None)
        self.session: Callable[[str], WorkerSession] | None = getattr(store, "session", None)
        self.changed: Callable[[], Awaitable[bool]] | None = getattr(store, "changed", None)
        self.repair: Callable[[], Awaitable[tuple[str, ...]]] | None = getattr(
            store, "repair", None
        )
        self.impossible_counts: Callable[[], Awaitable[tuple[str, ...]]] | None
        self.impossible_counts = getattr(store, "impossible_counts", None)
        self.compact: Callable[[], Awaitable[tuple[str, ...]]] | None
        self.compact = getattr(store, "compact", None)
        self.detour_counts: Callable[[], Mapping[tuple[str, str], int]] | None
        self.detour_counts = getattr(store, "detour_counts", None)
        self.listen: Callable[[Callable[[Hint], object]], object] | None
        self.listen = getattr(store, "listen", None)
        self.await_ends: Callable[..., asyncio.Future[None] | None] | None
        self.await_ends = getattr(store, "await_ends", None)
        self.submit_within: Callable[..., Any] | None = getattr(store, "submit_within", None)
        self.check_caller: Callable[[], None] | None = getattr(store, "check_caller", None)
        self.settle_with: Callable[..., Awaitable[tuple[SettleAnswer, Any]]] | None
        self.settle_with = getattr(store, "settle_with", None)
        self.handler_transaction: Callable[[float], HandlerTransaction] | None = getattr(
            store, "handler_transaction", None
        )
        self.announce: Callable[[Any], Coroutine[Any, Any, None]] | None
        self.announce = getattr(store, "announce", None)
        self.settle_behind: Callable[..., Coroutine[Any, Any, SettleAnswer | None] | None] | None
        self.settle_behind = getattr(store, "settle_behind", None)
        self.elects: bool = shared and bool(getattr(store, "elects", self.renewer is not None))

    @property
    def receives_hints(self) -> bool:
        """Whether every hint of other processes arrives at the moment."""
        return bool(getattr(self._store, "receives_hints", False))
