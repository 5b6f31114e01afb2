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
"""Seconds until others hear that a process waits for ends."""

VERBS = frozenset({"submit", "lease", "renew", "settle", "recover", "control"})


def at_once(verb: Coroutine[Any, Any, T]) -> T:
    """What a verb of a store in memory answers: it never waits, so any thread may ask."""
    try:
        verb.send(None)
    except StopIteration as answered:
        return answered.value  # type: ignore[no-any-return]
    raise AssertionError("a verb in memory does not wait")


class Harbour:
    """The file: what all processes share. Make it inside a running loop."""

    def __init__(self, *, hints: bool = True, threads: bool = True) -> None:
        self.store = MemoryStore(clock=wall_clock(asyncio.get_running_loop()))
        self.lock = threading.RLock()
        self.hints = hints
        self.hears = False
        """Whether every process is sure to be told."""
        self.threads = threads
        self.ships: list[Ship] = []
        self.awaiting: set[Ship] = set()
        """Those that want hints of ends; a settle gives such hints only while there are any."""
        self.held: set[str] = set()
        """Lock files that a process holds."""
        self.left: set[str] = set()
        """Lock files that nobody holds: their processes are dead."""
        self.log: list[str] = []

    def millpond(
        self, *, work: bool | None = None, lease: float = 30.0, keep: Keep | None = None
    ) -> Millpond:
        """One more process; it is durable, so it is no worker unless it is told so."""
        mp = Millpond("sqlite:///stand-in.db", work=work, lease=lease, keep=keep)

        def make() -> Any:
            ship = (Ship if self.threads else Still)(self)
            self.ships.append(ship)
            return ship

        internals_of(mp).owner.make_store = make
        return mp

    def sent(self, sender: "Ship", hint: Hint) -> None:
        """Pass a hint on to all the others."""
        for ship in self.ships:
            if ship is not sender and ship.tell is not None and self.hints:
                ship.loop.call_soon_threadsafe(ship.tell, hint)


class Ship:
    """The store as one process sees it."""

    elects = True

    def __init__(self, harbour: Harbour) -> None:
        self.harbour = harbour
        self.loop = asyncio.get_running_loop()
        self.asked: Counter[str] = Counter()
        self.orders: list[Any] = []
        self.writes = 0
        self.tell: Callable[[Hint], None] | None = None
        self.view = Porthole(self)
        self.before: Callable[[str, Any], Any] | None = None
        """Called with each verb before it is carried out; what it returns is awaited."""
        self.renewing: Callable[[str], None] | None = None
        """Called in the thread before each renewal."""
        self.renewers: list[Rower] = []
        self._seen = self._theirs()

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if verb not in VERBS:
            raise AttributeError(verb)

        async def carry_out(*asked: Any, **moment: Any) -> Any:
            if self.before is not None:
                waits = self.before(verb, asked[0] if asked else None)
                if waits is not None:
                    await waits
            return self.carry_out(verb, *asked, **moment)

        return carry_out

    def carry_out(self, verb: str, *asked: Any, **moment: Any) -> Any:
        """Do a verb, and tell the others."""
        with self.harbour.lock:
            self.asked[verb] += 1
            if verb == "control":
                self.orders.append(asked[0])
            answer = at_once(getattr(self.harbour.store, verb)(*asked, **moment))
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
                mine = [one.fence.task for one in asked[0]]
                ends = [task for task, after in zip(mine, ended, strict=True) if after]
                hint = Hint(
                    wakes=hint.wakes,
                    ended=tuple(ends) if self.harbour.awaiting else (),
                    finished_runs=hint.finished_runs,
                )
            if hint != Hint():
                self.harbour.sent(self, hint)
        return answer

    def await_ends(self, *, wanted: bool) -> asyncio.Future[None] | None:
        """Want hints of ends, or no longer; the others know after a while."""
        if not wanted:
            self.harbour.awaiting.discard(self)
            return None
        heard = self.loop.create_future()

        def hear() -> None:
            self.harbour.awaiting.add(self)
            heard.set_result(None)

        self.loop.call_later(HEARD_AFTER, hear)
        return heard

    def _theirs(self) -> int:
        return sum(ship.writes for ship in self.harbour.ships if ship is not self)

    async def changed(self) -> bool:
        """Whether others wrote since it was last asked."""
        self.asked["changed"] += 1
        before, self._seen = self._seen, self._theirs()
        return before != self._seen

    def listen(self, tell: Callable[[Hint], None]) -> None:
        """Tell of hints from now on."""
        self.tell = tell

    @property
    def receives_hints(self) -> bool:
        """Whether no hint is lost, as far as it knows."""
        return self.harbour.hears

    def renewer(self) -> "Rower":
        """A connection of its own, for a thread."""
        rower = Rower(self)
        self.renewers.append(rower)
        return rower

    @property
    def presence(self) -> "Locks":
        """The lock files."""
        return Locks(self.harbour)

    async def close(self) -> None:
        """Leave the harbour to the others."""
        self.tell = None

    def told(self, kind: type) -> list[Any]:
        """The orders of one kind that it gave."""
        return [order for order in self.orders if isinstance(order, kind)]


class Still(Ship):
    """A store whose process needs no thread: for virtual time."""

    renewer = None  # type: ignore[assignment]
    presence = None  # type: ignore[assignment]


class Porthole:
    """The reading side, counted."""

    def __init__(self, ship: Ship) -> None:
        self._ship = ship

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        question = getattr(self._ship.harbour.store.view, name)

        async def ask(*asked: Any, **more: Any) -> Any:
            self._ship.asked[name] += 1
            with self._ship.harbour.lock:
                return at_once(question(*asked, **more))

        return ask


class Rower:
    """Renews from a thread."""

    def __init__(self, ship: Ship) -> None:
        self._ship = ship
        self.closed = False
        self.thread = threading.get_ident()

    def renew(self, worker: str, lease: float) -> RenewAnswer:
        """Renew, after whatever the test has in store."""
        assert not self.closed
        assert self.thread == threading.get_ident()
        if self._ship.renewing is not None:
            self._ship.renewing(worker)
        answer: RenewAnswer = self._ship.carry_out("renew", worker, lease)
        return answer

    def close(self) -> None:
        """Let the connection go."""
        self.closed = True


class Locks:
    """Lock files, without files."""

    def __init__(self, harbour: Harbour) -> None:
        self._harbour = harbour

    def appear(self, owner: str) -> None:
        """Take the lock."""
        self._harbour.log.append(f"appear {owner}")
        self._harbour.held.add(owner)

    def leave(self, owner: str) -> None:
        """Let it go."""
        self._harbour.log.append(f"leave {owner}")
        self._harbour.held.discard(owner)

    def gone(self) -> tuple[str, ...]:
        """Whose lock nobody holds."""
        return tuple(sorted(self._harbour.left))

    def forget(self, owner: str) -> None:
        """Remove the file."""
        self._harbour.log.append(f"forget {owner}")
        self._harbour.left.discard(owner)


def kill(harbour: Harbour, mp: Millpond) -> None:
    """End a process where it stands: it says no more, and its lock is free."""
    runtime = internals_of(mp).runtime
    ship: Any = runtime.store

    ship.dead = asyncio.Event()

    async def never(_verb: str, _asked: Any) -> None:
        await ship.dead.wait()
        raise ConnectionError("this process is dead")

    ship.before = never
    ship.tell = None
    for one in (runtime.maintenance._task, runtime.polling._task):
        if one is not None:
            one.cancel()
    thread = runtime.renewals._thread
    if thread is not None:
        with thread._changed:
            thread._over = True
            thread._changed.notify()
    harbour.held.discard(runtime.owner)
    harbour.left.add(runtime.owner)


def revive(mp: Millpond) -> None:
    """Let a killed process be taken down in good order, so that nothing is left of it."""
    ship: Any = internals_of(mp).runtime.store
    ship.before = None
    ship.dead.set()


__all__ = [
    "ClaimLeadership",
    "Harbour",
    "Prune",
    "Ship",
    "Still",
    "at_once",
    "kill",
    "revive",
]
