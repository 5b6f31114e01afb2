"""Two pools of one store are written side by side, and what they share is locked in one order."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from tests.waiting import eventually
from verify.servers.schemas import InlinePostgresStore, Schema

from millpond.core.control import Declare, DeclareBudget, Register
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Status, Transition
from millpond.core.run import NewRun
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import BudgetSpec, PoolSpec, fair_round_robin, fifo
from millpond.core.task import Call, NewTask
from millpond.store.postgres.connect import connect
from millpond.store.postgres.literals import LEASES_LOOKED_AT
from millpond.store.postgres.lock import POOLS
from millpond.store.postgres.quoting import qualified
from millpond.store.protocol import Batch

pytestmark = pytest.mark.real_loop

Act = Callable[[InlinePostgresStore], Awaitable[Any]]


class Side(threading.Thread):
    """A process: it does something with a store of its own."""

    def __init__(self, schema: Schema, act: Act) -> None:
        super().__init__(daemon=True)
        self.store = InlinePostgresStore(schema)
        self.answer: Any = None
        self.failed: BaseException | None = None
        self._act = act
        self.start()

    def run(self) -> None:
        """Do it."""
        try:
            self.answer = asyncio.run(self._done())
        except BaseException as error:  # noqa: BLE001 - done() raises it
            self.failed = error

    async def _done(self) -> Any:
        try:
            return await self._act(self.store)
        finally:
            await self.store.close()

    def done(self) -> Any:
        """Return the answer."""
        self.join(60.0)
        assert not self.is_alive(), "it waits for ever"
        if self.failed is not None:
            raise self.failed
        return self.answer


@contextmanager
def session(schema: Schema, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """Give a session with a transaction in which something was done; it is rolled back."""
    with connect(schema.address) as connection:
        connection.execute("BEGIN")
        for statement in statements:
            connection.execute(qualified(statement, schema.address.schema).encode())
        yield connection
        connection.execute("ROLLBACK")


def found(schema: Schema, statement: str) -> Any:
    """Return what a statement finds."""
    with connect(schema.address) as connection:
        row = connection.execute(qualified(statement, schema.address.schema).encode()).fetchone()
    return None if row is None else row[0] if len(row) == 1 else row


async def one_waits(schema: Schema, sessions: int = 1) -> None:
    """Wait until sessions of the database wait for a lock."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND datname = current_database() AND query LIKE '%millpond\\_%'"
    )
    await eventually(lambda: found(schema, waiting) >= sessions)


def new(number: int, pool: str, **more: Any) -> NewTask:
    """Return a task."""
    return NewTask(id=(1 << 41) + number, pool=pool, call=Call("f", b""), **more)


def submit(number: int, pool: str, **more: Any) -> Act:
    """Submit a task."""
    return lambda store: store.submit([Batch(tasks=(new(number, pool, **more),))])


def lease(pool: str, want: int = 1) -> Act:
    """Lease tasks."""
    return lambda store: store.lease(LeaseRequest(pool=pool, worker=f"of {pool}", want=want))


def settle(pool: str, tasks: Sequence[Leased], want: int = 0) -> Act:
    """Complete tasks, and lease the next."""
    ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in tasks]
    then = LeaseRequest(pool=pool, worker=f"of {pool}", want=want) if want else None
    return lambda store: store.settle(ends, then=then)


async def begin(schema: Schema, *pools: PoolSpec, budgets: Sequence[BudgetSpec] = ()) -> None:
    """Declare pools, each with a worker of its own."""
    store = InlinePostgresStore(schema)
    for budget in budgets:
        await store.control(DeclareBudget(budget))
    for pool in pools:
        await store.control(Declare(pool))
        await store.control(Register(f"of {pool.name}", 600.0, owner=pool.name))
    await store.close()


def lock_of(schema: Schema, pool: str) -> str:
    """Return the statement that locks a pool."""
    number = found(schema, f"SELECT max(id) FROM millpond_pool WHERE name = '{pool}'")  # noqa: S608
    return f"LOCK TABLE {POOLS[number % len(POOLS)]} IN SHARE UPDATE EXCLUSIVE MODE"


TWO = (
    PoolSpec(name="a", order=fifo(), max_concurrent=9),
    PoolSpec(name="b", order=fifo(), max_concurrent=9),
)


@pytest.mark.rows("CX-07")
async def test_a_pool_is_written_while_a_call_of_another_pool_is_under_way(schema: Schema) -> None:
    """Submit, lease and settle wait for a call of the same pool, and for no other."""
    await begin(schema, *TWO)
    held = [lock_of(schema, "a"), "LOCK TABLE millpond_lock IN ROW EXCLUSIVE MODE"]
    with session(schema, *held) as other:
        Side(schema, submit(1, "b")).done()
        leased = Side(schema, lease("b")).done().leased
        assert 1 == len(leased)
        settled = Side(schema, settle("b", leased, 1)).done()
        assert (Settled.APPLIED,) == settled.settled
        waiting = Side(schema, submit(2, "a"))
        await one_waits(schema)
        assert waiting.is_alive()
        other.execute("ROLLBACK")
        waiting.done()
    assert 1 == len(Side(schema, lease("a")).done().leased)


@pytest.mark.rows("CX-07")
async def test_the_verbs_keep_every_call_out_and_wait_for_each(schema: Schema) -> None:
    """A verb may touch any pool: while it is under way no call writes, and the other way round."""
    await begin(schema, *TWO)
    with session(schema, "LOCK TABLE millpond_lock IN SHARE ROW EXCLUSIVE MODE") as verb:
        waiting = Side(schema, submit(1, "b"))
        await one_waits(schema)
        assert waiting.is_alive()
        verb.execute("ROLLBACK")
        waiting.done()
    with session(schema, "LOCK TABLE millpond_lock IN ROW EXCLUSIVE MODE") as call:
        declared = Side(schema, lambda store: store.control(Declare(PoolSpec(name="c"))))
        await one_waits(schema)
        assert declared.is_alive()
        call.execute("ROLLBACK")
        declared.done()


async def test_a_settle_without_a_lease_waits_for_the_pool_of_its_tasks(schema: Schema) -> None:
    """The call does not name the pool; its tasks do."""
    await begin(schema, *TWO)
    Side(schema, submit(1, "b")).done()
    leased = Side(schema, lease("b")).done().leased
    with session(schema, lock_of(schema, "b")) as other:
        ending = Side(schema, settle("b", leased))
        await one_waits(schema)
        assert ending.is_alive()
        other.execute("ROLLBACK")
        assert (Settled.APPLIED,) == ending.done().settled


async def test_a_settle_touches_no_task_of_a_pool_that_it_has_not_locked(schema: Schema) -> None:
    """Tasks of one pool settled with a lease of another: the function leaves it to the verbs."""
    await begin(schema, *TWO)
    Side(schema, submit(1, "b")).done()
    leased = Side(schema, lease("b")).done().leased
    with session(schema, "SELECT FROM millpond_lease FOR UPDATE") as other:
        ending = Side(schema, settle("a", leased, 1))
        await one_waits(schema)
        # Its function has refused: it waits as a verb does, with the store to itself.
        assert found(
            schema,
            "SELECT count(*) = 1 FROM pg_locks WHERE mode = 'ShareRowExclusiveLock' AND granted"
            " AND relation = 'millpond_lock'::regclass",
        )
        other.execute("ROLLBACK")
        assert (Settled.APPLIED,) == ending.done().settled


async def test_a_call_that_waits_to_count_finds_the_counts_where_they_are_then(
    schema: Schema,
) -> None:
    """While it waits the row gets another turn; the records have no gap."""
    await begin(schema, *TWO)
    moved = "UPDATE millpond_meta SET version = version + 64, turn = (version + 64) >> 5"
    with session(schema, moved) as other:
        waiting = Side(schema, submit(1, "a"))
        await one_waits(schema)
        assert waiting.is_alive()
        version = other.execute(
            qualified("SELECT max(version) FROM millpond_meta", schema.address.schema).encode()
        ).fetchone()
        other.execute("COMMIT")
        waiting.done()
    assert version is not None
    assert version[0] + 1 == found(schema, "SELECT max(version) FROM millpond_meta")
    assert 1 == found(schema, "SELECT count(*) FROM millpond_meta")


async def test_moments_of_the_audit_do_not_go_back(schema: Schema) -> None:
    """A call that began first and ends last has records with a moment that is not before."""
    await begin(schema, *TWO)
    later = "UPDATE millpond_meta SET version = version + 1, latest = latest + 3000"
    with session(schema, later) as other:
        waiting = Side(schema, submit(1, "a"))
        await one_waits(schema)
        other.execute("COMMIT")
        waiting.done()
    noted, latest = found(
        schema,
        "SELECT max(a.at), max(m.latest) FROM millpond_audit AS a, millpond_meta AS m",
    )
    assert noted == latest


async def test_a_lease_that_another_call_changes_keeps_its_number(schema: Schema) -> None:
    """The call that gives old leases new numbers does not wait; searches begin there."""
    await begin(schema, *TWO)
    for number, pool in enumerate(("a", "b", "b", "b")):
        Side(schema, submit(number, pool)).done()
    held = Side(schema, lease("a")).done().leased
    with connect(schema.address) as connection:
        grown = f"UPDATE millpond_meta SET leases = leases + {LEASES_LOOKED_AT}"  # noqa: S608
        connection.execute(qualified(grown, schema.address.schema).encode())
    look = "SELECT m.leases - m.first_lease, min(l.n) >= m.first_lease FROM millpond_lease AS l, "
    look += "millpond_meta AS m GROUP BY m.leases, m.first_lease"
    with session(schema, "SELECT FROM millpond_lease FOR UPDATE"):
        Side(schema, lease("b")).done()
        window, all_found = found(schema, look)
        assert window >= LEASES_LOOKED_AT
        assert all_found
    Side(schema, lease("b")).done()
    window, all_found = found(schema, look)
    assert window < LEASES_LOOKED_AT
    assert all_found
    assert (Settled.APPLIED,) == Side(schema, settle("a", held)).done().settled


async def test_a_lease_that_was_overtaken_by_a_thousand_is_found(schema: Schema) -> None:
    """A lease has its number from the beginning of the call; if that is old, it gets another."""
    await begin(schema, *TWO)
    Side(schema, submit(1, "a")).done()
    grown = (
        "UPDATE millpond_meta SET version = version + 1, leases = leases + 9000,"
        " first_lease = leases + 8500"
    )
    with session(schema, grown) as other:
        leasing = Side(schema, lease("a"))
        await one_waits(schema)
        other.execute("COMMIT")
        assert 1 == len(leasing.done().leased)
    assert found(
        schema, "SELECT min(l.n) >= min(m.first_lease) FROM millpond_lease AS l, millpond_meta AS m"
    )


BUDGETS = (BudgetSpec(name="x", max_concurrent=500), BudgetSpec(name="y", max_concurrent=500))
CROSSED = (
    PoolSpec(name="a", order=fifo(), max_concurrent=50, budgets=("x", "y")),
    PoolSpec(name="b", order=fifo(), max_concurrent=50, budgets=("y", "x")),
)
PLAIN = (
    PoolSpec(name="e", order=fifo(), max_concurrent=50),
    PoolSpec(name="f", order=fifo(), max_concurrent=50),
)
RUNS = (701, 702)


async def open_runs(schema: Schema) -> None:
    """Open runs that stay open."""
    store = InlinePostgresStore(schema)
    for number, run in enumerate(RUNS):
        opened = NewRun(id=run, pool="a", holder="us")
        await store.submit([Batch(tasks=(new(900 + number, "a", run=run),), run=opened)])
    await store.close()


async def test_budgets_are_locked_in_the_order_of_their_names(schema: Schema) -> None:
    """A call that waits for the first holds no other, in whatever order the pool names them."""
    await begin(schema, *CROSSED, budgets=BUDGETS)
    for number, pool in enumerate("ab"):
        Side(schema, submit(number, pool)).done()
    for pool in "ab":
        with session(schema, "SELECT FROM millpond_budget WHERE name = 'x' FOR UPDATE") as other:
            leasing = Side(schema, lease(pool))
            await one_waits(schema)
            free = "SELECT FROM millpond_budget WHERE name = 'y' FOR UPDATE NOWAIT"
            other.execute(qualified(free, schema.address.schema).encode())
            other.execute("ROLLBACK")
            assert 1 == len(leasing.done().leased)


async def test_runs_are_locked_in_the_order_of_their_ids(schema: Schema) -> None:
    """A call that waits for the first holds no other: a submit, and an end of attempts."""
    await begin(schema, *CROSSED, budgets=BUDGETS)
    await open_runs(schema)
    tasks = tuple([new(number, "b", run=run) for number, run in enumerate(reversed(RUNS))])
    low = f"SELECT FROM millpond_run WHERE id = {min(RUNS)} FOR UPDATE"
    free = f"SELECT FROM millpond_run WHERE id = {max(RUNS)} FOR UPDATE NOWAIT"
    leased: Sequence[Leased] = ()

    def submitted(store: InlinePostgresStore) -> Awaitable[Any]:
        return store.submit([Batch(tasks=tasks)])

    def ended(store: InlinePostgresStore) -> Awaitable[Any]:
        return settle("b", leased)(store)

    for act in (submitted, ended):
        with session(schema, low) as other:
            waiting = Side(schema, act)
            await one_waits(schema)
            other.execute(qualified(free, schema.address.schema).encode())
            other.execute("ROLLBACK")
            waiting.done()
        leased = leased or Side(schema, lease("b", 5)).done().leased
    assert 2 == len(leased)


ROUNDS = 60


class Hammer:
    """Submits to a pool, leases and settles, round after round.

    `at_once`: it submits all of its tasks before the others begin.
    """

    def __init__(
        self,
        number: int,
        pool: str,
        keys: int = 0,
        runs: Sequence[int] = (),
        at_once: threading.Barrier | None = None,
    ) -> None:
        self._at_once = at_once
        self._dice = random.Random(number)
        self._next = 1_000_000 * (number + 1)
        self._pool, self._keys, self._runs = pool, keys, runs
        self._worker = f"{pool} {number}"
        self.detours: Counter[str] = Counter()

    async def __call__(self, store: InlinePostgresStore) -> Counter[str]:
        """Go on until nothing of its own is held; return why calls left the fast path."""
        await store.control(Register(self._worker, 600.0, owner=self._worker))
        held: list[Leased] = []
        if self._at_once is not None:
            for _ in range(ROUNDS):
                await self._submit(store)
            await asyncio.to_thread(self._at_once.wait)
        for _ in range(ROUNDS):
            if self._at_once is None:
                await self._submit(store)
            held = await self._step(store, held, self._dice.randrange(1, 5))
        while held:
            held = await self._step(store, held, 0)
        for (_, reason), count in store.detour_counts().items():
            self.detours[reason] += count
        return self.detours

    async def _submit(self, store: InlinePostgresStore) -> None:
        tasks = []
        for _ in range(self._dice.randrange(1, 4)):
            self._next += 1
            key = f"k{self._dice.randrange(self._keys)}" if self._keys else None
            run = self._dice.choice(self._runs) if self._runs else None
            tasks.append(new(self._next, self._pool, key=key, share=key, run=run))
        await store.submit([Batch(tasks=tuple(tasks))])

    async def _step(
        self, store: InlinePostgresStore, held: list[Leased], want: int
    ) -> list[Leased]:
        ask = LeaseRequest(pool=self._pool, worker=self._worker, want=want)
        if not held:
            return list((await store.lease(ask)).leased)
        self._dice.shuffle(held)
        count = self._dice.randrange(1, len(held) + 1)
        ends = [self._end(one) for one in held[:count]]
        answer = await store.settle(ends, then=ask)
        assert {Settled.APPLIED} == set(answer.settled)
        assert answer.lease is not None
        return held[count:] + list(answer.lease.leased)

    def _end(self, one: Leased) -> Settlement:
        if one.fence.attempt < one.max_attempts and self._dice.random() < 0.1:
            return Settlement(fence=one.fence, event=Transition.RETRY, error=b"e", delay=0.0)
        return Settlement(fence=one.fence, event=Transition.COMPLETE, result=b"r")


def deadlocks(schema: Schema) -> int:
    """Return how many deadlocks the server has broken."""
    return int(found(schema, "SELECT sum(deadlocks)::bigint FROM pg_stat_database"))


async def test_pools_that_share_budgets_never_wait_for_each_other_in_a_circle(
    schema: Schema,
) -> None:
    """Both wait for the first budget when it comes free: neither has what the other wants next."""
    await begin(schema, *CROSSED, budgets=BUDGETS)
    for number in range(8):
        Side(schema, submit(number, "ab"[number % 2])).done()
    before = deadlocks(schema)
    acts = {pool: lease(pool) for pool in "ab"}
    for _ in range(4):
        with session(schema, "SELECT FROM millpond_budget WHERE name = 'x' FOR UPDATE") as other:
            sides = {}
            for waiting, pool in enumerate("ab", 1):
                sides[pool] = Side(schema, acts[pool])
                await one_waits(schema, waiting)
            other.execute("ROLLBACK")
            for pool, side in sides.items():
                answer = side.done()
                taken = getattr(answer, "lease", answer).leased
                acts[pool] = settle(pool, taken, 1)
    assert before == deadlocks(schema)


async def test_pools_that_share_budgets_and_runs_are_hammered_from_all_sides(
    schema: Schema,
) -> None:
    """Many rounds at once: no call is broken off, or left to the verbs."""
    # Submits to pools with budgets are left to the verbs, so they come first.
    await begin(schema, *CROSSED, *PLAIN, budgets=BUDGETS)
    await open_runs(schema)
    before = deadlocks(schema)
    start = threading.Barrier(4)
    hammers = [Hammer(number, pool, runs=RUNS, at_once=start) for number, pool in enumerate("abef")]
    for side in [Side(schema, one) for one in hammers]:
        side.done()
    assert before == deadlocks(schema)
    assert {"flow control"} == set().union(*(one.detours for one in hammers))


SHARED = BudgetSpec(name="both", max_concurrent=5)
CROWD = (
    PoolSpec(name="a", order=fifo(), max_concurrent=4, budgets=("both",)),
    PoolSpec(name="b", order=fifo(), max_concurrent=4, budgets=("both",)),
    PoolSpec(name="c", order=fair_round_robin(), max_concurrent=6, max_per_key=2),
    PoolSpec(name="d", order=fifo(), max_concurrent=3),
)
LIMITS = {"a": 4, "b": 4, "c": 6, "d": 3}


async def test_several_processes_in_several_pools_keep_every_limit_and_count(
    schema: Schema,
) -> None:
    """At no place of the audit more runs than a limit allows, and the recount finds all exact."""
    await begin(schema, *CROWD, budgets=(SHARED,))
    await open_runs(schema)
    sides = [
        Side(schema, Hammer(number, pool, keys=4 if pool == "c" else 0, runs=RUNS))
        for number, pool in enumerate("aabbccdd")
    ]
    for side in sides:
        side.done()
    assert [] == schema.wrong()
    store = InlinePostgresStore(schema)
    page = await store.view.audit(limit=1_000_000)
    await store.close()
    within_limits(page.records)


def within_limits(records: Sequence[Any]) -> None:
    """Object to a moment that goes back, and to a place at which too much runs."""
    running: dict[int, tuple[str, str | None]] = {}
    pools: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    latest = 0.0
    for one in records:
        assert one.at >= latest
        latest = one.at
        if one.task is None or one.after is None:
            continue
        if one.task in running and one.after is not Status.RUNNING:
            pool, key = running.pop(one.task)
            pools[pool] -= 1
            keys[key or ""] -= 1
        elif one.task not in running and one.after is Status.RUNNING:
            running[one.task] = one.pool, one.key
            pools[one.pool] += 1
            keys[one.key or ""] += 1
            assert pools[one.pool] <= LIMITS[one.pool]
            assert one.key is None or keys[one.key] <= 2
            assert pools["a"] + pools["b"] <= SHARED.max_concurrent
