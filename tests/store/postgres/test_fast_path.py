"""Steps that the server takes by itself do to the letter what the verbs do."""

import random
from collections import Counter
from typing import Any

import pytest
from verify.servers.schemas import InlinePostgresStore, Schema

from millpond.core import control as orders
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.rate import Rate
from millpond.core.run import NewRun
from millpond.core.settle import Settlement
from millpond.core.spec import BudgetSpec, PoolSpec, fair_round_robin, fifo, lifo, priority
from millpond.core.task import Call, NewTask
from millpond.store.memory import MemoryStore
from millpond.store.postgres.store import PostgresStore
from millpond.store.protocol import Batch, Store
from millpond.testing.simulation.history import Verb, carry_out

pytestmark = pytest.mark.real_loop

POOLS = {
    "fifo": PoolSpec(name="p", order=fifo(), max_concurrent=7),
    "lifo": PoolSpec(name="p", order=lifo(), max_concurrent=7),
    "priority": PoolSpec(name="p", order=priority(), max_concurrent=7),
    "ahead": PoolSpec(name="p", order=fifo(), max_concurrent=5, prefetch=6),
    "in order": PoolSpec(name="p", order=fifo(), max_concurrent=5, prefetch=9),
    "fair": PoolSpec(name="p", order=fair_round_robin(), max_concurrent=6),
    "fair and limited": PoolSpec(
        name="p", order=fair_round_robin(), max_concurrent=6, max_per_key=1
    ),
    "fair by twos": PoolSpec(name="p", order=fair_round_robin(), max_concurrent=6, max_per_key=2),
    "paced": PoolSpec(
        name="p",
        order=priority(),
        max_concurrent=7,
        rates=(Rate(12, per=1.0, burst=20), Rate(24, per=1.0, burst=30, of="weight")),
    ),
    "shared": PoolSpec(name="p", order=fifo(), max_concurrent=7, budgets=("slots", "tokens")),
    "each key paced": PoolSpec(
        name="p", order=fair_round_robin(), max_concurrent=6, rate_per_key=Rate(2, per=3.0)
    ),
    "lanes": PoolSpec(name="p", order=fifo(), max_concurrent=6, lanes=7),
    "lanes in turn": PoolSpec(name="p", order=fair_round_robin(), max_concurrent=6, lanes=9),
    "each key a lane": PoolSpec(name="p", order=fifo(), max_concurrent=6, ordered=True),
    "one of a key": PoolSpec(name="p", order=priority(), max_concurrent=6, max_per_key=1),
    "two of a key": PoolSpec(name="p", order=fifo(), max_concurrent=6, max_per_key=2),
    "keys paced in line": PoolSpec(
        name="p", order=lifo(), max_concurrent=6, rate_per_key=Rate(3, per=2.0)
    ),
    "weighted": PoolSpec(
        name="p",
        order=fair_round_robin(weights={"k1": 3.0, "k2": 0.5, "k3": 7.0}),
        max_concurrent=6,
    ),
    "all at once": PoolSpec(
        name="p",
        order=fair_round_robin(),
        max_concurrent=6,
        max_per_key=2,
        rates=(Rate(30, per=1.0, burst=40, of="weight"), Rate(100, per=1.0)),
        rate_per_key=Rate(2, per=0.3),
        budgets=("tokens",),
    ),
}

ENDS = (Transition.COMPLETE, Transition.RETRY, Transition.FAIL, Transition.RELEASE)
ENDS_OFTEN = (96, 2, 1, 1)
"""How attempts end, and how often in a hundred."""

BUDGETS = (
    BudgetSpec(name="slots", max_concurrent=9),
    BudgetSpec(name="tokens", max_concurrent=11, rates=(Rate(30, burst=40, of="weight"),)),
)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """How many steps the server took, and how many it left to the verbs."""
    counted: Counter[bool] = Counter()
    heard = PostgresStore._heard

    def noted(store: PostgresStore, which: str, row: Any) -> Any:
        answer = heard(store, which, row)
        counted[answer is not None] += not which.startswith("to ")
        store._skips.clear()
        return answer

    monkeypatch.setattr(PostgresStore, "_heard", noted)
    return counted


class Two:
    """The same verbs on two stores, which must give the same answers."""

    def __init__(self, seed: int, spec: PoolSpec, stores: tuple[Store, Store]) -> None:
        self.dice = random.Random(seed)
        self.spec = spec
        self.stores = stores
        self.now = 1000.0
        self.next_id = 1 << 40
        self.running: dict[str, list[Leased]] = {"one": [], "two": []}
        self.ahead: dict[str, list[Leased]] = {"one": [], "two": []}
        self.elsewhere: list[Leased] = []
        """What runs of the pools with which this one shares a budget."""
        self.mixed = False
        """Whether plain tasks, closures and tasks with callbacks share a few keys."""

    async def do(self, name: str, argument: Any) -> Any:
        """Carry out a verb on both."""
        verb = Verb(name, argument, self.now, self.dice.getrandbits(64))
        answers = [await carry_out(store, verb) for store in self.stores]
        assert answers[0] == answers[1], f"{verb} at {self.now}"
        return answers[0]

    async def begin(self) -> None:
        """Declare the pool and let two workers join; one knows less than there is."""
        for budget in BUDGETS if self.spec.budgets else ():
            await self.do("control", orders.DeclareBudget(budget))
            other = PoolSpec(
                name=budget.name, order=fifo(), max_concurrent=9, budgets=(budget.name,)
            )
            await self.do("control", orders.Declare(other))
        await self.do("control", orders.Declare(self.spec))
        await self.do("control", orders.Register("one", 1e6))
        known = ("more", "work")
        await self.do("control", orders.Register("two", 1e6, owner="process", functions=known))

    async def submit(self) -> None:
        """Submit a few tasks, nearly all of them plain."""
        make = self.mixed_tasks if self.mixed else self.tasks
        tasks = make(self.dice.randint(1, 25))
        await self.do("submit", (Batch(tasks=tuple(tasks)),))

    def tasks(self, count: int) -> list[NewTask]:
        """Make up some tasks."""
        return [self.task() for _ in range(count)]

    def task(self) -> NewTask:
        """Make up a task."""
        dice = self.dice
        self.next_id += dice.randint(1, 1 << 20)
        few = (
            9 if self.spec.order != fair_round_robin() else 25 if self.spec.has_flow_control else 60
        )
        key = dice.choice([None, *(f"k{n}" for n in range(few))])
        odd = dice.random() < 0.005
        return NewTask(
            id=self.next_id,
            pool="p",
            call=Call(dice.choice(["more", "other"] if odd else ["work"]), b"x"),
            key=key,
            share=key if dice.random() < 0.98 else "s",
            priority=dice.randint(0, 3),
            delay=2.0 if dice.random() < 0.01 else 0.0,
            attempts=dice.choice([1, 3]),
            idempotency_key=f"i{self.next_id}" if odd else None,
            weight=dice.randint(1, 3) if self.spec.has_flow_control else 1,
        )

    def mixed_tasks(self, count: int) -> list[NewTask]:
        """Make up tasks that the server stores by itself, or some that only the verbs store."""
        plain, dice = self.dice.random() < 0.6, self.dice
        first, self.next_id = self.next_id + 1, self.next_id + count
        return [
            NewTask(
                id=first + n,
                pool="p",
                call=Call("work", b"x"),
                key=dice.choice(["k1", "k2", "k3"]),
                share=f"s{dice.randint(1, 30)}",
                delay=2.0 if dice.random() < 0.1 else 0.0,
                attempts=3,
                on_complete=None if plain or dice.random() < 0.5 else Call("work"),
                owner=None if plain or dice.random() < 0.5 else "process",
            )
            for n in range(count)
        ]

    async def take_from_another(self, worker: str) -> None:
        """Start something of another pool with which this one shares a budget, and end the rest."""
        dice, pool = self.dice, self.dice.choice(self.spec.budgets)
        self.next_id += 1
        task = NewTask(
            id=self.next_id, pool=pool, call=Call("work", b"x"), weight=dice.randint(1, 9)
        )
        await self.do("submit", (Batch(tasks=(task,)),))
        ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in self.elsewhere]
        kept = dice.randint(0, len(ends))
        if ends[kept:]:
            await self.do("settle", (tuple(ends[kept:]), None))
        self.elsewhere = self.elsewhere[:kept]
        ask = LeaseRequest(pool=pool, worker=worker, want=dice.randint(1, 5))
        self.elsewhere += (await self.do("lease", ask)).leased

    async def settle(self, worker: str, *, then: bool) -> None:
        """End some of what a worker runs, mostly well; in the slots it may start its claims."""
        dice, running, ahead = self.dice, self.running[worker], self.ahead[worker]
        in_order = self.spec.prefetch > 6 and dice.random() < 0.9
        if dice.random() < 0.5 and not in_order:
            dice.shuffle(running)
        ends = running[: dice.randint(0, len(running))] if dice.random() < 0.6 else running[:]
        more = 0
        if in_order and ahead:
            # Every slot that comes free is taken again at once.
            ends = running[: len(ahead)]
            more = dice.randint(0, len(ahead) - len(ends)) + 1
        settlements = []
        queue = list(ends)
        for leased in queue:
            running.remove(leased)
            successor = ahead.pop(0) if ahead and (in_order or dice.random() < 0.9) else None
            event = dice.choices(ENDS, ENDS_OFTEN)[0]
            failed = event is not Transition.COMPLETE
            result = dice.choice([None, b"1", b"2"]) if dice.random() < 0.3 else b"0"
            settlements.append(
                Settlement(
                    fence=leased.fence,
                    event=event,
                    delay=dice.choice([0.0, 1.0]) if event is Transition.RETRY else 0.0,
                    spend=event is not Transition.RELEASE,
                    result=None if failed else result,
                    error=b"e" if failed else None,
                    weight=self.used(leased),
                    successor=None if successor is None else successor.fence,
                )
            )
            if successor is not None:
                running.append(successor)
                more -= 1
                if more > 0 if in_order else dice.random() < 0.5:
                    queue.append(successor)
        ask = self.ask(worker) if then else None
        if settlements:
            answer = await self.do("settle", (tuple(settlements), ask))
            if answer.lease is not None:
                self.take_in(worker, answer.lease)

    def used(self, leased: Leased) -> int | None:
        """Make up the weight that an attempt really used; mostly it reports none."""
        if self.spec.has_flow_control and self.dice.random() < 0.04:
            return self.dice.randint(0, 2 * leased.weight)
        return None

    def ask(self, worker: str) -> LeaseRequest:
        """Ask for some tasks."""
        want = self.dice.choice([0, 1, 3, 7, 20]) if self.dice.random() < 0.5 else 7
        room = self.spec.prefetch - len(self.ahead[worker])
        return LeaseRequest(pool="p", worker=worker, want=want, ahead=max(room, 0))

    def take_in(self, worker: str, answer: Any) -> None:
        """Note what a worker has now."""
        started = {one.fence for one in answer.leased}
        self.running[worker] += answer.leased
        kept = [one for one in self.ahead[worker] if one.fence not in started]
        self.ahead[worker] = [*kept, *answer.claimed]

    async def act(self) -> None:
        """Do something."""
        dice = self.dice
        self.now += dice.choice([0.0, 0.001, 0.5])
        if self.spec.budgets and dice.random() < 0.1:
            await self.take_from_another(dice.choice(["one", "two"]))
        worker = dice.choice(["one", "one", "one", "two"])
        match dice.choices(["submit", "lease", "settle", "step", "odd"], [3, 3, 2, 6, 0.2])[0]:
            case "submit":
                await self.submit()
            case "lease":
                self.take_in(worker, await self.do("lease", self.ask(worker)))
            case "settle":
                await self.settle(worker, then=False)
            case "step":
                await self.settle(worker, then=True)
            case _:
                await self.something_odd(worker)

    async def something_odd(self, worker: str) -> None:
        """Do what the server does not do by itself."""
        running = self.running[worker]
        match self.dice.randint(0, 3):
            case 0 if running:
                await self.do("control", orders.Cancel((running[0].fence.task,)))
            case 1:
                await self.do("renew", (worker, 1e6))
            case 2:
                await self.do("recover", 100)
            case _:
                changed = self.dice.randint(3, 9)
                await self.do("control", orders.Resize("p", changed))


async def compare(two: Two) -> None:
    """See that both stores say the same of what happened and of how things stand."""
    memory, server = two.stores
    pages = [await store.view.audit(limit=100_000) for store in (memory, server)]
    assert pages[0].records == pages[1].records
    views = [await store.view.pool("p", now=two.now) for store in (memory, server)]
    assert views[0] == views[1]
    tasks = [(await store.view.tasks("p", limit=10_000)).tasks for store in (memory, server)]
    assert tasks[0] == tasks[1]
    for name in two.spec.budgets:
        assert await memory.view.budget(name) == await server.view.budget(name)


@pytest.mark.parametrize(
    ("kind", "seed"),
    # The last one found a request before an unfolding that got another answer after it.
    [*((kind, seed) for kind in POOLS for seed in range(4)), ("in order", 11)],
)
async def test_the_server_answers_and_records_what_the_verbs_do(
    schema: Schema, steps: Counter[bool], kind: str, seed: int
) -> None:
    """After any history, whether the server or the verbs take the next step."""
    memory = MemoryStore(audit_limit=None)
    server = InlinePostgresStore(schema)
    two = Two(seed, POOLS[kind], (memory, server))
    await two.begin()
    for _ in range(60):
        await two.act()
    await compare(two)
    await server.close()
    assert steps[True] > 0
    assert "error" not in {reason for _, reason in server.detour_counts()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "kind", ["fair and limited", "fair by twos", "each key paced", "one of a key", "all at once"]
)
async def test_tasks_of_the_server_and_of_the_verbs_share_keys(
    schema: Schema, steps: Counter[bool], kind: str, seed: int
) -> None:
    """Closures and tasks with callbacks come where they would if all were stored in one way."""
    memory, server = MemoryStore(audit_limit=None), InlinePostgresStore(schema)
    two = Two(seed, POOLS[kind], (memory, server))
    two.mixed = True
    await two.begin()
    for _ in range(60):
        await two.act()
    await compare(two)
    await server.close()
    assert steps[True] > 0


@pytest.mark.parametrize(("short", "elsewhere", "weight"), [("slots", 5, 1), ("tokens", 0, 10)])
async def test_a_pool_that_takes_the_last_of_a_budget_waits_for_more(
    schema: Schema, steps: Counter[bool], short: str, elsewhere: int, weight: int
) -> None:
    """The verbs do the lease that finds it used up; the server does those before."""
    memory, server = MemoryStore(audit_limit=None), InlinePostgresStore(schema)
    two = Two(1, POOLS["shared"], (memory, server))
    await two.begin()
    for pool, count in (("slots", elsewhere), ("p", 9)):
        for _ in range(count):
            two.next_id += 1
            new = NewTask(id=two.next_id, pool=pool, call=Call("work", b"x"), weight=weight)
            await two.do("submit", (Batch(tasks=(new,)),))
    await two.do("lease", LeaseRequest(pool="slots", worker="two", want=9))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=2))
    assert (2, 0) == (steps[True], steps[False])
    leased = (await two.do("lease", LeaseRequest(pool="p", worker="one", want=2))).leased
    assert 2 == len(leased)
    assert (2, 1) == (steps[True], steps[False])
    views = [await store.view.budget(short) for store in two.stores]
    assert views[0] == views[1]
    assert views[0] is not None
    assert ("p",) == views[0].waiting
    await server.close()


@pytest.mark.parametrize(
    ("limits", "by_the_verbs"),
    # The verbs wait for the rate of a pool; a key that waits for its own holds up no other.
    [({"rates": (Rate(2, per=10.0),)}, 1), ({"rate_per_key": Rate(3, per=10.0)}, 0)],
)
async def test_the_server_leases_until_a_rate_makes_a_task_wait(
    schema: Schema, steps: Counter[bool], limits: dict[str, Any], by_the_verbs: int
) -> None:
    """The answer of the last start that the rate allows says when the next one may start."""
    memory, server = MemoryStore(audit_limit=None), InlinePostgresStore(schema)
    spec = PoolSpec(name="p", order=fair_round_robin(), max_concurrent=9, **limits)
    two = Two(1, spec, (memory, server))
    await two.begin()
    call = Call("work", b"x")
    tasks = [NewTask(id=n, pool="p", call=call, key="k", share="k") for n in range(1, 9)]
    await two.do("submit", (Batch(tasks=tuple(tasks)),))
    for _ in range(3):
        await two.do("lease", LeaseRequest(pool="p", worker="one", want=1))
    assert (3 - by_the_verbs, by_the_verbs) == (steps[True], steps[False])
    two.now += 4.0
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=1))
    await server.close()


async def test_a_relay_in_order_is_recorded_in_two_halves(
    schema: Schema, steps: Counter[bool]
) -> None:
    """Ends, then starts; some tasks of two claims start and end in the same step."""
    memory, server = MemoryStore(audit_limit=None), InlinePostgresStore(schema)
    two = Two(1, POOLS["in order"], (memory, server))
    await two.begin()
    tasks = [NewTask(id=n, pool="p", call=Call("work", b"x")) for n in range(1, 31)]
    await two.do("submit", (Batch(tasks=tuple(tasks[:20])),))
    two.now += 1
    await two.do("submit", (Batch(tasks=tuple(tasks[20:])),))
    two.take_in("one", await two.do("lease", LeaseRequest(pool="p", worker="one", want=5, ahead=4)))
    two.take_in("one", await two.do("lease", LeaseRequest(pool="p", worker="one", want=0, ahead=5)))
    for _ in range(2):
        two.now += 1
        line = [*two.running["one"], *two.ahead["one"]]
        settlements = [
            Settlement(
                fence=leased.fence,
                event=Transition.COMPLETE,
                result=b"%d" % at,
                successor=line[at + 5].fence,
            )
            for at, leased in enumerate(line[:8])
        ]
        two.running["one"], two.ahead["one"] = line[8:13], line[13:]
        ask = LeaseRequest(pool="p", worker="one", want=0, ahead=8)
        two.take_in("one", (await two.do("settle", (tuple(settlements), ask))).lease)
    pages = [await store.view.audit(limit=1000) for store in (memory, server)]
    assert pages[0].records == pages[1].records
    views = [(await store.view.tasks("p", limit=100)).tasks for store in (memory, server)]
    assert views[0] == views[1]
    await server.close()
    assert {True: 4} == steps
    assert 2 == relays_in_order(schema)


def relays_in_order(schema: Schema) -> int:
    """Return how many relays the audit has in two halves: all ends, and all starts."""
    connection = schema.connection()
    table = f'"{schema.address.schema}".millpond_audit'
    query = f"SELECT count(*) FROM {table} WHERE starts = '{{t}}' AND records > 1"  # noqa: S608
    row = connection.driver.execute(query.encode()).fetchone()
    connection.close()
    return 0 if row is None else int(row[0])


def a_days_work(two: Two, first: int, *, run: NewRun | None = None) -> Batch:
    """Return a batch such as production submits: keys, delays, labels, priorities, a run."""
    tasks = [
        NewTask(
            id=first + n,
            pool="p",
            call=Call("work", b"x"),
            key=f"k{n % 7}",
            share=f"k{n % 7}",
            priority=n % 3,
            delay=2.0 if n % 9 == 4 else 0.0,
            attempts=25,
            idempotency_key=f"i{first + n}" if n % 2 else None,
            labels={"a": "b"},
            run=None if run is None else run.id,
        )
        for n in range(30)
    ]
    return Batch(tasks=tuple(tasks), run=run)


async def days_work(two: Two) -> None:
    """Submit in every way, and end attempts in every way, until nothing is left."""
    await two.do("submit", (a_days_work(two, 100),))
    await two.do("submit", (a_days_work(two, 200, run=NewRun(id=7, pool="p")),))
    known = a_days_work(two, 100)
    tasks = [one for one in known.tasks if one.idempotency_key is not None]
    await two.do("submit", (Batch(tasks=tuple(tasks)),))
    ask = LeaseRequest(pool="p", worker="one", want=6)
    answer = await two.do("lease", ask)
    rounds = 0
    while answer.leased or answer.next_at is not None:
        rounds += 1
        two.now += 0.5
        ends = [
            Settlement(
                fence=one.fence,
                event=ENDS[(rounds + at) % 4] if rounds < 30 else Transition.COMPLETE,
                delay=1.0 if (rounds + at) % 4 == 1 and rounds < 30 else 0.0,
                spend=(rounds + at) % 4 != 3 or rounds >= 30,
                result=b"1" if (rounds + at) % 4 == 0 else None,
                begun=False,
            )
            for at, one in enumerate(answer.leased)
        ]
        answer = (
            (await two.do("settle", (tuple(ends), ask))).lease
            if ends
            else await two.do("lease", ask)
        )


@pytest.mark.parametrize("kind", [kind for kind in POOLS if not POOLS[kind].has_flow_control])
async def test_a_days_work_leaves_nothing_to_the_verbs(schema: Schema, kind: str) -> None:
    """Each submit, and each end of an attempt, is one call in each kind of pool."""
    memory, server = MemoryStore(audit_limit=None), InlinePostgresStore(schema)
    two = Two(1, POOLS[kind], (memory, server))
    await two.begin()
    await days_work(two)
    view = await server.view.pool("p", now=two.now)
    assert view is not None
    assert 60 == sum(view.totals.values())
    assert {} == server.detour_counts()
    await server.close()
