"""Flow control: weights corrected after the call, and services that throttle."""

import asyncio
from datetime import timedelta

import pytest

from millpond import (
    ConfigError,
    Context,
    Millpond,
    Rate,
    Retry,
    TaskFailed,
    Throttled,
    adaptive,
)
from millpond.errors import DuplicateName


def clock() -> float:
    """The time of the loop, which is virtual here."""
    return asyncio.get_running_loop().time()


async def test_a_handler_gives_back_the_weight_it_did_not_use() -> None:
    """Two calls of 60 tokens a minute: the first used 10, so the second waits 10 s, not 60."""
    mp = Millpond()
    pool = mp.pool("llm", max_concurrent=9, rate=Rate(60, per=60.0, of="weight"))
    starts: list[float] = []

    @pool.task
    async def ask(ctx: Context) -> int:
        starts.append(clock())
        ctx.settle_weight(10)
        return ctx.weight

    async with mp:
        handles = [await ask.options(weight=60).submit() for _ in range(2)]
        assert [60, 60] == [await handle for handle in handles]
    assert [0.0, 10.0] == pytest.approx(starts, abs=0.01)


async def test_an_attempt_that_fails_settles_its_weight_too() -> None:
    """A failed attempt also gives back the weight it did not use."""
    mp = Millpond()
    pool = mp.pool("llm", rate=Rate(60, per=60.0, of="weight"), retry=Retry.constant(0.0))
    starts: list[float] = []

    @pool.task
    async def ask(ctx: Context) -> str:
        starts.append(clock())
        ctx.settle_weight(0)
        if ctx.is_retry:
            return "done"
        raise ValueError("once")

    async with mp:
        assert "done" == await (await ask.options(weight=60).submit())
    assert [0.0, 0.0] == pytest.approx(starts, abs=0.01)


async def test_a_weight_must_be_a_whole_number() -> None:
    """The call in the handler raises, and the error names the value."""
    mp = Millpond()
    pool = mp.pool("llm", retry=Retry.never())

    @pool.task
    async def ask(ctx: Context) -> None:
        ctx.settle_weight(-1)

    async with mp:
        with pytest.raises(TaskFailed, match="actual"):
            await (await ask.submit())


async def test_throttled_delays_every_start_of_the_pool() -> None:
    """After one 429 no task starts before the given time; no attempt is spent."""
    mp = Millpond()
    pool = mp.pool("llm", max_concurrent=2, retry=Retry.never())
    starts: list[tuple[int, float]] = []

    @pool.task
    async def ask(ctx: Context, number: int) -> int:
        starts.append((number, clock()))
        if number == 0 and clock() < 5.0:
            raise Throttled(timedelta(seconds=5))
        await asyncio.sleep(1.0)
        return ctx.attempt

    async with mp:
        handles = await pool.submit_many(ask.each(range(4)))
        assert [1, 1, 1, 1] == [await handle for handle in handles]
    # Number 1 ran already; 2 and 3 had to wait, although slots were free.
    assert [0, 1, 0, 2, 3] == [number for number, _ in starts]
    assert [0.0, 0.0, 5.0, 5.0, 6.0] == pytest.approx([at for _, at in starts], abs=0.05)


async def test_throttled_may_hold_back_one_key_alone() -> None:
    """The other tenants go on."""
    mp = Millpond()
    pool = mp.pool("llm", max_concurrent=9, retry=Retry.never())
    starts: list[tuple[str, float]] = []

    @pool.task(key="tenant")
    async def ask(tenant: str) -> None:
        starts.append((tenant, clock()))
        if tenant == "acme" and clock() < 3.0:
            raise Throttled(3.0, scope="key")

    async with mp:
        first = await ask.submit("acme")
        await asyncio.sleep(1.0)
        others = [await ask.submit(tenant) for tenant in ("acme", "bolt")]
        for handle in (first, *others):
            await handle
    expected = [("acme", 0.0), ("bolt", 1.0), ("acme", 3.0), ("acme", 3.0)]
    assert expected == [(tenant, round(at, 1)) for tenant, at in starts]


async def test_throttled_in_a_map_holds_the_pool_back() -> None:
    """An item of a map that shares its task with others may raise it too."""
    mp = Millpond()
    pool = mp.pool("llm", max_concurrent=1)
    throttled = False

    async def ask(number: int) -> int:
        nonlocal throttled
        if not throttled:
            throttled = True
            raise Throttled(4.0)
        return number

    async with mp:
        assert [1, 2, 3] == await pool.map(ask, [1, 2, 3])
        assert clock() >= 4.0


def test_throttled_refuses_bad_arguments_by_name() -> None:
    """An unknown scope, and a time that is no number."""
    with pytest.raises(ConfigError, match="scope"):
        Throttled(1.0, scope="planet")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="retry_after"):
        Throttled(-1.0)


# Budgets


async def test_pools_share_a_budget() -> None:
    """Two pools that could run nine each run three together, and both get their turns."""
    mp = Millpond()
    openai = mp.budget("openai", 3)
    pools = [mp.pool(name, max_concurrent=9, budgets=[openai]) for name in ("chat", "embed")]
    now, most, done = 0, 0, {"chat": 0, "embed": 0}

    @mp.task
    async def call(ctx: Context) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(1.0)
        now -= 1
        done[ctx.pool] += 1

    async with mp:
        for pool in pools:
            await pool.submit_many(call.bind() for _ in range(30))
        await asyncio.sleep(5.5)
        taken = await openai.snapshot()
        assert (3, 3, ("chat", "embed")) == (taken.max_concurrent, taken.running, taken.pools)
        assert 15 == sum(done.values())
        assert min(done.values()) >= 4
        await openai.resize(6)
        for pool in pools:
            await pool.drain()
    assert 6 == most


async def test_a_budget_has_rates_of_its_own() -> None:
    """Starts of both pools come out of one bucket, and refunds go back to it."""
    mp = Millpond()
    tokens = mp.budget("tokens", 9, rate=Rate(60, per=60.0, of="weight"))
    chat = mp.pool("chat", budgets=[tokens])
    embed = mp.pool("embed", budgets=[tokens])
    starts: list[tuple[str, float]] = []

    @mp.task
    async def call(ctx: Context) -> None:
        starts.append((ctx.pool, round(clock())))
        ctx.settle_weight(30)

    async with mp:
        await asyncio.sleep(0.01)
        first = await chat.submit(call.bind(), weight=60)
        await first
        await (await embed.submit(call.bind(), weight=60))
    assert [("chat", 0), ("embed", 30)] == starts


def test_a_budget_is_of_one_millpond_and_named_once() -> None:
    """Duplicate names, and budgets that a pool cannot use, are refused."""
    mp, other = Millpond(), Millpond()
    openai = mp.budget("openai", 3)
    with pytest.raises(DuplicateName, match="openai"):
        mp.budget("openai", 4)
    with pytest.raises(ConfigError, match="another Millpond"):
        other.pool("chat", budgets=[openai])
    with pytest.raises(ConfigError, match="prefetch"):
        mp.pool("chat", budgets=[openai], prefetch=2)
    with pytest.raises(ConfigError, match=r"mp\.budget"):
        mp.pool("chat", budgets=["openai"])  # type: ignore[list-item]


async def test_a_budget_made_after_opening_is_known_in_time() -> None:
    """Pools and budgets may come late."""
    mp = Millpond()

    async def seven() -> int:
        return 7

    async with mp:
        pool = mp.pool("late", budgets=[mp.budget("late", 1)])
        assert 7 == await (await pool.submit(seven))


# Limits that adapt


async def test_an_adaptive_pool_finds_the_capacity_of_its_peer() -> None:
    """The service handles 4 at a time and queues the rest: the pool settles near 4, far from 50."""
    mp = Millpond()
    pool = mp.pool("llm", max_concurrent=adaptive(1, 50))
    server, limits = asyncio.Semaphore(4), []

    @pool.task
    async def ask(_number: int) -> None:
        async with server:
            await asyncio.sleep(0.1)

    async with mp:
        handles = await pool.submit_many(ask.each(range(2000)))
        for _ in range(40):
            await asyncio.sleep(1.0)
            limits.append((await pool.snapshot()).max_concurrent)
        settled = limits[15:]
        assert 3.0 <= sum(settled) / len(settled) <= 9.0
        assert 1 == (await pool.snapshot()).config.max_concurrent
        await mp.wait(handles)


async def test_an_adaptive_pool_can_be_resized_and_given_back() -> None:
    """The operator's limit applies until it is reset."""
    mp = Millpond()
    pool = mp.pool("llm", max_concurrent=adaptive(2, 50, initial=6))
    async with mp:
        assert 6 == (await pool.snapshot()).max_concurrent
        await pool.resize(3)
        assert 3 == (await pool.snapshot()).max_concurrent
        await pool.resize()
        assert 6 == (await pool.snapshot()).max_concurrent
    with pytest.raises(ConfigError, match="lanes"):
        mp.pool("lanes", max_concurrent=adaptive(1, 9), lanes=4)


@pytest.mark.rows("TR-04")
async def test_a_throttle_of_years_ends_after_a_day_or_with_resume() -> None:
    """The delay of a header is cut to a day; an operator can end it with resume."""
    mp = Millpond()
    pool = mp.pool("llm")
    ran: list[float] = []

    @pool.task
    async def ask() -> None:
        ran.append(asyncio.get_running_loop().time())
        if len(ran) % 2:
            raise Throttled(1e8, scope="pool")

    async with mp:
        began = asyncio.get_running_loop().time()
        await (await ask.submit())
        assert 86_400 == pytest.approx(ran[1] - began, abs=1)
        handle = await ask.submit()
        await asyncio.sleep(10)
        held = await pool.snapshot()
        assert 86_390 == pytest.approx(held.held_for or 0.0, abs=1)
        assert "pool held back for 24 h (resume ends that)" in await mp.why(handle.id)
        other = await ask.submit()
        await pool.resume()
        await other
        assert None is (await pool.snapshot()).held_until
        assert ran[3] - began == pytest.approx(86_410, abs=1)
