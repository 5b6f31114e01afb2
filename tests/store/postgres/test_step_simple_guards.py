"""What happens in a simple pool between two calls of a worker, and what the next call does then.

The settings of the pool stay as they are. The pool, the worker, the tasks and the inbox change.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace
from tests.store.postgres.test_step_simple import ANY, SIMPLE, SPEC, Both, Watched, batch, knowing
from verify.servers.schemas import Schema, Schemas

from millpond.core import control as orders
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.run import NewRun
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, bounded, fifo
from millpond.core.task import Call, Dedupe, NewTask
from millpond.store.postgres.connect import connect
from millpond.store.postgres.quoting import quoted
from millpond.store.protocol import Batch

pytestmark = pytest.mark.real_loop

ASK = LeaseRequest(pool="p", worker="w", want=2)
SUBMIT = "SELECT submit('p', 'work', '{}')"
"""A caller's submit, in a transaction of its own."""


@pytest.fixture
def damaged(postgres_schemas: Schemas) -> Iterator[Schema]:
    """Give empty tables that the test may leave damaged."""
    taken = postgres_schemas.take()
    yield taken
    postgres_schemas.give_back(taken)


def session(schema: Schema) -> closing[Any]:
    """Return a session of a caller, which finds tables and functions without their schema."""
    connection = connect(schema.address)
    connection.execute(f"SET search_path = {quoted(schema.address.schema)}".encode())
    return closing(connection)


def on_the_server(schema: Schema, statement: str) -> None:
    """Carry out a statement in a session of its own."""
    with session(schema) as connection:
        connection.execute(statement)


async def going_on(both: Both, held: list[Leased]) -> None:
    """Complete attempts and lease the next tasks until nothing is left; compare both stores."""
    for _ in range(12):
        held = await both.complete(held) if held else await both.lease()
        both.now += 0.5
    await both.same_history()
    await both.server.close()


async def test_a_pool_is_held_back(schema: Schema) -> None:
    both = await knowing(schema)
    held = await both.lease()
    await both.do("control", orders.Hold("p", 2.0))
    assert not await both.complete(held)
    await going_on(both, [])


@pytest.mark.parametrize("known", [("other",), ()], ids=["other", "closures only"])
async def test_tasks_are_parked_for_another_worker(schema: Schema, known: tuple[str, ...]) -> None:
    both = await knowing(schema)
    first, second = await both.lease()
    end = Settlement(fence=first.fence, event=Transition.RELEASE, spend=False, parked=True)
    await both.do("settle", [end], then=None)
    await both.do("control", orders.Register("v", 1e6, functions=known))
    assert not await both.lease(worker="v")
    await going_on(both, [second])


async def test_a_key_is_stopped_where_keys_do_not_matter(schema: Schema) -> None:
    both = await knowing(schema, tasks=1)
    await both.do("submit", batch(100, 3, key="k"))
    await both.do("submit", batch(200, 3, key="l"))
    await both.do("control", orders.Pause(pool="p", unit="k"))
    await going_on(both, await both.lease())


async def test_who_gets_nothing_comes_next(schema: Schema) -> None:
    """One worker holds all slots, and another one has asked in vain."""
    both = await knowing(schema)
    held = await both.lease(want=4)
    await both.do("control", orders.Register("v", 1e6))
    assert not await both.lease(worker="v")
    left = await both.complete(held[:2])
    theirs = await both.lease(worker="v")
    await both.complete(theirs, worker="v")
    await going_on(both, [*held[2:], *left])


async def test_claims_from_before_its_prefetch_ended_are_given_back(schema: Schema) -> None:
    """Another worker finds nothing else: it is asked for them, and comes next."""
    both = await knowing(schema, replace(SPEC, prefetch=3), tasks=4)
    answer = await both.do("lease", replace(ASK, want=1, ahead=3))
    assert len(answer.claimed) == 3
    await both.do("control", orders.Declare(SPEC))
    await both.do("control", orders.Register("v", 1e6))
    for want in (0, 4):
        assert not await both.lease(worker="v", want=want)
    next_answer = await both.do("lease", replace(ASK, want=0))
    assert next_answer.give_back
    back = [
        Settlement(fence=one.fence, event=Transition.RELEASE, spend=False, begun=False)
        for one in answer.claimed
    ]
    await both.do("settle", back, then=None)
    await both.lease(want=4)
    await both.lease(worker="v", want=4)
    await both.same_history()
    await both.server.close()


async def test_a_worker_that_asks_late_is_alive_again(schema: Schema) -> None:
    both = await knowing(schema)
    await both.do("control", orders.Register("late", 5.0))
    both.now += 5.0
    late = await both.lease(worker="late")
    await both.do("recover", limit=100)
    assert await both.complete(late, worker="late")
    await going_on(both, [])


async def test_who_wants_nothing_is_in_nobodys_way(schema: Schema) -> None:
    """All slots are taken, and a worker that has none asks only when it should ask again."""
    both = await knowing(schema)
    held = await both.lease(want=4)
    await both.do("control", orders.Register("v", 1e6))
    both.server.calls.clear()
    await both.lease(worker="v", want=0)
    assert both.server.calls == {SIMPLE: 1}
    await going_on(both, held)


async def test_a_closure_comes_to_its_owner_in_its_place(schema: Schema) -> None:
    both = await knowing(schema, tasks=1)
    await both.do("control", orders.Register("mine", 1e6, owner="me"))
    await both.do("submit", batch(100, owner="me"))
    await both.do("submit", batch(200, 2))
    for _ in range(3):
        held = await both.lease(worker="mine")
        if held:
            await both.complete(held, worker="mine")
    await going_on(both, [])


async def test_closures_of_another_process_are_not_asked_for_again(schema: Schema) -> None:
    """They are ready, and no lease of this worker would ever get one: it would ask in a loop."""
    both = await knowing(schema, tasks=1)
    await both.do("control", orders.Register("theirs", 1e6, owner="another"))
    await both.do("submit", batch(100, 3, owner="another"))
    answer = await both.do("lease", ASK)
    assert len(answer.leased) == 1
    assert answer.next_at is None
    assert both.server.calls == {SIMPLE: 1}
    await going_on(both, list(answer.leased))


async def test_a_worker_that_left_gets_nothing(schema: Schema) -> None:
    both = await knowing(schema)
    held = await both.lease()
    await both.do("control", orders.Deregister("w"))
    answer = await both.do("lease", ASK)
    assert answer.fenced
    await both.do("control", orders.Register("w", 1e6))
    await going_on(both, await both.complete(held))


async def test_who_holds_nothing_is_not_counted(schema: Schema) -> None:
    both = await knowing(schema, tasks=2)
    await both.complete(await both.lease())
    with session(schema) as connection:
        counts = connection.execute(
            "SELECT holding FROM millpond_pool WHERE name = 'p' ORDER BY turn DESC LIMIT 1"
        ).fetchone()
    assert counts == ("{}",)
    assert both.server.calls == {SIMPLE: 2}
    await both.server.close()


async def test_others_hear_of_room_only_where_there_was_none(schema: Schema) -> None:
    both = await knowing(schema)
    held = await both.lease(want=4)
    heard = []
    for one in held[:2]:
        end = Settlement(fence=one.fence, event=Transition.COMPLETE)
        answer = await both.do("settle", [end], then=replace(ASK, want=0))
        assert [wake.pool for wake in answer.wakes] == ["p"]
        hint = both.server._hint([answer])
        heard.append(hint is not None and bool(hint.wakes))
    assert heard == [True, False]
    assert both.server.calls == {SIMPLE: 3}
    await going_on(both, held[2:])


async def test_tasks_keep_their_keys(schema: Schema) -> None:
    """Also beside others that have none."""
    both = await knowing(schema, tasks=1)
    await both.do("submit", batch(100, 2, key="k"))
    await both.do("submit", batch(200, 1))
    held = await both.lease(want=4)
    assert [one.key for one in held] == [None, "k", "k", None]
    await going_on(both, held)


async def test_a_submit_of_one_task_knows_a_stopped_key(schema: Schema) -> None:
    """Also where its process knows the pool as a simple one."""
    both = await knowing(schema, tasks=1)
    await both.do("control", orders.Pause(pool="p", unit="k"))
    await both.do("submit", batch(100, key="k"))
    await both.do("submit", batch(200, key="l"))
    held = await both.lease(want=4)
    assert [one.fence.task for one in held] == [1, 200]
    await going_on(both, held)


async def test_a_worker_may_hold_tasks_ahead_in_another_pool(schema: Schema) -> None:
    both = await knowing(schema)
    ahead = PoolSpec(name="q", order=fifo(), max_concurrent=1, prefetch=3)
    await both.do("control", orders.Declare(ahead))
    new = [NewTask(id=900 + n, pool="q", call=Call("work", b"{}")) for n in range(4)]
    await both.do("submit", [Batch(tasks=tuple(new))])
    ask = LeaseRequest(pool="q", worker="w", want=1, ahead=3)
    assert (await both.do("lease", ask)).claimed
    await going_on(both, await both.lease())


@pytest.mark.parametrize("dedupe", [Dedupe.FOREVER, Dedupe.SUCCESS, Dedupe.INFLIGHT])
async def test_the_key_of_a_task_ends_with_it(schema: Schema, dedupe: Dedupe) -> None:
    both = await knowing(schema, tasks=1)
    for first in (100, 200, 300):
        options: dict[str, Any] = {"idempotency_key": "k", "fingerprint": 7, "dedupe": dedupe}
        await both.do("submit", batch(first, **options))
        await both.complete(await both.lease())
    assert set(both.server.calls) == {SIMPLE}
    assert not both.server.detour_counts()
    await going_on(both, [])


async def test_a_run_ends_with_its_last_task(schema: Schema) -> None:
    both = await knowing(schema, tasks=1)
    tasks = [NewTask(id=100 + n, pool="p", call=Call("work", b"{}"), run=7) for n in range(3)]
    await both.do("submit", [Batch(tasks=tuple(tasks), run=NewRun(id=7, pool="p"))])
    first = await both.lease()
    second = await both.complete(first)
    ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in second]
    answer = await both.do("settle", ends, then=ASK)
    assert answer.finished_runs == (7,)
    assert both.server.calls == {SIMPLE: 3}
    views = [await store.view.run(7) for store in (both.server, both.memory)]
    assert views[0] == views[1]
    await both.server.close()


async def test_what_starts_makes_room_in_a_bounded_queue(schema: Schema) -> None:
    bound = bounded(3, "fail_submitter")
    spec = PoolSpec(name="p", order=fifo(), max_concurrent=4, backpressure=bound)
    both = await knowing(schema, spec, tasks=3)
    for first in (100, 200, 300):
        await both.do("submit", batch(first, 2))
        await both.complete(await both.lease())
        await both.do("submit", batch(first + 50, 2))
    assert both.server.calls[ANY] == 0
    await going_on(both, [])


async def test_a_caller_has_committed_tasks_meanwhile(schema: Schema) -> None:
    both = await knowing(schema, tasks=0)
    on_the_server(schema, SUBMIT)
    leased = (await both.server.lease(ASK, now=1000.0, entropy=1)).leased
    assert len(leased) == 1
    await both.server.close()


async def test_a_callers_long_transaction_ends_after_a_later_one(schema: Schema) -> None:
    """The store remembers which transactions were open when it last looked through the inbox."""
    both = await knowing(schema, tasks=0)
    with session(schema) as slow:
        slow.execute("BEGIN")
        slow.execute(SUBMIT)
        on_the_server(schema, SUBMIT)
        assert len((await both.server.lease(ASK, now=1000.0, entropy=1)).leased) == 1
        await both.server.lease(ASK, now=1000.0, entropy=2)
        slow.execute("COMMIT")
    assert len((await both.server.lease(ASK, now=1000.0, entropy=3)).leased) == 1
    await both.server.close()


async def test_the_inbox_was_restored_on_a_younger_server(schema: Schema) -> None:
    """Its transactions have lower numbers than those that were seen."""
    both = await knowing(schema, tasks=0)
    on_the_server(schema, "UPDATE millpond_meta SET seen_upto = '1000000000000'")
    on_the_server(schema, SUBMIT)
    assert len((await both.server.lease(ASK, now=1000.0, entropy=1)).leased) == 1
    await both.server.close()


@pytest.mark.parametrize("missing", [[1], [2], [1, 2, 3]], ids=str)
@pytest.mark.parametrize("in_full", [False, True], ids=["simple", "in full"])
async def test_a_task_without_a_body_is_left_to_the_verbs(
    damaged: Schema, missing: list[int], in_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses, and does not fail: no row stands for what is not there."""
    monkeypatch.setattr(Watched, "in_full_every", 1 if in_full else 1 << 40)
    server = Watched(damaged)
    await server.control(orders.Declare(SPEC), now=1000.0)
    await server.control(orders.Register("w", 1e6), now=1000.0)
    await server.submit(batch(1, 3), now=1000.0, entropy=1)
    await server.lease(LeaseRequest(pool="p", worker="w", want=0), now=1000.0, entropy=2)
    with session(damaged) as connection:
        connection.execute("DELETE FROM millpond_task WHERE id = ANY(%s)", [missing])
    for entropy in (3, 4, 5):
        ask = LeaseRequest(pool="p", worker="w", want=1)
        answer = await server.lease(ask, now=1000.0, entropy=entropy)
        assert not {one.fence.task for one in answer.leased} & {*missing}
    assert {reason for _, reason in server.detour_counts()} == {"not simple"}
    await server.close()


async def test_another_pool_has_the_number_in_a_replaced_database(schema: Schema) -> None:
    """The settings have the name of their pool in them, and so has their digest."""
    server, other = Watched(schema), Watched(schema)
    for store, pools in ((server, "p"), (other, "qp")):
        schema.empty()
        for name in pools:
            await store.control(orders.Declare(replace(SPEC, name=name)), now=1000.0)
        await store.control(orders.Register("w", 1e6), now=1000.0)
        for number, name in enumerate(pools, 1):
            new = NewTask(id=number, pool=name, call=Call("work", b"{}"))
            await store.submit([Batch(tasks=(new,))], now=1000.0, entropy=number)
        await server.submit(batch(9), now=1000.0, entropy=9)
        leased = (await server.lease(ASK, now=1000.0, entropy=10)).leased
        assert [one.fence.task for one in leased] == [len(pools), 9]
    assert server.calls[SIMPLE] == 1
    await server.close()
    await other.close()


async def test_a_pool_that_is_no_longer_simple_is_not_tried_again(schema: Schema) -> None:
    """Until it is simple again."""
    both = await knowing(schema)
    await both.do("control", orders.Declare(replace(SPEC, prefetch=1)))
    for _ in range(12):
        await both.lease(want=0)
    assert both.server.calls == {SIMPLE: 1, ANY: 12}
    await both.do("control", orders.Declare(SPEC))
    both.server.calls.clear()
    for _ in range(3):
        await both.lease(want=0)
    assert both.server.calls == {SIMPLE: 2, ANY: 1}
    await both.server.close()
