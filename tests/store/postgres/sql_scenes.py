"""Scenes and kinds of pools in which a broken guard of the SQL shows."""

import itertools
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import msgspec
from tests.store.postgres import outcome_scenes as outcomes
from tests.store.postgres import test_step_simple_guards as guards
from tests.store.postgres import test_submit_one as singles
from tests.store.postgres.sql_histories import KINDS, Undaunted
from tests.store.postgres.test_fast_path import Two, compare, days_work
from tests.store.postgres.test_step_simple import test_a_callback_is_not_lost as with_callback
from tests.store.postgres.test_step_simple import (
    test_a_task_that_was_tried_before_keeps_its_row as tried_before,
)
from tests.store.postgres.test_step_simple import (
    test_a_worker_gets_only_what_it_knows as only_what_it_knows,
)
from tests.store.postgres.test_step_simple import (
    test_tasks_that_are_not_plain_start_when_they_may as tasks_that_are_not_plain,
)
from verify.servers.schemas import Schema

from millpond.core import control as orders
from millpond.core.bucket import Bucket, charge, fresh
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.rate import Rate
from millpond.core.run import NewRun, OnError
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, bounded, fail_fast, fair_round_robin, fifo
from millpond.core.task import CALLBACKS, Call, Dedupe, NewTask
from millpond.core.ticks import ticks
from millpond.store.memory import MemoryStore
from millpond.store.postgres.caller_transaction.submit import enter_arguments
from millpond.store.postgres.fast_path import answer_of
from millpond.store.postgres.quoting import qualified, quoted
from millpond.store.postgres.server_functions import versioned
from millpond.store.protocol import Batch

# Scenes: what seeded histories do not do.


def tasks(first: int, count: int, **options: Any) -> tuple[Batch, ...]:
    """A batch of plain tasks."""
    new = [
        NewTask(id=first + n, pool="p", call=Call("work", b"x"), **options) for n in range(count)
    ]
    return (Batch(tasks=tuple(new)),)


async def scene(schema: Schema, act: Callable[[Two], Awaitable[None]], kind: str = "fifo") -> None:
    """Let something happen on both stores, with 6 tasks of 2 leases of a worker."""
    memory, server = MemoryStore(audit_limit=None), Undaunted(schema)
    two = Two(1, KINDS[kind], (memory, server))
    try:
        await two.begin()
        await act(two)
        await compare(two)
    finally:
        await server.close()


async def _closed(two: Two) -> None:
    await two.do("control", orders.Close("p"))
    await two.do("submit", tasks(1, 2))


async def _paused(two: Two) -> None:
    await two.do("submit", tasks(1, 4))
    await two.do("control", orders.Pause("p"))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=3))


async def _held_back(two: Two) -> None:
    await two.do("submit", tasks(1, 4))
    (leased,) = (await two.do("lease", LeaseRequest(pool="p", worker="one", want=1))).leased
    held = Settlement(
        fence=leased.fence, event=Transition.RETRY, delay=9.0, hold="pool", hold_for=9.0
    )
    await two.do("settle", ((held,), None))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=3))


async def _stale(two: Two) -> None:
    await two.do("submit", tasks(1, 4))
    leased = (await two.do("lease", LeaseRequest(pool="p", worker="one", want=3))).leased
    stale = [
        Settlement(
            fence=msgspec.structs.replace(one.fence, token=one.fence.token ^ 1),
            event=Transition.COMPLETE,
        )
        for one in leased
    ]
    await two.do("settle", (tuple(stale), None))


async def _swapped(two: Two) -> None:
    await two.do("submit", tasks(1, 6))
    one = (await two.do("lease", LeaseRequest(pool="p", worker="one", want=2))).leased
    other = (await two.do("lease", LeaseRequest(pool="p", worker="one", want=2))).leased
    swapped = [
        Settlement(
            fence=msgspec.structs.replace(mine.fence, token=theirs.fence.token),
            event=Transition.COMPLETE,
        )
        for mine, theirs in ((one[0], other[0]), (other[0], one[0]))
    ]
    await two.do("settle", (tuple(swapped), None))


async def _swapped_successor(two: Two) -> None:
    await two.do("submit", tasks(1, 9))
    answer = await two.do("lease", LeaseRequest(pool="p", worker="one", want=2, ahead=2))
    more = await two.do("lease", LeaseRequest(pool="p", worker="one", want=0, ahead=2))
    token = more.claimed[0].fence.token
    swapped = Settlement(
        fence=answer.leased[0].fence,
        event=Transition.COMPLETE,
        successor=msgspec.structs.replace(answer.claimed[0].fence, token=token),
    )
    await two.do("settle", ((swapped,), None))


async def _ahead_of_all(two: Two) -> None:
    await two.do("submit", tasks(1, 30))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=5, ahead=4))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=0, ahead=9))


async def _one_by_one(two: Two) -> None:
    """Four tasks of a key, of which the limits let fewer start; each is asked for by itself."""
    await two.do("submit", tasks(1, 4, key="k", share="k"))
    for _ in range(4):
        await two.do("lease", LeaseRequest(pool="p", worker="one", want=1))


async def _unknown_function(two: Two) -> None:
    other = NewTask(id=1, pool="p", call=Call("other", b"x"))
    await two.do("submit", (Batch(tasks=(other,)),))
    await two.do("lease", LeaseRequest(pool="p", worker="two", want=1))


def keyed(first: int, *keys: str, **options: Any) -> tuple[Batch, ...]:
    """A batch with a task for each of these idempotency keys."""
    function = options.pop("function", "work")
    new = [
        NewTask(id=first + n, pool="p", call=Call(function, b"x"), idempotency_key=key, **options)
        for n, key in enumerate(keys)
    ]
    return (Batch(tasks=tuple(new)),)


async def _keys(two: Two) -> None:
    """A key answers with its task: waiting, running, and as long as its mode says afterwards."""
    ask = LeaseRequest(pool="p", worker="one", want=1)
    await two.do("submit", keyed(1, "a"))
    for number, dedupe in enumerate(Dedupe, 2):
        if dedupe is not Dedupe.RUN:
            await two.do("submit", keyed(number * 10, "a", dedupe=dedupe))
    await two.do("submit", keyed(100, "a", fingerprint=7))
    await two.do("submit", keyed(101, "a", function="other"))
    await two.do("submit", keyed(110, "b", "b", "c"))
    for end in (Transition.COMPLETE, Transition.FAIL):
        leased = (await two.do("lease", ask)).leased
        await two.do("submit", keyed(200 + leased[0].fence.task, "a", "b", "c", "d"))
        error = None if end is Transition.COMPLETE else b"e"
        ends = tuple(Settlement(fence=one.fence, event=end, error=error) for one in leased)
        await two.do("settle", (ends, None))
        for number, dedupe in enumerate(Dedupe):
            if dedupe is not Dedupe.RUN:
                first = 1000 * (leased[0].fence.task + 1) + 100 * number
                await two.do("submit", keyed(first, "a", "b", dedupe=dedupe))
    leased = (await two.do("lease", msgspec.structs.replace(ask, want=7))).leased
    ends = tuple(Settlement(fence=one.fence, event=Transition.COMPLETE) for one in leased)
    await two.do("settle", (ends, None))
    await two.do("submit", keyed(9000, "a", "b", "c", "d", dedupe=Dedupe.INFLIGHT))
    await two.do("submit", keyed(9100, "a", "b", "c", "d"))


async def _runs(two: Two) -> None:
    """A run counts its tasks, ends with its last, and takes no more than it may."""
    ask = LeaseRequest(pool="p", worker="one", want=2)

    async def submitted(first: int, run: int, count: int, opened: NewRun | None = None) -> None:
        new = [
            NewTask(id=first + n, pool="p", call=Call("work", b"x"), run=run) for n in range(count)
        ]
        await two.do("submit", (Batch(tasks=tuple(new), run=opened),))

    async def worked() -> None:
        leased = (await two.do("lease", ask)).leased
        ends = tuple(Settlement(fence=one.fence, event=Transition.COMPLETE) for one in leased)
        await two.do("settle", (ends, None))

    await submitted(1, 901, 3, NewRun(id=901, pool="p", name="nightly", max_tasks=4))
    await submitted(11, 902, 1, NewRun(id=902, pool="p", name="nightly"))
    await submitted(21, 901, 2)
    await submitted(31, 901, 1)
    await worked()
    await worked()
    await submitted(41, 901, 1)
    await submitted(51, 903, 2, NewRun(id=903, pool="p", holder="another"))
    await worked()
    await submitted(61, 904, 4, NewRun(id=904, pool="p", on_error=OnError.FAIL))
    failing, other = (await two.do("lease", ask)).leased
    end = Settlement(fence=failing.fence, event=Transition.FAIL, error=b"e")
    await two.do("settle", ((end,), None))
    await submitted(71, 904, 1)
    await two.do("settle", ((Settlement(fence=other.fence, event=Transition.COMPLETE),), None))
    await submitted(81, 905, 1, NewRun(id=905, pool="p"))
    await worked()
    await submitted(91, 905, 1)
    for run in (901, 902, 903, 904, 905):
        memory, server = [await store.view.run(run) for store in two.stores]
        assert memory == server
    await _run_with_a_callback(two, submitted, worked)


async def _run_with_a_callback(
    two: Two, submitted: Callable[..., Awaitable[None]], worked: Callable[[], Awaitable[None]]
) -> None:
    """A run with a callback remembers its tasks, and its end submits the call with their ends."""
    called = NewRun(id=906, pool="p", holder="us", on_complete=Call("notify"))
    await submitted(101, 906, 1, called)
    await submitted(111, 906, 1)
    await two.do("control", orders.Seal(906, "us"))
    await worked()
    memory, server = [
        [task.new for task in (await store.view.tasks("p" + CALLBACKS)).tasks]
        for store in two.stores
    ]
    assert memory == server
    assert 1 == len(memory)


async def _times(two: Two) -> None:
    """Tasks wait until they are due, and expire."""
    ask = LeaseRequest(pool="p", worker="one", want=7)
    for first, options in enumerate(
        ({"delay": 2.0}, {"run_at": two.now + 1.0}, {"expires_in": 0.5})
    ):
        await two.do("submit", keyed(100 * first + 1, f"t{first}", **options))
        await two.do("submit", keyed(100 * first + 11, f"u{first}", f"v{first}", **options))
    for passed in (0.0, 1.0, 1.5):
        two.now += passed
        await two.do("recover", 100)
        await two.do("lease", ask)


def shared(first: int, *keys: str) -> tuple[Batch, ...]:
    """A batch with a task for each of these keys, which are their shares, too."""
    new = [
        NewTask(id=first + n, pool="p", call=Call("work", b"x"), key=key, share=key)
        for n, key in enumerate(keys)
    ]
    return (Batch(tasks=tuple(new)),)


async def _joins(two: Two) -> None:
    """Shares take turns in the order in which they came; keys at their limit do not."""
    ask = LeaseRequest(pool="p", worker="one", want=1)
    await two.do("submit", shared(1, "z", "b", "z", "a", "b"))
    held = []
    for number in range(30, 42):
        held += (await two.do("lease", ask)).leased
        await two.do("submit", shared(100 * number, "z", f"n{number}", "a"))
        if len(held) > 3:
            end = Settlement(fence=held.pop(0).fence, event=Transition.COMPLETE)
            held += (await two.do("settle", ((end,), ask))).lease.leased
    await two.do("submit", shared(9000, *(one.key for one in held)))
    await two.do("lease", msgspec.structs.replace(ask, want=7))


async def _one_at_a_time(two: Two) -> None:
    """A key at its limit waits, also where nothing else of it does; and a paused one does."""
    ask = LeaseRequest(pool="p", worker="one", want=1)
    limit = two.spec.max_per_key or 1
    for number in range(1, limit + 2):
        await two.do("submit", shared(number, "z"))
        await two.do("lease", ask)
    await two.do("control", orders.Pause("p", "q"))
    await two.do("submit", shared(50, "q"))
    await two.do("lease", ask)


async def _rests(two: Two) -> None:
    """A share that has nothing to start keeps its place until it is passed."""
    ask = LeaseRequest(pool="p", worker="one", want=1)
    await two.do("submit", shared(1, "a", "b", "c"))
    await two.do("lease", ask)
    await two.do("submit", shared(11, "a"))
    await two.do("submit", shared(21, "b", "c"))
    await two.do("lease", msgspec.structs.replace(ask, want=3))


async def _round(two: Two, ask: LeaseRequest) -> None:
    """Start tasks, end them and start the next in one call, and end those."""
    held = (await two.do("lease", ask)).leased
    for then in (ask, None):
        ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in held]
        answer = await two.do("settle", (ends, then))
        held = () if then is None else answer.lease.leased


async def _keys_of_a_share(two: Two) -> None:
    """A share whose tasks have several keys is served once in a round, its first task first."""
    ask = LeaseRequest(pool="p", worker="one", want=3)
    numbers = itertools.count(1)
    for share, keys in {"a": "a", "b": "xby", "c": "c", "d": "zd"}.items():
        for key in keys * 4:
            await two.do("submit", tasks(next(numbers), 1, key=key, share=share))
        # The shares that there are by now are fewer than the slots, as many, or more.
        await _round(two, ask)
    for _ in range(8):
        await _round(two, ask)


async def _reweighed(two: Two) -> None:
    """Shares take their turns where weights come and go, also at turns between two rounds."""
    ask = LeaseRequest(pool="p", worker="one", want=2)
    number = 0
    for weights in ({}, {"a": 3.0, "b": 0.5}, {}, {"c": 5.0}, {"a": 2.0}, {}):
        spec = msgspec.structs.replace(two.spec, order=fair_round_robin(weights=weights))
        await two.do("control", orders.Declare(spec))
        for _ in range(5):
            number += 10
            # More than are started, so that shares stay in the ring.
            await two.do("submit", shared(number, "a", "b", "c", "a", "b", f"n{len(weights)}", "a"))
            await _round(two, ask)
    # And where verbs move seats meanwhile.
    for want in (9, 1, 2, 9, 9):
        number += 10
        await two.do("submit", shared(number, "b"))
        held = (await two.do("lease", msgspec.structs.replace(ask, want=want))).leased
        await two.do("control", orders.Pause("p", "c"))
        await two.do("control", orders.Resume("p", "c"))
        ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in held]
        await two.do("settle", (ends, None))


async def _lows(schema: Schema) -> None:
    """A bucket remembers as many low points as the core's does, for what is refunded later."""
    rates, now = (Rate(100, per=10.0, burst=90, of="weight"),), 1000.0
    buckets = fresh(rates)
    connection = schema.connection()
    name = quoted(schema.address.schema)
    connection.driver.execute(f"SET search_path = {name}".encode())
    for number in range(40):
        now += 0.01 * (number % 7 + 1)
        given = [msgspec.json.encode(one).decode() for one in (rates, buckets)]
        said = versioned("SELECT buckets::text FROM millpond_charge(%s, %s, 1, 2, %s)")
        row = connection.driver.execute(said.encode(), [*given, ticks(now)]).fetchone()
        charge(rates, buckets, 2, now)
        assert row is not None
        assert buckets == msgspec.json.decode(row[0], type=list[Bucket])
    connection.driver.execute(b"RESET search_path")
    connection.close()


async def _inbox_first(schema: Schema) -> None:
    """Tasks of the inbox are queued before tasks submitted after them."""
    server = Undaunted(schema)
    try:
        await server.control(orders.Declare(KINDS["fifo"]))
        await server.control(orders.Register("one", 60.0))
        put(schema, tasks(1, 1))
        await server.submit(tasks(2, 1))
        (leased,) = (await server.lease(LeaseRequest(pool="p", worker="one", want=1))).leased
        assert 1 == leased.fence.task
    finally:
        await server.close()


def put(schema: Schema, batches: tuple[Batch, ...]) -> Any:
    """Put tasks into the inbox by the server's own function; return why not, or what they are."""
    connection = schema.connection()
    said = qualified("SELECT millpond_put(%s::jsonb)", schema.address.schema)
    arguments = enter_arguments(batches[0], "")
    (answer,) = connection.driver.execute(said.encode(), [arguments]).fetchone() or (None,)
    connection.close()
    if isinstance(answer, str | bytes):
        answer = msgspec.json.decode(answer)
    if "refused" in answer:
        return answer["refused"]
    return [(task, duplicate) for task, duplicate, _ in answer["tasks"]]


def one_batch(pool: str, first: int, *keys: str | None, **options: Any) -> tuple[Batch, ...]:
    """A batch of one pool with a task for each of these keys."""
    new = [
        NewTask(id=first + n, pool=pool, call=Call("work", b"x"), key=key, **options)
        for n, key in enumerate(keys)
    ]
    return (Batch(tasks=tuple(new)),)


INBOX_POOLS = (
    PoolSpec(name="q", order=fifo(), backpressure=bounded(4, "fail_submitter")),
    PoolSpec(name="k", order=fifo(), backpressure=bounded(9, "fail_submitter", 2)),
    PoolSpec(name="f", order=fifo(), max_concurrent=3, backpressure=fail_fast()),
    PoolSpec(name="c", order=fifo()),
)
INBOX_BATCHES = (
    *(one_batch("q", 10 + n, None) for n in range(3)),
    one_batch("q", 20, None, None, None, None, None),
    one_batch("q", 30, None, None),
    one_batch("q", 40, None),
    one_batch("q", 50, None),
    one_batch("k", 60, "a", "a", "a"),
    one_batch("k", 70, "a", "a"),
    one_batch("k", 80, "a"),
    one_batch("k", 90, "b"),
    *(one_batch("f", 100 + n, None) for n in range(4)),
    one_batch("c", 110, None),
)


async def _put(schema: Schema) -> None:
    """The inbox refuses what the verbs refuse, and knows the keys that they know."""
    memory, server = MemoryStore(audit_limit=None), Undaunted(schema)
    try:
        for store in (memory, server):
            for spec in INBOX_POOLS:
                await store.control(orders.Declare(spec), now=1000.0)
            await store.control(orders.Close("c"), now=1000.0)
            known = one_batch("q", 1, None, idempotency_key="i", fingerprint=5)
            await store.submit(known, now=1000.0)
        again = one_batch("q", 2, None, idempotency_key="i", fingerprint=5)
        other = one_batch("q", 3, None, idempotency_key="i", fingerprint=6)
        for batches in (again, other, *INBOX_BATCHES):
            assert put(schema, batches) == await submitted(memory, batches)
        await server.view.pool("q")  # a view moves the tasks of the inbox to the queue
    finally:
        await server.close()


async def submitted(store: MemoryStore, batches: tuple[Batch, ...]) -> Any:
    """Submit to the memory store; return why not, or what they are."""
    (answer,) = (await store.submit(batches, now=1000.0)).batches
    if answer.refusal is not None:
        return answer.refusal.reason.value
    return [(one.task, one.duplicate) for one in answer.admissions]


async def _renewed(schema: Schema) -> None:
    """A renewal by the server keeps a worker for as long as one by the verbs."""
    memory, server = MemoryStore(audit_limit=None), Undaunted(schema)
    two = Two(1, KINDS["fifo"], (memory, server))
    try:
        await two.begin()
        await two.do("control", orders.Register("three", 5.0))
        two.now += 1
        await memory.renew("three", 5.0, now=two.now)
        connection = schema.connection()
        said = qualified(
            "SELECT * FROM millpond_renew(%s, NULL, 'three', 5.0)", schema.address.schema
        )
        connection.driver.execute(said.encode(), [two.now])
        connection.close()
        two.now += 4.5
        await two.do("recover", 100)
        assert await memory.view.workers() == await server.view.workers()
    finally:
        await server.close()


async def _many_of_a_key(two: Two) -> None:
    await two.do("submit", tasks(1, 8, key="k", share="k"))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=6))


async def _key_in_two_shares(two: Two) -> None:
    await two.do("submit", tasks(1, 2, key="k", share="a"))
    await two.do("submit", tasks(11, 2, key="k", share="b"))
    await two.do("lease", LeaseRequest(pool="p", worker="one", want=4))


async def _freed_key_in_two_shares(two: Two) -> None:
    ask = LeaseRequest(pool="p", worker="one", want=1)
    await two.do("submit", tasks(1, 1, key="k", share="x"))
    (held,) = (await two.do("lease", ask)).leased
    await two.do("submit", tasks(11, 1, key="k", share="z"))
    await two.do("submit", tasks(21, 1, key="k", share="a"))
    # The server ends it, and the verbs lease what stands in the ring then.
    await two.do("settle", ((Settlement(fence=held.fence, event=Transition.COMPLETE),), None))
    await two.do("lease", ask)


async def _server_takes_all(schema: Schema) -> None:
    """Of scenes in which the verbs have nothing to do, the server leaves them nothing."""
    for act, kind in (
        (outcomes.outcomes, "fifo"),
        (outcomes.outcomes, "fair by twos"),
        (outcomes.in_turn, "fair and limited"),
        (outcomes.back_in_order, "fair by twos"),
        (outcomes.due_in_order, "fair"),
        (outcomes.alone, "priority"),
        (outcomes.expiring, "fifo"),
        (days_work, "lanes"),
    ):
        memory, server = MemoryStore(audit_limit=None), Undaunted(schema)
        two = Two(1, KINDS[kind], (memory, server))
        try:
            await two.begin()
            await act(two)
            await compare(two)
            assert not server.detour_counts(), server.detour_counts()
        finally:
            await server.close()
        schema.empty()


async def _submitted_one_by_one(schema: Schema) -> None:
    """A submit of one task follows an operator who has closed its pool, or paused a key in it."""

    async def groups(two: Two) -> None:
        await two.do("control", orders.Pause("p", "q"))

    async def closes(two: Two) -> None:
        await two.do("control", orders.Close("p"))

    async def act(two: Two, meanwhile: Callable[[Two], Awaitable[None]]) -> None:
        await two.do("submit", tasks(1, 1))
        await meanwhile(two)
        await two.do("submit", tasks(2, 1, key="q"))
        await two.do("lease", LeaseRequest(pool="p", worker="one", want=3))

    for meanwhile in (groups, closes):
        await scene(schema, partial(act, meanwhile=meanwhile))
        assert not schema.wrong()
        schema.empty()


class Attentive(Undaunted):
    """A store that notes whether its steps say that a worker may sleep for want of room."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        self.said: list[bool] = []

    def _heard(self, which: str, row: Any) -> Any:
        answer = super()._heard(which, row)
        if answer is not None and not which.startswith("to "):
            self.said.append(answer_of(answer).was_full)
        return answer


async def _was_full(schema: Schema) -> None:
    """A step says so where there was no room before it, or where more than room matters."""
    ask = LeaseRequest(pool="p", worker="one", want=1)
    for kind in ("fifo", "fair", "paced", "ahead"):
        server = Attentive(schema)
        try:
            await server.control(
                orders.Declare(msgspec.structs.replace(KINDS[kind], max_concurrent=2))
            )
            await server.control(orders.Register("one", 1e6))
            await server.submit(tasks(1, 5))
            for want in (1, 2):
                leased = (await server.lease(msgspec.structs.replace(ask, want=want))).leased
                await server.settle(
                    [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in leased]
                )
            assert server.said == [kind != "fifo"] * 3 + [True]
        finally:
            await server.close()
        schema.empty()


def of_kind(
    act: Callable[[Two], Awaitable[None]], kind: str
) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return a scene in a pool of a kind."""
    return lambda schema: scene(schema, act, kind)


def alone(
    test: Callable[..., Coroutine[Any, Any, None]], *given: Any
) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return a test as a scene."""
    return lambda schema: test(schema, *given)


SCENES: dict[str, Callable[[Schema], Coroutine[Any, Any, None]]] = {
    "closed": of_kind(_closed, "fifo"),
    "paused": of_kind(_paused, "fifo"),
    "held back": of_kind(_held_back, "fifo"),
    "stale": of_kind(_stale, "fifo"),
    "swapped": of_kind(_swapped, "fifo"),
    "swapped successor": of_kind(_swapped_successor, "ahead"),
    "ahead of all": of_kind(_ahead_of_all, "ahead"),
    "rate one by one": of_kind(_one_by_one, "slow"),
    "key one by one": of_kind(_one_by_one, "slow keys"),
    "limit one by one": of_kind(_one_by_one, "fair and limited"),
    "unknown function": of_kind(_unknown_function, "fifo"),
    "keys": of_kind(_keys, "fifo"),
    "runs": of_kind(_runs, "fifo"),
    "times": of_kind(_times, "fifo"),
    "many of a key": of_kind(_many_of_a_key, "keys paced in line"),
    "key in two shares": of_kind(_key_in_two_shares, "fair and limited"),
    "freed key in two shares": of_kind(_freed_key_in_two_shares, "fair and limited"),
    "joins": of_kind(_joins, "fair by twos"),
    "one at a time": of_kind(_one_at_a_time, "fair and limited"),
    "rests": of_kind(_rests, "fair by twos"),
    "keys of a share": of_kind(_keys_of_a_share, "fair"),
    "reweighed": of_kind(_reweighed, "fair"),
    "outcomes": of_kind(outcomes.outcomes, "fifo"),
    "alone": of_kind(outcomes.alone, "fifo"),
    "above": of_kind(outcomes.above, "fifo"),
    "last attempts": of_kind(outcomes.last_attempts, "fifo"),
    "cancelled": of_kind(outcomes.cancelled, "fifo"),
    "stale rows": of_kind(outcomes.stale_rows, "fifo"),
    "expires": of_kind(outcomes.expires, "fifo"),
    "expires in turn": of_kind(outcomes.expires, "fair"),
    "run stops": of_kind(outcomes.run_stops, "fifo"),
    "slots go on": of_kind(outcomes.slots_go_on, "ahead"),
    "in turn": of_kind(outcomes.in_turn, "fair and limited"),
    "back in order": of_kind(outcomes.back_in_order, "fair by twos"),
    "due in order": of_kind(outcomes.due_in_order, "fair"),
    "closure of a freed key": of_kind(outcomes.closure_of_a_freed_key, "fair and limited"),
    "lane waits": of_kind(outcomes.lane_waits_for_its_head, "each key a lane"),
    "simple and due": alone(tasks_that_are_not_plain, {"delay": 4.0}),
    "simple and unknown": alone(only_what_it_knows, "other"),
    "simple and called back": alone(with_callback),
    "simple and tried": alone(tried_before),
    "simple and held back": alone(guards.test_a_pool_is_held_back),
    "simple and counted": alone(guards.test_who_holds_nothing_is_not_counted),
    "simple and heard": alone(guards.test_others_hear_of_room_only_where_there_was_none),
    "one behind others": alone(
        singles.test_a_task_stands_behind_those_that_run_are_parked_or_delayed
    ),
    "one and a run": alone(singles.test_a_key_of_a_run_is_another_than_that_of_a_pool),
    "one and entered late": alone(
        singles.test_a_callers_long_transaction_is_queued_before_a_later_submit
    ),
    "one and stopped": alone(guards.test_a_submit_of_one_task_knows_a_stopped_key),
    "simple and parked": alone(guards.test_tasks_are_parked_for_another_worker, ("other",)),
    "simple and stopped": alone(guards.test_a_key_is_stopped_where_keys_do_not_matter),
    "simple and starved": alone(guards.test_who_gets_nothing_comes_next),
    "simple and claimed": alone(guards.test_claims_from_before_its_prefetch_ended_are_given_back),
    "simple and of another": alone(guards.test_closures_of_another_process_are_not_asked_for_again),
    "simple and late": alone(guards.test_a_worker_that_asks_late_is_alive_again),
    "simple and idle": alone(guards.test_who_wants_nothing_is_in_nobodys_way),
    "simple and owned": alone(guards.test_a_closure_comes_to_its_owner_in_its_place),
    "simple and keyed": alone(guards.test_the_key_of_a_task_ends_with_it, Dedupe.INFLIGHT),
    "simple and of a run": alone(guards.test_a_run_ends_with_its_last_task),
    "simple and with keys": alone(guards.test_tasks_keep_their_keys),
    "simple and bounded": alone(guards.test_what_starts_makes_room_in_a_bounded_queue),
    "simple and entered": alone(guards.test_a_caller_has_committed_tasks_meanwhile),
    "simple and entered late": alone(guards.test_a_callers_long_transaction_ends_after_a_later_one),
    "simple and restored": alone(guards.test_the_inbox_was_restored_on_a_younger_server),
    "server takes all": _server_takes_all,
    "low points": _lows,
    "inbox first": _inbox_first,
    "put": _put,
    "one by one": _submitted_one_by_one,
    "was full": _was_full,
    "renewed": _renewed,
}
