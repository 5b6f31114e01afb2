"""Ordered pools: every key is a lane of its own, without a fixed number of lanes."""

import asyncio
from collections import Counter, defaultdict

import pytest
from tests.pool.fleet import Fleet
from tests.pool.moments import clock

from millpond import Context, Empty, Millpond, Retry, fair_round_robin
from millpond.errors import ConfigConflict, ConfigError

ONCE = Retry.never()


@pytest.mark.rows("DE-T21")
async def test_tasks_of_a_key_run_one_at_a_time_in_order_and_keys_side_by_side() -> None:
    """Fifty keys on ten slots: each key in order, never two of one at once, ten running."""
    mp = Millpond()
    pool = mp.pool("accounts", ordered=True, max_concurrent=10)
    order: dict[str, list[int]] = defaultdict(list)
    now: Counter[str] = Counter()
    most = 0

    @pool.task(key="account")
    async def post(ctx: Context, account: str, n: int) -> None:
        nonlocal most
        assert (account, n) == (ctx.lane, ctx.sequence)
        now[account] += 1
        assert 1 == now[account]
        most = max(most, sum(now.values()))
        order[account].append(n)
        await asyncio.sleep((n * 3 + len(account)) % 4 / 10)
        now[account] -= 1

    async with mp:
        for n in range(1, 9):
            await pool.submit_many(post.bind(f"account-{k}", n) for k in range(50))
        await pool.drain()

    assert {f"account-{k}": list(range(1, 9)) for k in range(50)} == order
    assert 10 == most


async def test_sequences_are_gap_free_per_key_and_position_counts_the_key() -> None:
    """Each key has its own numbers from one; keys do not share them."""
    mp = Millpond()
    pool = mp.pool("accounts", ordered=True, max_concurrent=2)

    @pool.task(key="account")
    async def post(account: str) -> None: ...

    async with mp:
        await pool.pause()
        handles = await pool.submit_many(post.each("abaab"))
        await pool.resume()
        await pool.drain()
        again = await post.submit("b")

    assert [("a", 1, 0), ("b", 1, 0), ("a", 2, 1), ("a", 3, 2), ("b", 2, 1)] == [
        (handle.lane, handle.sequence, handle.position) for handle in handles
    ]
    assert ("b", 3, 0) == (again.lane, again.sequence, again.position)


async def test_tasks_without_a_key_do_not_wait_for_each_other() -> None:
    """No key, no lane: such tasks run side by side within max_concurrent."""
    mp = Millpond()
    pool = mp.pool("accounts", ordered=True, max_concurrent=5)

    @pool.task
    async def work() -> None:
        await asyncio.sleep(10)

    async with mp:
        handles = await pool.submit_many([work.bind() for _ in range(5)])
        start = clock()
        await pool.drain()
        assert clock() - start == pytest.approx(10, abs=1e-2)
        assert {None} == {handle.lane for handle in handles}


async def test_a_retry_and_a_delay_block_their_key_and_only_their_key() -> None:
    """The head of a key backs off or waits for its time: the key waits, the others do not."""
    mp = Millpond()
    pool = mp.pool(
        "accounts",
        ordered=True,
        max_concurrent=5,
        retry=Retry.constant(100, attempts=2, jitter=0),
    )
    log = []

    @pool.task(key="account")
    async def post(account: str, name: str) -> None:
        log.append((account, name, round(clock())))
        if name == "bad":
            raise OSError("down")

    async with mp:
        await post.submit("a", "bad")
        await post.submit("a", "behind")
        await post.options(delay=50).submit("b", "later")
        await post.submit("b", "behind")
        await post.submit("c", "free")
        await pool.drain()

    assert [
        ("a", "bad", 0),
        ("c", "free", 0),
        ("b", "later", 50),
        ("b", "behind", 50),
        ("a", "bad", 100),
        ("a", "behind", 100),
    ] == log


async def test_a_head_that_is_cancelled_or_redriven_keeps_the_order_of_its_key() -> None:
    """A cancelled head frees its key at once; redriven, it comes back at the tail."""
    mp = Millpond()
    pool = mp.pool("accounts", ordered=True, max_concurrent=2)
    log = []

    @pool.task(key="account")
    async def post(account: str, name: str) -> None:
        log.append(name)
        await asyncio.sleep(1)

    async with mp:
        head = await post.options(delay=1000).submit("a", "head")
        await post.submit("a", "second")
        await asyncio.sleep(1)
        assert [] == log
        await head.cancel()
        await asyncio.sleep(0.5)
        await post.submit("a", "third")
        assert 1 == await pool.redrive([head])
        await pool.drain()
        await head.refresh()

    assert ["second", "third", "head"] == log
    assert 4 == head.sequence


async def test_a_key_can_be_paused_resumed_and_purged_alone() -> None:
    """Orders about one key do not touch the others, and pool.lanes() shows the pause."""
    mp = Millpond()
    pool = mp.pool("accounts", ordered=True, max_concurrent=5)
    log = []

    @pool.task(key="account")
    async def post(account: str, n: int) -> None:
        log.append((account, n))

    async with mp:
        await pool.pause(key="a")
        for n in range(3):
            await post.submit("a", n)
            await post.submit("b", n)
        await asyncio.sleep(10)
        assert [("b", 0), ("b", 1), ("b", 2)] == log
        (lane,) = await pool.lanes()
        assert ("a", "paused", True, 3) == (lane.lane, lane.state, lane.paused, lane.pending)
        assert 3 == await pool.purge(key="a")
        await post.submit("a", 3)
        await pool.resume(lane="a")
        await pool.drain()

    assert ("a", 3) == log[-1]
    assert 4 == len(log)


@pytest.mark.rows("TRAP-5")
async def test_on_empty_fires_once_each_time_a_key_runs_dry() -> None:
    """It fires for each key, in the step that empties it."""
    events: list[tuple[str | None, int]] = []
    mp = Millpond()

    def empty(event: Empty) -> None:
        events.append((event.lane, event.processed))

    pool = mp.pool("accounts", ordered=True, max_concurrent=1, on_empty=empty)

    @pool.task(key="account")
    async def post(account: str) -> None: ...

    async with mp:
        await pool.submit_many(post.each("aba"))
        await pool.drain()
        assert [("b", 1), ("a", 2)] == events
        await (await post.submit("b"))
        assert [("b", 1), ("a", 2), ("b", 2)] == events


async def test_a_failed_task_lets_its_key_go_on() -> None:
    """A dead letter is not the end of its key."""
    mp = Millpond()
    pool = mp.pool("accounts", ordered=True, max_concurrent=1, retry=ONCE)
    log = []

    @pool.task(key="account")
    async def post(account: str, n: int) -> None:
        log.append(n)
        if n == 0:
            raise OSError("down")

    async with mp:
        for n in range(3):
            await post.submit("a", n)
        report = await pool.drain()

    assert [0, 1, 2] == log
    assert (2, 1) == (report.completed, report.failed)


async def test_a_fair_ordered_pool_takes_turns_and_keeps_each_key_in_order() -> None:
    """fair_round_robin over the keys: one task of each in turn, each key in order."""
    mp = Millpond()
    pool = mp.pool("accounts", ordered=True, max_concurrent=1, queue=fair_round_robin())
    log = []

    @pool.task(key="account")
    async def post(account: str, n: int) -> None:
        log.append(f"{account}{n}")

    async with mp:
        await pool.pause()
        for account, count in (("a", 4), ("b", 2), ("c", 1)):
            for n in range(count):
                await post.submit(account, n)
        await pool.resume()
        await pool.drain()

    assert ["a0", "b0", "c0", "a1", "b1", "a2", "a3"] == log


async def test_turning_ordered_on_under_a_backlog_is_refused() -> None:
    """Queued tasks have no lane yet: ConfigConflict names the field."""
    fleet = Fleet()
    first, other = fleet.millpond(work=False), fleet.millpond()
    pool = first.pool("accounts")
    other.pool("accounts", ordered=True)

    @pool.task
    async def post() -> None: ...

    async with first:
        await post.submit()
        with pytest.raises(ConfigConflict) as caught:
            async with other:
                pass

    assert "accounts" == caught.value.pool
    assert "ordered" == caught.value.field


async def test_an_order_about_lane_and_key_at_once_is_refused() -> None:
    """lane= and key= exclude each other."""
    mp = Millpond()
    pool = mp.pool("accounts", ordered=True)
    async with mp:
        with pytest.raises(ConfigError, match="exclude"):
            await pool.pause(lane="a", key="b")
