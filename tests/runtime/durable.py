"""A stand-in for a durable store: one store in memory that several Millponds share.

It has all that a durable store can do beyond the protocol, and each part can be left out, kept
waiting or made to fail. Threads may renew: a lock makes each verb one step.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from millpond import Keep, Millpond
from millpond.core.control import ClaimLeadership, Prune
from millpond.pool.internals import internals_of
from millpond.runtime.environment import wall_clock
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Hint, RenewAnswer

T = TypeVar("T")

HEARD_AFTER = 0.01
"""Seconds until other processes know that a process wants hints of ends."""

VERBS = frozenset({"submit", "lease", "renew", "settle", "recover", "control"})


def at_once(verb: Coroutine[Any, Any, T]) -> T:
    """Return the answer of a verb of a memory store: it never waits, so any thread may call it."""
    try:
        verb.send(None)
    except StopIteration as answered:
        return answered.value  # type: ignore[no-any-return]
    raise AssertionError("a verb in memory does not wait")


class Cluster:
    """The store that all processes share. Make it inside a running loop."""

    def __init__(self, *, hints: bool = True, threads: bool = True) -> None:
        self.store = MemoryStore(clock=wall_clock(asyncio.get_running_loop()))
        self.lock = threading.RLock()
        self.hints = hints
        self.hints_are_reliable = False
        """Whether every process receives every hint, and knows that it does."""
        self.threads = threads
        self.process_stores: list[ProcessStore] = []
        self.awaiting: set[ProcessStore] = set()
        """Those that want hints of ends; a settle gives such hints only while there are any."""
        self.held_locks: set[str] = set()
        """Lock files that a live process holds."""
        self.free_locks: set[str] = set()
        """Lock files without a holder: their processes are dead."""
        self.log: list[str] = []

    def millpond(
        self, *, work: bool | None = None, lease: float = 30.0, keep: Keep | None = None
    ) -> Millpond:
        """Add a process. The store is durable, so it starts no worker unless `work` is true."""
        mp = Millpond("sqlite:///stand-in.db", work=work, lease=lease, keep=keep)

        def make() -> Any:
            store = (ProcessStore if self.threads else ProcessStoreWithoutThread)(self)
            self.process_stores.append(store)
            return store

        internals_of(mp).owner.make_store = make
        return mp

    def deliver(self, sender: "ProcessStore", hint: Hint) -> None:
        """Pass a hint on to all the others."""
        for store in self.process_stores:
            if store is not sender and store.on_hint is not None and self.hints:
                store.loop.call_soon_threadsafe(store.on_hint, hint)


class ProcessStore:
    """The store as one process sees it."""

    elects = True

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.loop = asyncio.get_running_loop()
        self.calls: Counter[str] = Counter()
        self.orders: list[Any] = []
        self.writes = 0
        self.on_hint: Callable[[Hint], None] | None = None
        self.view = CountedView(self)
        self.before: Callable[[str, Any], Any] | None = None
        """Called with each verb before the store carries it out; its result is awaited."""
        self.renewing: Callable[[str], None] | None = None
        """Called in the thread before each renewal."""
        self.renewers: list[ThreadRenewer] = []
        self._seen = self._theirs()

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if verb not in VERBS:
            raise AttributeError(verb)

        async def carry_out(*args: Any, **moment: Any) -> Any:
            if self.before is not None:
                waits = self.before(verb, args[0] if args else None)
                if waits is not None:
                    await waits
            return self.carry_out(verb, *args, **moment)

        return carry_out

    def carry_out(self, verb: str, *args: Any, **moment: Any) -> Any:
        """Carry out a verb, and send the other processes its hint."""
        with self.cluster.lock:
            self.calls[verb] += 1
            if verb == "control":
                self.orders.append(args[0])
            answer = at_once(getattr(self.cluster.store, verb)(*args, **moment))
            self.writes += 1
        if verb != "renew":
            lease = getattr(answer, "lease", None)
            wakes = (*answer.wakes, *(lease.wakes if lease is not None else ()))
            hint = Hint(
                wakes=wakes,
                ended=answer.ended,
                finished_runs=answer.finished_runs,
                cancelled=getattr(answer, "cancelled", ()),
                interrupted=getattr(answer, "interrupted", ()),
            )
            ended = getattr(answer, "after", ())
            if ended:
                mine = [one.fence.task for one in args[0]]
                ends = [task for task, after in zip(mine, ended, strict=True) if after]
                hint = Hint(
                    wakes=hint.wakes,
                    ended=tuple(ends) if self.cluster.awaiting else (),
                    finished_runs=hint.finished_runs,
                )
            if hint != Hint():
                self.cluster.deliver(self, hint)
        return answer

    def await_ends(self, *, wanted: bool) -> asyncio.Future[None] | None:
        """Ask for hints of ends, or stop; the others learn that after HEARD_AFTER."""
        if not wanted:
            self.cluster.awaiting.discard(self)
            return None
        heard = self.loop.create_future()

        def hear() -> None:
            self.cluster.awaiting.add(self)
            heard.set_result(None)

        self.loop.call_later(HEARD_AFTER, hear)
        return heard

    def _theirs(self) -> int:
        return sum(store.writes for store in self.cluster.process_stores if store is not self)

    async def changed(self) -> bool:
        """Whether other processes wrote since the last call."""
        self.calls["changed"] += 1
        before, self._seen = self._seen, self._theirs()
        return before != self._seen

    def listen(self, on_hint: Callable[[Hint], None]) -> None:
        """Pass hints to this function from now on."""
        self.on_hint = on_hint

    @property
    def receives_hints(self) -> bool:
        """Whether this process receives every hint, as far as it knows."""
        return self.cluster.hints_are_reliable

    def renewer(self) -> "ThreadRenewer":
        """A connection of its own, for a thread."""
        renewer = ThreadRenewer(self)
        self.renewers.append(renewer)
        return renewer

    @property
    def presence(self) -> "Locks":
        """The lock files."""
        return Locks(self.cluster)

    async def close(self) -> None:
        """Stop receiving hints; the other processes keep the store."""
        self.on_hint = None

    def orders_of(self, kind: type) -> list[Any]:
        """Return the orders of one kind that this process gave."""
        return [order for order in self.orders if isinstance(order, kind)]


class ProcessStoreWithoutThread(ProcessStore):
    """A store whose process needs no thread: for virtual time."""

    renewer = None  # type: ignore[assignment]
    presence = None  # type: ignore[assignment]


class CountedView:
    """The view of the store, which counts its calls."""

    def __init__(self, store: ProcessStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        question = getattr(self._store.cluster.store.view, name)

        async def ask(*args: Any, **more: Any) -> Any:
            self._store.calls[name] += 1
            with self._store.cluster.lock:
                return at_once(question(*args, **more))

        return ask


class ThreadRenewer:
    """Renews from a thread."""

    def __init__(self, store: ProcessStore) -> None:
        self._store = store
        self.closed = False
        self.thread = threading.get_ident()

    def renew(self, worker: str, lease: float) -> RenewAnswer:
        """Renew, after the `renewing` function of the test, if there is one."""
        assert not self.closed
        assert self.thread == threading.get_ident()
        if self._store.renewing is not None:
            self._store.renewing(worker)
        answer: RenewAnswer = self._store.carry_out("renew", worker, lease)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self.closed = True


class Locks:
    """Lock files, without files."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def appear(self, owner: str) -> None:
        """Take the lock."""
        self._cluster.log.append(f"appear {owner}")
        self._cluster.held_locks.add(owner)

    def leave(self, owner: str) -> None:
        """Release the lock."""
        self._cluster.log.append(f"leave {owner}")
        self._cluster.held_locks.discard(owner)

    def gone(self) -> tuple[str, ...]:
        """Return the owners of the locks without a holder."""
        return tuple(sorted(self._cluster.free_locks))

    def forget(self, owner: str) -> None:
        """Remove the file."""
        self._cluster.log.append(f"forget {owner}")
        self._cluster.free_locks.discard(owner)


def kill(cluster: Cluster, mp: Millpond) -> None:
    """Kill a process: it calls the store no longer, and its lock is free."""
    runtime = internals_of(mp).runtime
    store: Any = runtime.store

    store.dead = asyncio.Event()

    async def never(_verb: str, _command: Any) -> None:
        await store.dead.wait()
        raise ConnectionError("this process is dead")

    store.before = never
    store.on_hint = None
    for one in (runtime.maintenance._task, runtime.polling._task):
        if one is not None:
            one.cancel()
    thread = runtime.renewals._thread
    if thread is not None:
        with thread._changed:
            thread._over = True
            thread._changed.notify()
    cluster.held_locks.discard(runtime.owner)
    cluster.free_locks.add(runtime.owner)


def revive(mp: Millpond) -> None:
    """Let a killed process close, so that it leaves no task or thread behind."""
    store: Any = internals_of(mp).runtime.store
    store.before = None
    store.dead.set()


__all__ = [
    "ClaimLeadership",
    "Cluster",
    "ProcessStore",
    "ProcessStoreWithoutThread",
    "Prune",
    "at_once",
    "kill",
    "revive",
]
