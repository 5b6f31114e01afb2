"""Opening a durable Millpond: when it starts a worker, where closures run, and its repr()."""

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.runtime.durable import Cluster, ProcessStore

from millpond import Context, Millpond, Pool
from millpond.core.control import Deregister, Register
from millpond.errors import AlreadyOpen, ConfigError, StoreUnreachable
from millpond.pool.internals import internals_of


def declared(mp: Millpond) -> Pool:
    """One pool and one task."""
    pool = mp.pool("work", max_concurrent=3)

    @pool.task(name="call")
    async def call(seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return internals_of(mp).runtime.owner

    return pool


def process(cluster: Cluster, *, work: bool | None = None) -> tuple[Millpond, Pool]:
    """A process."""
    mp = cluster.millpond(work=work)
    return mp, declared(mp)


def store_of(mp: Millpond) -> ProcessStore:
    """The store as a process sees it."""
    store: Any = internals_of(mp).runtime.store
    return store  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("url", "work", "works"),
    [
        (None, None, True),
        (None, False, False),
        ("sqlite:///work.db", None, False),
        ("sqlite:///work.db", False, False),
        ("sqlite:///work.db", True, True),
    ],
)
async def test_opening_starts_a_worker_in_memory_but_not_on_a_durable_store(
    url: str | None, work: bool | None, works: bool
) -> None:
    """`work` overrides both defaults."""
    cluster = Cluster(threads=False)
    mp = Millpond(url, work=work)
    internals_of(mp).owner.make_store = lambda: (
        cluster.store if url is None else _store_without_thread(cluster)
    )
    declared(mp)
    async with mp:
        assert works == bool(internals_of(mp).runtime.workers)


def _store_without_thread(cluster: Cluster) -> Any:
    mp = cluster.millpond()
    make_store = internals_of(mp).owner.make_store
    assert make_store is not None
    return make_store()


async def test_a_closure_runs_where_it_was_submitted_and_calls_do_not() -> None:
    """It starts a worker that claims no calls, not even calls that wait in the same pool."""
    cluster = Cluster(threads=False)
    mp, pool = process(cluster)
    ran: list[str] = []

    async def closure() -> str:
        ran.append("closure")
        return "here"

    async with mp:
        assert [] == internals_of(mp).runtime.workers
        call = await mp.tasks["call"].submit()
        assert "here" == await (await pool.submit(closure))
        (worker,) = internals_of(mp).runtime.workers
        assert worker.own
        assert f"{internals_of(mp).runtime.owner}/1~own" == worker.name
        (join,) = store_of(mp).orders_of(Register)
        assert () == join.functions
        # A hundred more closures run, and the worker still leaves the call to others.
        await mp.wait(await pool.submit_many([closure] * 100))
        await asyncio.sleep(10)
        assert ["queued"] == await mp.status([call.id])
        assert 0 == (await pool.snapshot()).parked
        assert not internals_of(mp).runtime.served("work")
        other, _ = process(cluster, work=True)
        async with other:
            assert internals_of(other).runtime.owner == await call
    assert 101 == len(ran)


async def test_concurrent_submits_of_closures_start_one_worker() -> None:
    """Submits wait while it registers, also after the first submit is cancelled."""
    cluster = Cluster(threads=False)
    mp, pool = process(cluster)

    async def closure() -> int:
        return 1

    async with mp:
        joining = asyncio.Event()

        async def slowly(_verb: str, command: Any) -> None:
            if isinstance(command, Register):
                joining.set()
                await asyncio.sleep(1)

        store_of(mp).before = slowly
        submits = [asyncio.ensure_future(pool.submit(closure)) for _ in range(5)]
        await joining.wait()
        submits[0].cancel()
        handles = await asyncio.gather(*submits[1:])
        assert [1] * 4 == [await handle for handle in handles]
        assert 1 == len(store_of(mp).orders_of(Register))


async def test_a_worker_that_serves_the_pool_also_runs_its_closures() -> None:
    """The process starts no second worker."""
    cluster = Cluster(threads=False)
    mp, pool = process(cluster)

    async def closure() -> int:
        return 1

    async with mp, mp.worker():
        assert 1 == await (await pool.submit(closure))
        assert [False] == [worker.own for worker in internals_of(mp).runtime.workers]


async def test_closures_outlive_the_worker_that_served_their_pool() -> None:
    """Another worker registers before that one deregisters: the store never sees a dead process."""
    cluster = Cluster(threads=False)
    mp, pool = process(cluster)
    runs: list[str] = []

    async def closure() -> str:
        runs.append("begun")
        await asyncio.sleep(5)
        return "done"

    async with mp:
        async with mp.worker():
            handles = [await pool.submit(closure) for _ in range(4)]
            await asyncio.sleep(1)
        orders = [
            type(order)
            for order in store_of(mp).orders
            if isinstance(order, (Register, Deregister))
        ]
        assert [Register, Register, Deregister] == orders
        assert ["done"] * 4 == [await handle for handle in handles]
        # Three went back to the queue uncharged when their worker stopped.
        assert 7 == len(runs)
        assert [1] * 4 == [handle.attempt for handle in handles]


async def test_a_closure_gets_a_worker_when_the_open_one_serves_another_pool() -> None:
    """The open worker does not run it."""
    cluster = Cluster(threads=False)
    mp, pool = process(cluster)
    mp.pool("other")

    async def closure() -> int:
        return 1

    async with mp, mp.worker(pools=["other"]):
        assert 1 == await (await pool.submit(closure))
        assert [False, True] == [worker.own for worker in internals_of(mp).runtime.workers]


async def test_a_run_opened_by_a_client_stays_open_without_a_worker() -> None:
    """The client's only worker stops inside the block, and the run still takes tasks."""
    cluster = Cluster(threads=False)
    (client, pool), (worker, _) = process(cluster), process(cluster, work=True)
    call = client.tasks["call"]
    async with client, worker:
        async with AsyncExitStack() as stack:
            async with client.worker():
                run = await stack.enter_async_context(pool.run("nightly"))
                await run.submit(call.bind())
                await asyncio.sleep(1)
            # The worker has stopped.
            await run.submit(call.bind())
        assert run.report is not None
        assert (2, 2) == (run.report.total, run.report.completed)


async def test_waiting_for_a_call_that_only_closure_workers_see_logs_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Closure workers claim no calls, so such a fleet has no workers for them."""
    cluster = Cluster(threads=False)
    (first, pool), (second, _) = process(cluster), process(cluster)

    async def closure() -> int:
        return 1

    async with first, second:
        await (await pool.submit(closure))
        handle = await second.tasks["call"].submit()
        with pytest.raises(TimeoutError):
            await handle.wait(timeout=10)
    (warning,) = [one.getMessage() for one in caplog.records if "MILL-026" in one.getMessage()]
    assert "millpond worker module:app" in warning


async def test_opening_twice_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the first is still opening."""
    mp = Millpond("sqlite:///work.db")
    opened = asyncio.Event()
    go = asyncio.Event()
    cluster = Cluster(threads=False)

    async def slow_store(*_: object, **_settings: object) -> Any:
        opened.set()
        await go.wait()
        return _store_without_thread(cluster), time.time

    monkeypatch.setattr("millpond.pool.store_opening.open_store", slow_store)
    first = asyncio.ensure_future(mp.__aenter__())
    await opened.wait()
    with pytest.raises(AlreadyOpen):
        async with mp:
            pass
    go.set()
    await first
    assert mp.is_open
    await mp.__aexit__(None, None, None)


async def test_a_store_that_cannot_be_opened_leaves_it_closed_and_can_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is half open after a failure."""
    mp = Millpond("sqlite:///work.db")
    cluster = Cluster(threads=False)
    tries: list[int] = []

    async def fails_once(*_: object, **_settings: object) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("away")
        return _store_without_thread(cluster), time.time

    monkeypatch.setattr("millpond.pool.store_opening.open_store", fails_once)
    with pytest.raises(ConnectionError):
        async with mp:
            pass
    assert not mp.is_open
    async with mp:
        assert mp.is_open


def test_the_repr_of_a_millpond_shows_its_store_state_and_pools() -> None:
    """The store is a URL or `in memory`."""
    mp = Millpond("sqlite:///work.db")
    mp.pool("work")
    assert "<millpond on sqlite:///work.db, closed: work>" == repr(mp)
    assert "<millpond in memory, closed: no pools>" == repr(Millpond())


@pytest.mark.parametrize("given", ["fast", "", None, 1])
def test_durability_is_full_or_normal(given: Any) -> None:
    """Millpond() refuses any other value."""
    with pytest.raises(ConfigError, match="full, normal"):
        Millpond("sqlite:///work.db", durability=given)
    assert (
        "normal"
        == internals_of(Millpond("sqlite:///work.db", durability="normal")).owner.durability
    )


@pytest.mark.real_loop
@pytest.mark.rows("TR-17")
async def test_the_error_for_an_unreachable_server_hides_the_password() -> None:
    """Such errors end up in logs."""
    with pytest.raises(StoreUnreachable) as caught:
        async with Millpond("postgresql://me:secret@127.0.0.1:1/db"):
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.real_loop
async def test_a_plain_function_is_also_a_closure() -> None:
    """The closure worker runs it in a thread."""
    cluster = Cluster()
    mp, pool = process(cluster)
    async with mp:
        ran_in = await (await pool.submit(threading.get_ident))
        assert threading.get_ident() != ran_in
        with pytest.raises(ConfigError, match="use a task"):
            strict = mp.pool("strict", lanes=2)
            await strict.submit(threading.get_ident)


async def test_each_process_runs_its_own_closures() -> None:
    """Both use one pool, each with its own worker, within the limit of the pool."""
    cluster = Cluster(threads=False)
    (first, one), (second, two) = process(cluster), process(cluster)
    most, running = [0], [0]

    def closure(mp: Millpond) -> Any:
        async def run() -> str:
            running[0] += 1
            most[0] = max(most[0], running[0])
            await asyncio.sleep(1)
            running[0] -= 1
            return internals_of(mp).runtime.owner

        return run

    async with first, second, asyncio.timeout(60):
        mine = await one.submit_many([closure(first)] * 6)
        theirs = await two.submit_many([closure(second)] * 6)
        assert {internals_of(first).runtime.owner} == {await handle for handle in mine}
        assert {internals_of(second).runtime.owner} == {await handle for handle in theirs}
    assert 3 == most[0]


async def test_a_worker_started_by_drain_runs_calls_and_stops_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its handlers see the pool in their context."""
    cluster = Cluster(threads=False)
    mp = cluster.millpond()
    pool = mp.pool("work")

    @pool.task
    async def pool_name(ctx: Context) -> str:
        return ctx.pool

    async with mp:
        report = await pool.drain([pool_name.bind()])
        assert 1 == report.completed
        assert [] == internals_of(mp).runtime.workers
