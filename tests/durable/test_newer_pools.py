"""A pool that a newer version declared: named, left alone, and no other pool stops for it."""

import json
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from verify.servers.schemas import InlinePostgresStore, Schema, Schemas
from verify.servers.sqlite_files import InlineStore

from millpond.core.control import Declare, DeclareBudget, Deregister, Progress, Prune, Register
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.rate import Rate
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import Backpressure, BudgetSpec, OnFull, Order, OrderKind, PoolSpec, fifo
from millpond.core.task import Call, Fence, NewTask
from millpond.errors import NewerPool
from millpond.store.postgres.quoting import qualified
from millpond.store.protocol import Batch, LeaseAnswer
from millpond.store.sql.consistency import check_rows
from millpond.store.sql.store import SqlStore
from millpond.store.sqlite.dialect import SQLITE

pytestmark = [pytest.mark.real_loop, pytest.mark.rows("TR-26")]

Store = SqlStore[Any, Any]


def opened(place: Path | Schema) -> Store:
    """Open a store, as one more process does."""
    return InlinePostgresStore(place) if isinstance(place, Schema) else InlineStore(place)


def refield(place: Path | Schema, table: str, name: str, change: Callable[[str], str]) -> str:
    """Change what is stored as the settings of a pool or budget; return what it was."""
    full = f'"{place.address.schema}".{table}' if isinstance(place, Schema) else table
    mark = "%s" if isinstance(place, Schema) else "?"
    read = f"SELECT spec FROM {full} WHERE name = {mark}"  # noqa: S608 - our own names
    write = f"UPDATE {full} SET spec = {mark} WHERE name = {mark}"  # noqa: S608 - our own names
    if isinstance(place, Schema):
        lent = place.connection()
        row = lent.driver.execute(read.encode(), [name]).fetchone()
        assert row is not None
        lent.driver.execute(write.encode(), [change(row[0]), name])
        lent.close()
        return str(row[0])
    with sqlite3.connect(place) as connection:
        (was,) = connection.execute(read, [name]).fetchone()
        connection.execute(write, [change(was), name])
    connection.close()
    return str(was)


def rewrite(place: Path | Schema, change: Callable[[str], str]) -> str:
    """Change what is stored as the settings of pool `new`; return what it was."""
    return refield(place, "millpond_pool", "new", change)


def found_wrong(place: Path | Schema) -> list[str]:
    """Return what `millpond doctor` says of the tables."""
    if isinstance(place, Schema):
        return place.wrong()
    connection = sqlite3.connect(place)
    try:
        return check_rows(connection, SQLITE)
    finally:
        connection.close()


def another_order(text: str) -> str:
    """An order that no version has yet."""
    spec = json.loads(text)
    spec["order"]["kind"] = "shortest_first"
    return json.dumps(spec)


def another_option(text: str) -> str:
    """An option that no version has yet."""
    return json.dumps({**json.loads(text), "colour": "red"})


def another_rate(text: str) -> str:
    """A rate that counts what no version counts."""
    spec = json.loads(text)
    spec["rates"] = [{"n": 1, "per": 1.0, "burst": None, "of": "bytes"}]
    return json.dumps(spec)


def task(identifier: int, pool: str) -> Batch:
    """A task, alone in its batch."""
    return Batch(tasks=(NewTask(id=identifier, pool=pool, call=Call("work")),))


@pytest.mark.parametrize("change", [another_order, another_option, another_rate])
async def test_a_pool_of_a_newer_version_is_left_alone_and_the_others_go_on(
    place: Path | Schema, change: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """The log names pool and option once; a submit to the pool raises an error that does, too."""
    store = opened(place)
    for name in ("new", "old"):
        await store.control(Declare(PoolSpec(name=name, order=fifo(), max_concurrent=3)))
    await store.submit((task(1, "new"),))
    await store.submit((task(2, "old"),))
    await store.close()
    was = rewrite(place, change)

    older = opened(place)
    await older.control(Register("w", 60.0))
    with caplog.at_level(logging.ERROR, "millpond.store"):
        await older.control(Declare(PoolSpec(name="new", order=fifo(), max_concurrent=9)))
        for _ in range(2):
            answer = await older.lease(LeaseRequest(pool="new", worker="w", want=2))
            assert LeaseAnswer() == answer
        (leased,) = (await older.lease(LeaseRequest(pool="old", worker="w", want=2))).leased
    assert 2 == leased.fence.task
    (said,) = [one.getMessage() for one in caplog.records]
    assert "'new'" in said
    assert "newer version" in said
    with pytest.raises(NewerPool, match="'new'"):
        await older.submit((task(3, "new"),))
    with pytest.raises(NewerPool, match="newer version"):
        await older.view.why(1, now=0.0)
    await older.recover(limit=10)
    assert any("'new'" in one for one in found_wrong(place))
    await older.close()

    rewrite(place, lambda _: was)
    newer = opened(place)
    await newer.control(Register("v", 60.0))
    (leased,) = (await newer.lease(LeaseRequest(pool="new", worker="v", want=2))).leased
    assert 1 == leased.fence.task
    await newer.close()


async def lease(store: Store, pool: str, worker: str, now: float, want: int = 9) -> list[Fence]:
    """Lease tasks; return their fences."""
    answer = await store.lease(LeaseRequest(pool=pool, worker=worker, want=want), now=now)
    return [one.fence for one in (*answer.leased, *answer.claimed)]


async def test_a_dead_worker_of_a_newer_pool_does_not_stop_the_recovery_of_others(
    place: Path | Schema,
) -> None:
    """Its tasks there wait for a leader that understands the pool; all else goes on at once."""
    store = opened(place)
    for name in ("new", "old"):
        spec = PoolSpec(name=name, order=fifo(), max_concurrent=9, prefetch=2)
        await store.control(Declare(spec), now=0.0)
    for worker in ("first", "second"):
        await store.control(Register(worker, 10.0), now=0.0)
    await store.submit((task(1, "new"), task(2, "old"), task(3, "old")), now=0.0)
    to_new = NewTask(id=4, pool="new", call=Call("work"), delay=1e6, expires_in=5.0)
    to_old = NewTask(id=5, pool="old", call=Call("work"), delay=1e6, expires_in=6.0)
    await store.submit((Batch(tasks=(to_new,)), Batch(tasks=(to_old,))), now=0.0)
    assert len(await lease(store, "new", "first", 0.0)) == 1
    assert len(await lease(store, "old", "first", 0.0, want=1)) == 1
    assert len(await lease(store, "old", "second", 0.0, want=1)) == 1
    await store.close()
    was = rewrite(place, another_option)

    older = opened(place)
    moved = await older.recover(limit=10, now=20.0)
    assert moved.moved == 3
    assert not moved.more
    assert moved.next_at is None
    assert ("queued", "queued") == await older.view.status((2, 3))
    assert ("running", "queued", "failed") == await older.view.status((1, 4, 5))
    again = await older.recover(limit=10, now=21.0)
    assert (again.moved, again.more, again.next_at) == (0, False, None)
    await older.control(Register("third", 10.0), now=21.0)
    assert {2, 3} == {fence.task for fence in await lease(older, "old", "third", 21.0)}
    await older.close()

    rewrite(place, lambda _: was)
    newer = opened(place)
    assert (await newer.recover(limit=10, now=22.0)).moved == 2
    assert ("queued", "failed") == await newer.view.status((1, 4))
    assert frozenset({"third"}) == await newer.view.workers()
    await newer.close()
    assert not found_wrong(place)


async def test_an_older_worker_that_leaves_a_newer_pool_settles_everything_else(
    place: Path | Schema,
) -> None:
    """What it held of that pool is not settled but stale, and found as that of a dead worker."""
    store = opened(place)
    for name in ("new", "old"):
        spec = PoolSpec(name=name, order=fifo(), max_concurrent=1, prefetch=2)
        await store.control(Declare(spec), now=0.0)
    await store.control(Register("w", 60.0), now=0.0)
    await store.submit((task(1, "new"), task(2, "new"), task(3, "old"), task(4, "old")), now=0.0)
    ask = LeaseRequest(pool="new", worker="w", want=1, ahead=1)
    answer = await store.lease(ask, now=0.0)
    fence, claim = answer.leased[0].fence, answer.claimed[0].fence
    (other,) = await lease(store, "old", "w", 0.0, want=1)
    was = rewrite(place, another_option)
    await store.close()

    older = opened(place)
    ended = [
        Settlement(fence=fence, event=Transition.COMPLETE, successor=claim),
        Settlement(fence=other, event=Transition.COMPLETE),
    ]
    answer2 = await older.settle(ended, then=LeaseRequest(pool="old", worker="w", want=1), now=1.0)
    assert (Settled.STALE, Settled.APPLIED) == answer2.settled
    assert answer2.lease is not None
    assert 4 == answer2.lease.leased[0].fence.task
    assert (await older.renew("w", 60.0, now=2.0)).alive
    assert 0 == (await older.control(Progress(fence, 0.5, "half"), now=2.0)).count
    await older.control(Deregister("w"), now=3.0)
    assert ("running", "queued", "completed", "queued") == await older.view.status((1, 2, 3, 4))
    await older.close()

    rewrite(place, lambda _: was)
    newer = opened(place)
    assert (await newer.recover(limit=10, now=4.0)).moved == 2
    assert ("queued", "queued") == await newer.view.status((1, 2))
    assert frozenset() == await newer.view.workers()
    await newer.close()
    assert not found_wrong(place)


async def test_views_pruning_and_repair_work_beside_a_newer_pool(
    place: Path | Schema, caplog: pytest.LogCaptureFixture
) -> None:
    """Listing the pools logs an error; maintenance recounts and removes nothing of that pool."""
    store = opened(place)
    for name in ("new", "old"):
        await store.control(Declare(PoolSpec(name=name, order=fifo(), max_concurrent=3)), now=0.0)
    await store.control(Register("w", 60.0), now=0.0)
    await store.submit((task(1, "new"), task(2, "old"), task(3, "new")), now=0.0)
    for pool in ("new", "old"):
        for fence in await lease(store, pool, "w", 0.0, want=1):
            await store.settle((Settlement(fence=fence, event=Transition.COMPLETE),), now=1.0)
    await store.close()
    was = rewrite(place, another_option)

    older = opened(place)
    with caplog.at_level(logging.ERROR, "millpond.store"):
        assert ("old",) == await older.view.names()
    assert [True] == ["pool 'new'" in one.getMessage() for one in caplog.records]
    assert () == await older.repair()
    old = await older.view.pool("old")
    assert old is not None
    assert 1 == old.kept
    prune = Prune("old", completed_before=5.0, failed_before=5.0, keys_before=5.0, audit_before=0.5)
    assert 1 == (await older.control(prune, now=10.0)).count
    with pytest.raises(NewerPool):
        await older.control(
            Prune("new", completed_before=5.0, failed_before=5.0, keys_before=5.0), now=10.0
        )
    assert ("old",) == await older.view.names()
    await older.close()

    rewrite(place, lambda _: was)
    newer = opened(place)
    assert ("completed", "expired", "queued") == await newer.view.status((1, 2, 3))
    await newer.close()
    assert not found_wrong(place)


async def test_a_budget_of_a_newer_version_leaves_the_pools_that_share_it_alone(
    place: Path | Schema, caplog: pytest.LogCaptureFixture
) -> None:
    """An option of a budget that is not known is named, and no other pool stops for it."""
    store = opened(place)
    await store.control(DeclareBudget(BudgetSpec(name="b", max_concurrent=5)), now=0.0)
    shared = PoolSpec(name="shares", order=fifo(), max_concurrent=3, budgets=("b",))
    await store.control(Declare(shared), now=0.0)
    await store.control(Declare(PoolSpec(name="old", order=fifo(), max_concurrent=3)), now=0.0)
    await store.submit((task(1, "shares"), task(2, "old")), now=0.0)
    await store.close()
    was = refield(place, "millpond_budget", "b", another_option)

    older = opened(place)
    with caplog.at_level(logging.ERROR, "millpond.store"):
        await older.control(DeclareBudget(BudgetSpec(name="b", max_concurrent=9)), now=1.0)
        await older.control(Declare(shared), now=1.0)
        await older.control(Register("w", 60.0), now=1.0)
        assert not await lease(older, "shares", "w", 1.0)
    assert all("'b'" in one.getMessage() and "colour" in one.getMessage() for one in caplog.records)
    assert 2 == len(caplog.records)
    assert 1 == len(await lease(older, "old", "w", 1.0))
    with pytest.raises(NewerPool, match="shares"):
        await older.submit((task(3, "shares"),), now=1.0)
    assert any("budget 'b'" in one for one in found_wrong(place))
    await older.close()

    refield(place, "millpond_budget", "b", lambda _: was)
    newer = opened(place)
    assert 1 == len(await lease(newer, "shares", "w", 2.0))
    await newer.close()


def test_the_functions_of_the_server_know_every_option_of_a_pool(
    postgres_schemas: Schemas,
) -> None:
    """A new option, order, policy or unit of a rate is named in millpond_knows, or this fails."""
    schema = postgres_schemas.take()
    lent = schema.connection()
    ask = qualified("SELECT millpond_knows(%s::jsonb)", schema.address.schema).encode()

    def knows(spec: PoolSpec) -> bool:
        row = lent.driver.execute(ask, [json.dumps(msgspec.to_builtins(spec))]).fetchone()
        return row is not None and bool(row[0])

    rates = (Rate(3), Rate(3, of="weight"))
    assert all(knows(PoolSpec(name="p", order=Order(kind=kind))) for kind in OrderKind)
    policies = [Backpressure(on_full=policy, depth=3) for policy in OnFull]
    assert all(knows(PoolSpec(name="p", backpressure=policy)) for policy in policies)
    assert knows(PoolSpec(name="p", rates=rates, rate_per_key=Rate(1)))
    lent.close()
    postgres_schemas.give_back(schema)
