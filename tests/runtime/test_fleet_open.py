"""Opening a durable Millpond: who works, who runs closures, and what is shown of it."""

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.runtime.durable import Harbour, Ship

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


def process(harbour: Harbour, *, work: bool | None = None) -> tuple[Millpond, Pool]:
    """A process."""
    mp = harbour.millpond(work=work)
    return mp, declared(mp)


def ship_of(mp: Millpond) -> Ship:
    """The store as a process sees it."""
    ship: Any = internals_of(mp).runtime.store
    return ship  # type: ignore[no-any-return]


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
async def test_opening_makes_a_worker_where_nobody_else_could_be_one(
    url: str | None, work: bool | None, works: bool
) -> None:
    """In memory it does, unless told otherwise; on a durable store only if it is told so."""
    harbour = Harbour(threads=False)
    mp = Millpond(url, work=work)
    internals_of(mp).owner.make_store = lambda: harbour.store if url is None else _still(harbour)
    declared(mp)
    async with mp:
        assert works == bool(internals_of(mp).runtime.workers)


def _still(harbour: Harbour) -> Any:
    mp = harbour.millpond()
    make_store = internals_of(mp).owner.make_store
    assert make_store is not None
    return make_store()


async def test_a_closure_runs_where_it_was_submitted_and_calls_do_not() -> None:
    """A worker is brought for it that takes no call, also of the same pool and though it waits."""
    harbour = Harbour(threads=False)
    mp, pool = process(harbour)
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
        (join,) = ship_of(mp).told(Register)
        assert () == join.functions
        # A hundred more come and go, and it still leaves the call to others.
        await mp.wait(await pool.submit_many([closure] * 100))
        await asyncio.sleep(10)
        assert ["queued"] == await mp.status([call.id])
        assert 0 == (await pool.snapshot()).parked
        assert not internals_of(mp).runtime.served("work")
        other, _ = process(harbour, work=True)
        async with other:
            assert internals_of(other).runtime.owner == await call
    assert 101 == len(ran)


async def test_many_who_submit_at_once_bring_one_worker() -> None:
    """Whoever comes while it joins waits for the same one, though the first is cancelled."""
    harbour = Harbour(threads=False)
    mp, pool = process(harbour)

    async def closure() -> int:
        return 1

    async with mp:
        joining = asyncio.Event()

        async def slowly(_verb: str, asked: Any) -> None:
            if isinstance(asked, Register):
                joining.set()
                await asyncio.sleep(1)

        ship_of(mp).before = slowly
        submits = [asyncio.ensure_future(pool.submit(closure)) for _ in range(5)]
        await joining.wait()
        submits[0].cancel()
        handles = await asyncio.gather(*submits[1:])
        assert [1] * 4 == [await handle for handle in handles]
        assert 1 == len(ship_of(mp).told(Register))


async def test_a_worker_of_all_pools_makes_another_for_closures_needless() -> None:
    """While one serves the pool it runs closures too."""
    harbour = Harbour(threads=False)
    mp, pool = process(harbour)

    async def closure() -> int:
        return 1

    async with mp, mp.worker():
        assert 1 == await (await pool.submit(closure))
        assert [False] == [worker.own for worker in internals_of(mp).runtime.workers]


async def test_closures_outlive_the_worker_that_served_their_pool() -> None:
    """One is there for them before it leaves: the process never looks dead to the store."""
    harbour = Harbour(threads=False)
    mp, pool = process(harbour)
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
            type(order) for order in ship_of(mp).orders if isinstance(order, (Register, Deregister))
        ]
        assert [Register, Register, Deregister] == orders
        assert ["done"] * 4 == [await handle for handle in handles]
        # Three were given back when their worker left, uncharged.
        assert 7 == len(runs)
        assert [1] * 4 == [handle.attempt for handle in handles]


async def test_a_pool_that_only_other_workers_leave_out_is_served_too() -> None:
    """A worker for another pool does not run these closures."""
    harbour = Harbour(threads=False)
    mp, pool = process(harbour)
    mp.pool("other")

    async def closure() -> int:
        return 1

    async with mp, mp.worker(pools=["other"]):
        assert 1 == await (await pool.submit(closure))
        assert [False, True] == [worker.own for worker in internals_of(mp).runtime.workers]


async def test_a_run_held_open_by_a_client_lives_as_long_as_its_process() -> None:
    """The store knows that it is there, also while no worker of it serves anything."""
    harbour = Harbour(threads=False)
    (client, pool), (worker, _) = process(harbour), process(harbour, work=True)
    call = client.tasks["call"]
    async with client, worker:
        async with AsyncExitStack() as stack:
            async with client.worker():
                run = await stack.enter_async_context(pool.run("nightly"))
                await run.submit(call.bind())
                await asyncio.sleep(1)
            # Its only worker has left, and still it may add to the run.
            await run.submit(call.bind())
        assert run.report is not None
        assert (2, 2) == (run.report.total, run.report.completed)


async def test_waiting_for_what_only_workers_for_closures_could_serve_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They take nothing of others: a fleet of them is a fleet without workers."""
    harbour = Harbour(threads=False)
    (first, pool), (second, _) = process(harbour), process(harbour)

    async def closure() -> int:
        return 1

    async with first, second:
        await (await pool.submit(closure))
        handle = await second.tasks["call"].submit()
        with pytest.raises(TimeoutError):
            await handle.wait(timeout=10)
    (told,) = [one.getMessage() for one in caplog.records if "MILL-026" in one.getMessage()]
    assert "millpond worker module:app" in told


async def test_opening_twice_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the first is still opening."""
    mp = Millpond("sqlite:///work.db")
    opened = asyncio.Event()
    go = asyncio.Event()
    harbour = Harbour(threads=False)

    async def slow_store(*_: object, **_settings: object) -> Any:
        opened.set()
        await go.wait()
        return _still(harbour), time.time

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
    harbour = Harbour(threads=False)
    tries: list[int] = []

    async def fails_once(*_: object, **_settings: object) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("away")
        return _still(harbour), time.time

    monkeypatch.setattr("millpond.pool.store_opening.open_store", fails_once)
    with pytest.raises(ConnectionError):
        async with mp:
            pass
    assert not mp.is_open
    async with mp:
        assert mp.is_open


def test_what_is_shown_of_a_millpond_tells_where_it_is() -> None:
    """The URL, the state, the pools."""
    mp = Millpond("sqlite:///work.db")
    mp.pool("work")
    assert "<millpond on sqlite:///work.db, closed: work>" == repr(mp)
    assert "<millpond in memory, closed: no pools>" == repr(Millpond())


@pytest.mark.parametrize("given", ["fast", "", None, 1])
def test_durability_is_one_of_two(given: Any) -> None:
    """Named for what they risk; anything else is refused where it is given."""
    with pytest.raises(ConfigError, match="full, normal"):
        Millpond("sqlite:///work.db", durability=given)
    assert (
        "normal"
        == internals_of(Millpond("sqlite:///work.db", durability="normal")).owner.durability
    )


@pytest.mark.real_loop
@pytest.mark.rows("TR-17")
async def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    """The URL of a store that cannot be opened ends in logs."""
    with pytest.raises(StoreUnreachable) as caught:
        async with Millpond("postgresql://me:secret@127.0.0.1:1/db"):
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.real_loop
async def test_a_handler_in_a_thread_is_a_closure_as_well() -> None:
    """A plain function is run by the same worker, in a thread."""
    harbour = Harbour()
    mp, pool = process(harbour)
    async with mp:
        ran_in = await (await pool.submit(threading.get_ident))
        assert threading.get_ident() != ran_in
        with pytest.raises(ConfigError, match="use a task"):
            strict = mp.pool("strict", lanes=2)
            await strict.submit(threading.get_ident)


async def test_closures_of_two_processes_run_each_at_home() -> None:
    """In one pool, each with its own worker, within the limit of all."""
    harbour = Harbour(threads=False)
    (first, one), (second, two) = process(harbour), process(harbour)
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


async def test_context_of_a_call_says_the_pool(caplog: pytest.LogCaptureFixture) -> None:
    """A worker that was brought for a drain runs calls as any other does, and leaves with it."""
    harbour = Harbour(threads=False)
    mp = harbour.millpond()
    pool = mp.pool("work")

    @pool.task
    async def tell(ctx: Context) -> str:
        return ctx.pool

    async with mp:
        report = await pool.drain([tell.bind()])
        assert 1 == report.completed
        assert [] == internals_of(mp).runtime.workers
