"""The differential: a history on the memory store, and on stores that share one schema.

The memory store is the model: it has no SQL. The stores on the server take turns, each with its own
connection and its own cache, and each asks the server's functions first
(`millpond_settle_and_lease`, `millpond_submit`). Every answer must be the same, then the audit, the
tasks and the counts; and what the tables say of each other must fit.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.control import Declare
from millpond.core.task import CALLBACKS
from millpond.errors import IllegalTransition, MillpondError
from millpond.store.memory import MemoryStore
from millpond.store.protocol import LeaseAnswer, SettleAnswer
from millpond.store.verbs import api as steps
from millpond.testing.simulation.history import Raised, Verb, as_asked, carry_out
from verify.fuzz.kinds import POOL, spec_of
from verify.fuzz.player import Player
from verify.fuzz.streams import Streams
from verify.servers.schemas import InlinePostgresStore, Schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from millpond.store.postgres.inbox import Arrival
    from millpond.store.protocol import Store

ACTS = 60
"""How many acts a history has unless it is said."""


class Diverged(AssertionError):
    """The stores on the server did not do what the memory store did."""

    def __init__(self, what: str, history: Sequence[Turn]) -> None:
        super().__init__(what)
        self.what = what
        self.history = list(history)


class Turn(msgspec.Struct, frozen=True):
    """One verb of a history, and which of the stores on the server carries it out."""

    store: int
    verb: Verb


class FastPathStore(InlinePostgresStore):
    """A store that asks the server's functions every time, however often they refused."""

    def __init__(self, schema: Schema, clock: Callable[[], float] = time.time) -> None:
        super().__init__(schema, clock)
        self.taken = 0
        """How many steps the server took by itself."""
        self.refused = 0

    def _heard(self, which: str, row: Any) -> Any:  # noqa: ANN401 - as the store has it
        answer = super()._heard(which, row)
        self.taken += answer is not None
        self.refused += answer is None
        self._skips.clear()
        return answer

    def faults(self) -> list[str]:
        """Return what failed by an error of the SQL itself: the verbs then hide it."""
        return [verb for verb, reason in self.detour_counts() if reason == "error"]


class Model(MemoryStore):
    """The memory store, with a method that applies commits to the inbox."""

    def take_committed(self, arrivals: Sequence[Arrival], now: float) -> None:
        """Take in what others have submitted inside their own transactions."""
        pools = self._tables.pools
        tasks = [one.task(pools.require(one.pool).spec) for one in arrivals]
        steps.take_committed(self._tables, tasks, now)


class Differential:
    """Carries out verbs on the memory store and on stores of one schema, and compares."""

    def __init__(
        self, schema: Schema, stores: int = 1, clock: Callable[[], float] = time.time
    ) -> None:
        self.schema = schema
        self.memory = Model(audit_limit=None)
        self.stores = [FastPathStore(schema, clock) for _ in range(stores)]
        self.history: list[Turn] = []
        self._failures = _Failures()

    async def do(self, turn: Turn) -> Any:  # noqa: ANN401 - each verb has its own answer
        """Carry out a verb on both sides; raise where the answers differ."""
        self.history.append(turn)
        expected = await answer_of(self.memory, turn.verb)
        answer = await answer_of(self.stores[turn.store % len(self.stores)], turn.verb)
        self.judge(turn, expected, answer)
        return expected

    def judge(self, turn: Turn, expected: Any, answer: Any) -> None:  # noqa: ANN401 - any answers
        """Raise where the two sides answered differently, or the server failed."""
        if self._failures.seen:
            self.diverge(f"{turn.verb.name} failed on the server: {self._failures.seen[0]}")
        if any(store.faults() for store in self.stores):
            self.diverge(f"{turn.verb.name} ended in an error of SQL")
        answer = not_asking_more_often(expected, answer)
        if expected != answer:
            self.diverge(f"answer to {turn.verb.name}: {difference(expected, answer)}")

    def diverge(self, what: str) -> None:
        """Say that the two sides differ."""
        raise Diverged(f"verb {len(self.history)}: {what}", self.history)

    async def compare(self, pools: Iterable[str], now: float) -> None:
        """Compare everything that can be asked of both."""
        memory, server = self.memory.view, self.stores[0].view
        pages = [await view.audit(limit=1_000_000) for view in (memory, server)]
        self._same("audit", pages[0].records, pages[1].records)
        for pool in pools:
            tasks = [(await view.tasks(pool, limit=100_000)).tasks for view in (memory, server)]
            self._same(f"tasks of {pool}", tasks[0], tasks[1])
            views = [await view.pool(pool, now=now) for view in (memory, server)]
            self._same(f"pool {pool}", views[0], views[1])
            lanes = [await view.lanes(pool) for view in (memory, server)]
            self._same(f"lanes of {pool}", lanes[0], lanes[1])
            if views[0] is not None:
                for name in views[0].spec.budgets:
                    budgets = [await view.budget(name) for view in (memory, server)]
                    self._same(f"budget {name}", budgets[0], budgets[1])
        self.recount()

    def recount(self) -> None:
        """Object to tables that do not fit together."""
        wrong = self.schema.wrong()
        if wrong:
            self.diverge(f"the tables do not fit together: {wrong}")

    def _same(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            self.diverge(f"{what}: {difference(expected, found)}")

    async def close(self) -> None:
        """Close the stores."""
        self._failures.close()
        for store in self.stores:
            await store.close()


class _Failures(logging.Handler):
    """Notes what the server did not do for another reason than that it is one for the verbs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []
        logging.getLogger("millpond.postgres").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Note it."""
        self.seen.append(record.getMessage())

    def close(self) -> None:
        """Stop listening."""
        logging.getLogger("millpond.postgres").removeHandler(self)
        super().close()


async def answer_of(store: Store, verb: Verb) -> Any:  # noqa: ANN401 - each verb has its own answer
    """Return what a store answers, or the code of its error."""
    try:
        return await carry_out(store, verb)
    except IllegalTransition:
        raise
    except MillpondError as error:
        return Raised(error.code)


def not_asking_more_often(expected: Any, answer: Any) -> Any:  # noqa: ANN401 - any answer
    """Return an answer with the hint when to ask again as expected, where it is no later than that.

    A store may let a worker ask once more than another does, and never once less (I11): the server
    counts what is ready for all workers, also what only one of them can run.
    """
    if isinstance(expected, SettleAnswer) and isinstance(answer, SettleAnswer):
        lease = not_asking_more_often(expected.lease, answer.lease)
        return msgspec.structs.replace(answer, lease=lease)
    if isinstance(expected, LeaseAnswer) and isinstance(answer, LeaseAnswer):
        at = math.inf if expected.next_at is None else expected.next_at
        if answer.next_at is not None and answer.next_at <= at:
            return msgspec.structs.replace(answer, next_at=expected.next_at)
    return answer


def difference(expected: object, found: object, where: str = "") -> str:
    """Return the first place at which two values differ, and what stands there."""
    if type(expected) is type(found):
        if isinstance(expected, msgspec.Struct):
            for name in expected.__struct_fields__:
                mine, theirs = getattr(expected, name), getattr(found, name)
                if mine != theirs:
                    return difference(mine, theirs, f"{where}.{name}")
        elif isinstance(expected, (tuple, list)) and isinstance(found, (tuple, list)):
            for at, (mine, theirs) in enumerate(zip(expected, found, strict=False)):
                if mine != theirs:
                    return difference(mine, theirs, f"{where}[{at}]")
            return f"{where} has {len(expected)} in memory, {len(found)} on the server"
    return f"{where} is {expected!r} in memory, {found!r} on the server"


class Played(msgspec.Struct, kw_only=True):
    """What one history was like."""

    kind: str
    seed: int
    verbs: int
    steps_taken: int
    steps_refused: int


async def play(
    schema: Schema, kind: str, seed: int, *, acts: int = ACTS, stores: int | None = None
) -> Played:
    """Play the history of a kind and a seed on empty tables; raise Diverged where it differs."""
    streams = Streams(kind, seed)
    drawn = streams.pick("how many stores", (1, 1, 2, 3))
    both = Differential(schema, drawn if stores is None else stores)

    async def do(verb: Verb) -> Any:  # noqa: ANN401 - each verb has its own answer
        return await both.do(Turn(streams["store"].randrange(len(both.stores)), verb))

    player = Player(streams, spec_of(kind, streams), do)
    pools = (POOL, POOL + CALLBACKS, *player.spec.budgets)
    try:
        await player.begin()
        for _ in range(acts):
            await player.act()
        await both.compare(pools, player.now)
        await player.settle_down()
        await both.compare(pools, player.now)
    finally:
        await both.close()
    return Played(
        kind=kind,
        seed=seed,
        verbs=len(both.history),
        steps_taken=sum(store.taken for store in both.stores),
        steps_refused=sum(store.refused for store in both.stores),
    )


async def replay(schema: Schema, history: Sequence[Turn]) -> None:
    """Carry out a history that was kept, on empty tables; raise Diverged where it differs."""
    both = Differential(schema, max((turn.store for turn in history), default=0) + 1)
    try:
        pools: list[str] = []
        for turn in history:
            await both.do(turn)
            if isinstance(turn.verb.asked, Declare):
                pools += [turn.verb.asked.spec.name, turn.verb.asked.spec.name + CALLBACKS]
        await both.compare(dict.fromkeys(pools), max(turn.verb.now for turn in history))
    finally:
        await both.close()


def save(history: Iterable[Turn]) -> bytes:
    """Return a history as JSON, one turn a line."""
    return b"\n".join(map(msgspec.json.encode, history)) + b"\n"


def load(saved: bytes) -> list[Turn]:
    """Return the history that `save` wrote."""
    rough = (msgspec.json.decode(line, type=Turn) for line in saved.splitlines() if line)
    return [Turn(turn.store, as_asked(turn.verb)) for turn in rough]
