"""Lanes: each is strictly first in, first out, one task at a time, beside the others."""

import asyncio
import sys
from collections import Counter, defaultdict
from typing import Any

import pytest
from tests.pool.fleet import Fleet
from tests.pool.moments import clock

from millpond import (
    Context,
    Empty,
    Handle,
    Millpond,
    Pool,
    Rate,
    Retry,
    RetryLater,
    TaskFunction,
    bounded,
    fair_round_robin,
    fifo,
    lifo,
    priority,
)
from millpond.errors import BatchTooLarge, ConfigConflict, ConfigError, PoolFull, TaskFailed
from millpond.pool.internals import internals_of

ONCE = Retry.never()


class Trace:
    """When each task started and ended, per lane."""

    def __init__(self) -> None:
        self.starts: list[tuple[str | None, int]] = []
        self.now: Counter[str | None] = Counter()
        self.most: Counter[str | None] = Counter()

    async def work(self, ctx: Context, seconds: float) -> None:
        """Run in a lane for a while."""
        self.starts.append((ctx.lane, ctx.sequence))
        self.now[ctx.lane] += 1
        self.most[ctx.lane] = max(self.most[ctx.lane], self.now[ctx.lane])
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now[ctx.lane] -= 1

    def per_lane(self) -> dict[str | None, list[int]]:
        """Return the sequences of each lane in the order of their starts."""
        found: dict[str | None, list[int]] = defaultdict(list)
        for lane, sequence in self.starts:
            found[lane].append(sequence)
        return dict(found)


# One at a time, in order


@pytest.mark.rows("DE-01", "DE-T05", "DE-T21", "DE-T08")
async def test_each_lane_runs_one_at_a_time_in_the_order_of_submits() -> None:
    """Eight lanes side by side, each strictly in sequence, however long its tasks take.

    The next task of a lane starts at the moment the one before it ends.
    """
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=8)
    trace = Trace()
    order: dict[str, list[int]] = defaultdict(list)
    ended: dict[str | None, float] = {}
    idle: list[float] = []

    @pool.task(key="to")
    async def send(ctx: Context, to: str, n: int) -> None:
        order[to].append(n)
        idle.append(clock() - ended.get(ctx.lane, clock()))
        await trace.work(ctx, (n * 7 + len(to)) % 5 / 10)
        ended[ctx.lane] = clock()

    async with mp:
        await pool.pause()
        for n in range(400):
            await send.submit(f"customer-{n % 13}", n)
        await pool.resume()
        await pool.drain()

    for to, seen in order.items():
        assert sorted(seen) == seen, to
    for sequences in trace.per_lane().values():
        assert list(range(1, len(sequences) + 1)) == sequences
    assert {1} == set(trace.most.values())
    assert 400 == len(trace.starts)
    assert 0.0 == pytest.approx(max(idle), abs=0.01)


@pytest.mark.rows("DE-01")
async def test_lanes_work_side_by_side_up_to_max_concurrent() -> None:
    """Four lanes with work run four tasks; a lower max_concurrent still holds."""
    for limit, expected in ((None, 4), (2, 2)):
        mp = Millpond()
        pool = mp.pool("webhooks", lanes=4, max_concurrent=limit)
        now, most = 0, 0

        @pool.task
        async def work() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(1)
            now -= 1

        async with mp:
            start = clock()
            await pool.submit_many([work.bind() for _ in range(20)])
            await pool.drain()
            took = clock() - start

        assert expected == most
        assert took == pytest.approx(20 / expected, abs=1e-2)


@pytest.mark.rows("DE-02", "DE-T22", "TRAP-12")
async def test_tasks_without_a_key_go_round_the_lanes_evenly() -> None:
    """Round-robin over all lanes, one by one and in batches."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=4)

    @pool.task
    async def work() -> None: ...

    async with mp:
        handles = [await work.submit() for _ in range(6)]
        handles += await pool.submit_many([work.bind() for _ in range(6)])

    lanes = [handle.lane for handle in handles]
    assert len(set(lanes[:4])) == 4
    assert lanes[:4] * 3 == lanes


@pytest.mark.rows("TRAP-12", "DE-T22", "DE-T20")
async def test_tasks_of_many_clients_spread_evenly_over_the_lanes() -> None:
    """Each task comes from a new Millpond, and the lanes are still even."""
    fleet = Fleet()
    lanes: list[str | None] = []
    for _ in range(24):
        mp = fleet.millpond(work=False)
        pool = mp.pool("webhooks", lanes=4)

        @pool.task
        async def work() -> None: ...

        async with mp:
            lanes.append((await work.submit()).lane)

    assert {6} == set(Counter(lanes).values())
    assert 4 == len(set(lanes))


@pytest.mark.rows("DE-02", "DE-T23")
async def test_every_client_hashes_a_key_to_the_same_lane() -> None:
    """The hash is stable between processes and versions."""
    keys = [f"customer-{n}" for n in range(40)] + ["ü", "a b", "0"]

    async def lanes_of(mp: Millpond) -> dict[str, str | None]:
        pool = mp.pool("webhooks", lanes=8)

        @pool.task(key="to")
        async def send(to: str) -> None: ...

        async with mp:
            return {key: (await send.submit(key)).lane for key in keys}

    first = await lanes_of(Millpond())
    second = await lanes_of(Millpond())
    assert first == second
    assert 8 == len(set(first.values()))
    # These values are fixed: a change would send stored keys to other lanes.
    assert ["3", "5", "7"] == [first[key] for key in ("customer-0", "customer-1", "customer-2")]


@pytest.mark.rows("DE-03", "DE-T01", "DE-T04", "DE-20")
async def test_submit_returns_lane_sequence_and_position() -> None:
    """Sequences have no gaps and equal the order of submits; position counts the tasks ahead."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=2)

    @pool.task(key="to")
    async def send(to: str) -> None: ...

    async with mp:
        await pool.pause()
        handles = [await send.submit("a") for _ in range(3)]
        handles += await pool.submit_many(send.each(["a", "a"]))
        await handles[1].cancel()
        handles.append(await send.submit("a"))
        lane = handles[0].lane
        assert lane is not None
        assert [1, 2, 3, 4, 5, 6] == [handle.sequence for handle in handles]
        assert [0, 1, 2, 3, 4, 4] == [handle.position for handle in handles]
        assert {lane} == {handle.lane for handle in handles}
        await pool.resume()
        await pool.drain()
        again = await send.submit("a")
        assert (7, 0) == (again.sequence, again.position)


@pytest.mark.rows("DE-03")
async def test_a_long_lane_costs_no_more_for_each_task_than_a_short_one() -> None:
    """Submit, claim and settle call as many functions behind a thousand tasks as behind ten."""

    async def calls_per_task(count: int) -> float:
        mp = Millpond()
        pool = mp.pool("webhooks", lanes=1)
        calls = 0

        @pool.task
        async def send(n: int) -> None: ...

        def called(_: Any, event: str, __: Any) -> None:
            nonlocal calls
            calls += event == "call"

        async with mp:
            await pool.pause()
            sys.setprofile(called)
            try:
                for n in range(count):
                    await send.submit(n)
                await pool.resume()
                await pool.drain()
            finally:
                sys.setprofile(None)
            assert count == (await pool.snapshot()).completed
        return calls / count

    assert await calls_per_task(1000) < 1.2 * await calls_per_task(100)


@pytest.mark.rows("DE-T20", "DE-03")
async def test_many_clients_at_once_get_gap_free_sequences() -> None:
    """A hundred submitters at one lane: every number once, and starts in that order."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=3)
    trace = Trace()

    @pool.task(key="to")
    async def send(ctx: Context, to: str) -> int:
        await trace.work(ctx, 0.01)
        return ctx.sequence

    async with mp:
        handles = await asyncio.gather(*(send.submit("a") for _ in range(100)))
        results = [await handle for handle in handles]

    assert list(range(1, 101)) == sorted(handle.sequence for handle in handles)
    assert [handle.sequence for handle in handles] == results
    assert list(range(1, 101)) == [sequence for _, sequence in trace.starts]


@pytest.mark.rows("DE-T19")
async def test_a_thousand_tasks_have_a_thousand_outcomes() -> None:
    """Nothing is lost and nothing doubled over a thousand tasks on eight lanes."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=8)
    ran: Counter[int] = Counter()

    @pool.task(key=lambda n: str(n % 20))
    async def send(n: int) -> int:
        ran[n] += 1
        await asyncio.sleep(0.001 * (n % 5))
        return n

    async with mp:
        handles = await pool.submit_many(send.each(range(1000)))
        assert list(range(1000)) == [await handle for handle in handles]
        processed = sum(lane.processed for lane in await pool.lanes())

    assert dict.fromkeys(range(1000), 1) == ran
    assert 1000 == processed


# Blocked lanes


@pytest.mark.rows("DE-13", "DE-T13", "DE-T10")
async def test_a_retry_blocks_its_lane_and_only_its_lane() -> None:
    """While the head backs off, nothing behind it starts; the other lane runs on."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=2, retry=Retry.constant(100, attempts=3, jitter=0))
    log: list[tuple[str, int, float]] = []

    @pool.task
    async def send(ctx: Context, name: str) -> None:
        log.append((name, ctx.attempt, round(clock(), 3)))
        if name == "bad":
            raise OSError("down")

    async with mp:
        await pool.submit_many(send.each(["bad", "x1", "behind", "x2", "last", "x3"]))
        await pool.drain()
        assert ["failed"] + ["completed"] * 5 == [task.status for task in await pool.tasks()]

    lane = [entry for entry in log if not entry[0].startswith("x")]
    other = [entry for entry in log if entry[0].startswith("x")]
    assert [
        ("bad", 1, 0.0),
        ("bad", 2, 100.0),
        ("bad", 3, 200.0),
        ("behind", 1, 200.0),
        ("last", 1, 200.0),
    ] == lane
    assert [("x1", 1, 0.0), ("x2", 1, 0.0), ("x3", 1, 0.0)] == other


async def test_a_delay_blocks_its_lane_and_only_its_lane() -> None:
    """Tasks behind it in its lane wait for a delayed task; other lanes do not."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=2)
    log = []

    @pool.task(key="lane")
    async def send(lane: str, name: str) -> None:
        log.append((name, round(clock())))

    async with mp:
        one, two = await _two_keys(pool, send)
        await send.options(delay=60).submit(one, "later")
        await send.submit(one, "behind")
        await send.submit(two, "free")
        await pool.drain()

    assert [("free", 0), ("later", 60), ("behind", 60)] == log[-3:]


async def _two_keys(pool: Pool, send: TaskFunction[..., None, Any]) -> tuple[str, str]:
    """Return two keys of different lanes; the search leaves no tasks behind."""
    lanes: dict[str | None, str] = {}
    await pool.pause()
    for n in range(50):
        key = f"key-{n}"
        handle: Handle[None] = await pool.submit(send.bind(key, "probe"))
        lanes.setdefault(handle.lane, key)
    await pool.purge()
    await pool.resume()
    first, second, *_ = lanes.values()
    return first, second


async def test_cancelling_a_waiting_head_frees_its_lane_at_once() -> None:
    """A head that waits for its time or its retry, once cancelled, lets the next one start."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=1)
    log = []

    @pool.task
    async def send(name: str) -> None:
        log.append((name, round(clock())))
        if name == "flaky":
            raise RetryLater(1000)

    async with mp:
        later = await send.options(delay=1000).submit("later")
        await send.submit("second")
        await asyncio.sleep(10)
        assert [] == log
        assert await later.cancel()
        await asyncio.sleep(10)
        flaky = await send.submit("flaky")
        await send.submit("fourth")
        await asyncio.sleep(10)
        assert await flaky.cancel()
        await pool.drain()

    assert [("second", 10), ("flaky", 20), ("fourth", 30)] == log


@pytest.mark.rows("DP-13")
async def test_redrive_enters_at_the_tail() -> None:
    """A failed task that is redriven comes after all that waits, with new attempts."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=1, retry=Retry.constant(1, attempts=2, jitter=0))
    log: list[tuple[str, int, int]] = []
    broken = True

    @pool.task
    async def send(ctx: Context, name: str) -> None:
        log.append((name, ctx.attempt, ctx.sequence))
        await asyncio.sleep(1)
        if name == "bad" and broken:
            raise OSError("down")

    async with mp:
        bad = await send.submit("bad")
        await bad.wait()
        broken = False
        waiting = [await send.submit(name) for name in ("one", "two")]
        assert 1 == await pool.redrive([bad])
        late = await send.submit("three")
        await mp.wait([*waiting, late])
        assert "completed" == (await bad.refresh()).status

    assert [
        ("bad", 1, 1),
        ("bad", 2, 1),
        ("one", 1, 2),
        ("two", 1, 3),
        ("bad", 1, 4),
        ("three", 1, 5),
    ] == log


async def test_a_timeout_and_a_giveup_free_the_lane() -> None:
    """When the head ends for good, the next one starts at once."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=1, retry=ONCE)
    log = []

    @pool.task
    async def send(name: str) -> None:
        log.append((name, round(clock())))
        await asyncio.sleep(100 if name == "slow" else 0)

    async with mp:
        slow = await send.options(timeout=7).submit("slow")
        await send.submit("next")
        with pytest.raises(TaskFailed, match="TimeoutError"):
            await slow
        await pool.drain()

    assert [("slow", 0), ("next", 7)] == log


async def test_a_running_head_that_is_cancelled_frees_the_lane_when_it_ends() -> None:
    """The next one waits for the handler to stop: never two of a lane at once."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=1)
    trace = Trace()

    @pool.task
    async def send(ctx: Context, seconds: int) -> None:
        await trace.work(ctx, seconds)

    async with mp:
        first = await send.submit(50)
        await send.submit(1)
        await asyncio.sleep(5)
        await first.cancel(mode="interrupt")
        await pool.drain()
        assert "cancelled" == (await first.refresh()).status
        assert 6 == round(clock())

    assert {1} == set(trace.most.values())


@pytest.mark.rows("DE-T17", "DE-01", "DE-09")
async def test_after_a_crash_a_lane_goes_on_in_order() -> None:
    """The task that ran in a dead process runs again, before the tasks behind it in its lane."""
    fleet = Fleet()
    log: list[tuple[str, int, int]] = []

    def process(name: str) -> Millpond:
        mp = fleet.millpond()
        pool = mp.pool("webhooks", lanes=2)

        @pool.task
        async def send(ctx: Context) -> None:
            await asyncio.sleep(10)
            if ctx.lane == "0":
                log.append((name, ctx.sequence, ctx.attempt))

        return mp

    first, second = process("first"), process("second")
    await first.__aenter__()
    send = first.tasks["send"]
    await first.get_pool("webhooks").submit_many([send.bind() for _ in range(8)])
    await asyncio.sleep(15)
    await fleet.crash(first, found_dead=False)
    async with second:
        await second.get_pool("webhooks").drain()

    assert [("first", 1, 1), ("second", 2, 2), ("second", 3, 1), ("second", 4, 1)] == log


# Reading and control


@pytest.mark.rows("DE-T07", "DE-03")
async def test_status_has_state_pending_processed_and_current_sequence() -> None:
    """Each lane has its state, its queue and its count of ended tasks; failed ones count."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=2, retry=ONCE)

    @pool.task
    async def send(name: str) -> None:
        await asyncio.sleep(10)
        if name == "bad":
            raise OSError("down")

    async with mp:
        assert [("0", "idle", 0, 0, None), ("1", "idle", 0, 0, None)] == await _status(pool)
        await pool.submit_many(send.each(["a", "bad", "b", "c", "d"]))
        await asyncio.sleep(1)
        assert [("0", "processing", 2, 0, 1), ("1", "processing", 1, 0, 1)] == await _status(pool)
        await asyncio.sleep(10)
        assert [("0", "processing", 1, 1, 2), ("1", "processing", 0, 1, 2)] == await _status(pool)
        await pool.drain()
        assert [("0", "idle", 0, 3, None), ("1", "idle", 0, 2, None)] == await _status(pool)


async def _status(pool: Pool) -> list[tuple[object, ...]]:
    return [
        (one.lane, one.state, one.pending, one.processed, one.current_sequence)
        for one in await pool.lanes()
    ]


@pytest.mark.rows("DE-07", "DE-16", "DE-06")
async def test_a_paused_lane_takes_submits_and_starts_nothing() -> None:
    """Pause one lane: its running task ends, its queue stays; the other lane goes on."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=2)
    trace = Trace()

    @pool.task
    async def send(ctx: Context) -> None:
        await trace.work(ctx, 10)

    async with mp:
        await pool.submit_many([send.bind() for _ in range(4)])
        await asyncio.sleep(1)
        await pool.pause(lane=0)
        await pool.submit_many([send.bind() for _ in range(2)])
        await asyncio.sleep(100)
        assert {"0": [1], "1": [1, 2, 3]} == trace.per_lane()
        zero, one = await pool.lanes()
        assert ("paused", True, 2, 1) == (zero.state, zero.paused, zero.pending, zero.processed)
        assert ("idle", False, 0, 3) == (one.state, one.paused, one.pending, one.processed)
        start = clock()
        await pool.resume(lane="0")
        await pool.drain()
        assert clock() - start == pytest.approx(20, abs=1e-2)

    assert {"0": [1, 2, 3], "1": [1, 2, 3]} == trace.per_lane()


async def test_a_paused_pool_pauses_every_lane() -> None:
    """Pausing the pool stops all lanes; resuming it does not resume a lane paused by itself."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=2)
    trace = Trace()

    @pool.task
    async def send(ctx: Context) -> None:
        await trace.work(ctx, 1)

    async with mp:
        await pool.pause()
        await pool.pause(lane=1)
        await pool.submit_many([send.bind() for _ in range(4)])
        await asyncio.sleep(10)
        assert [] == trace.starts
        assert ["paused", "paused"] == [one.state for one in await pool.lanes()]
        await pool.resume()
        await asyncio.sleep(10)
        assert {"0": [1, 2]} == trace.per_lane()
        await pool.resume(lane=1)
        await pool.drain()

    assert {"0": [1, 2], "1": [1, 2]} == trace.per_lane()


@pytest.mark.rows("DE-17")
async def test_purge_of_a_lane_cancels_its_waiting_tasks() -> None:
    """The count comes back, the running task ends, the other lane and the counters stay."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=2)
    trace = Trace()

    @pool.task
    async def send(ctx: Context) -> None:
        await trace.work(ctx, 10)

    async with mp:
        handles = await pool.submit_many([send.bind() for _ in range(10)])
        await asyncio.sleep(1)
        assert 4 == await pool.purge(lane=0)
        assert 0 == await pool.purge(lane=0)
        purged = [h for h in handles if h.lane == "0"][1:]
        for handle in purged:
            await handle.wait()
            assert ("cancelled", "purged") == (handle.status, handle.reason)
        after = await pool.submit_many([send.bind() for _ in range(2)])
        await pool.drain()
        lanes = await pool.lanes()

    assert {"0": [1, 6], "1": [1, 2, 3, 4, 5, 6]} == trace.per_lane()
    assert [2, 6] == [lane.processed for lane in lanes]
    assert [6, 6] == [handle.sequence for handle in after]


@pytest.mark.parametrize("lane", [2, -1, "2", "x"])
async def test_a_lane_that_does_not_exist_is_refused_by_name(lane: str | int) -> None:
    """Pausing lane 2 of two lanes, or a lane of a pool without lanes, is a ConfigError."""
    mp = Millpond()
    pool, plain = mp.pool("webhooks", lanes=2), mp.pool("plain")
    async with mp:
        with pytest.raises(ConfigError, match="lane"):
            await pool.pause(lane=lane)
        with pytest.raises(ConfigError, match="lane"):
            await plain.purge(lane=0)


async def test_an_order_about_one_key_of_a_lane_is_refused() -> None:
    """Keys share a lane there: pausing or purging one of them is a ConfigError, never a no-op."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=2)
    async with mp:
        for order in (pool.pause, pool.resume, pool.purge, pool.cancel_all):
            with pytest.raises(ConfigError, match="lane="):
                await order(key="a")


@pytest.mark.rows("DE-T09", "TRAP-5")
async def test_on_empty_fires_once_each_time_a_lane_runs_dry() -> None:
    """It fires in the step that empties the lane, once each time, not during a backoff."""
    events: list[tuple[str | None, int, float]] = []
    mp = Millpond()

    def empty(event: Empty) -> None:
        assert "webhooks" == event.pool
        events.append((event.lane, event.processed, round(clock())))

    pool = mp.pool(
        "webhooks",
        lanes=2,
        retry=Retry.constant(50, attempts=2, jitter=0),
        on_empty=empty,
    )

    @pool.task
    async def send(seconds: int) -> None:
        await asyncio.sleep(seconds)
        if seconds == 3:
            raise OSError("once more")

    async with mp:
        await pool.submit_many(send.each([1, 3, 1]))
        await pool.drain()
        assert [("0", 2, 2), ("1", 1, 56)] == events
        await asyncio.sleep(1000)
        assert 2 == len(events)
        events.clear()
        await send.submit(1)
        await pool.drain()
        assert 1 == len(events)


@pytest.mark.rows("TRAP-5")
async def test_on_empty_fires_when_purge_or_cancel_empties_a_lane() -> None:
    """It fires however the lane becomes empty, not only when a handler ends."""
    events: list[str | None] = []
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=2, on_empty=lambda event: events.append(event.lane))

    @pool.task
    async def send() -> None: ...

    async with mp:
        await pool.pause()
        handles = await pool.submit_many([send.bind() for _ in range(4)])
        await pool.purge(lane=0)
        assert ["0"] == events
        await handles[1].cancel()
        assert ["0"] == events
        await handles[3].cancel()
        assert ["0", "1"] == events


async def test_a_hook_that_fails_is_counted_and_changes_nothing() -> None:
    """on_empty may raise: the lane goes on, and the failure is counted."""
    mp = Millpond()

    def broken(_: Empty) -> None:
        raise ZeroDivisionError

    pool = mp.pool("webhooks", lanes=1, on_empty=broken)

    @pool.task
    async def send() -> str:
        return "sent"

    async with mp:
        for _ in range(3):
            assert "sent" == await (await send.submit())
        assert 3 == internals_of(mp).runtime.counts.hook_errors


# Refusals


@pytest.mark.rows("DE-23")
def test_orders_that_would_break_a_lane_are_refused_by_name() -> None:
    """priority and lifo cannot be had with lanes; fifo and fair can, and fifo is the default."""
    mp = Millpond()
    for order in (priority(), lifo()):
        for given in ({"lanes": 2}, {"ordered": True}):
            with pytest.raises(ConfigError, match=str(order.kind)) as caught:
                mp.pool("webhooks", queue=order, **given)
            assert "queue" == caught.value.option
    assert "fifo" == mp.pool("one", lanes=2).spec.order.kind
    assert "fifo" == mp.pool("two", ordered=True).spec.order.kind
    assert mp.pool("three", lanes=2, queue=fair_round_robin()).spec.strict
    assert mp.pool("four", ordered=True, queue=fifo()).spec.strict


def test_limits_that_contradict_lanes_are_refused_by_name() -> None:
    """max_per_key, max_concurrent above the lanes, both kinds at once: each is named."""
    mp = Millpond()
    with pytest.raises(ConfigError, match="max_concurrent=3 cannot exceed lanes=2"):
        mp.pool("webhooks", lanes=2, max_concurrent=3)
    with pytest.raises(ConfigError, match="max_per_key=2"):
        mp.pool("webhooks", lanes=2, max_per_key=2)
    with pytest.raises(ConfigError, match="max_per_key=1"):
        mp.pool("webhooks", ordered=True, max_per_key=1)
    with pytest.raises(ConfigError, match="ordered=True and lanes exclude each other"):
        mp.pool("webhooks", lanes=2, ordered=True)
    with pytest.raises(ConfigError, match="lanes=0"):
        mp.pool("webhooks", lanes=0)
    assert 8 == mp.pool("webhooks", lanes=8).spec.max_concurrent


@pytest.mark.parametrize("strict", [{"lanes": 2}, {"ordered": True}])
async def test_closures_and_batches_are_refused_in_lanes(strict: dict[str, object]) -> None:
    """A closure dies with its process, and the tasks of a batch run together."""
    mp = Millpond()
    pool = mp.pool("webhooks", **strict)  # type: ignore[arg-type]
    other = mp.pool("other")

    async def closure() -> None:
        raise AssertionError("must not run")

    with pytest.raises(ConfigError, match="batch_task"):

        @pool.batch_task()
        async def together(items: list[int]) -> list[int]:
            return items

    @other.batch_task(name="elsewhere")
    async def elsewhere(items: list[int]) -> list[int]:
        return items

    @pool.task
    async def parent(ctx: Context) -> None:
        await ctx.submit(elsewhere.bind(1), pool=pool)

    async with mp:
        with pytest.raises(ConfigError, match="closure"):
            await pool.submit(closure, key="a")
        with pytest.raises(ConfigError, match="closure"):
            await pool.map(closure, [1])  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="batch"):
            await pool.submit(elsewhere.bind(1))
        handle = await parent.options(retry=ONCE).submit()
        with pytest.raises(TaskFailed, match="batch"):
            await handle
        assert 1 == (await pool.snapshot()).total


async def test_priority_is_recorded_in_lanes_and_ignored() -> None:
    """A task of high priority waits its turn in its lane like any other."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=1)
    log = []

    @pool.task
    async def send(name: str) -> None:
        log.append(name)

    async with mp:
        await pool.pause()
        await send.submit("first")
        urgent = await send.options(priority=100).submit("urgent")
        assert 100 == urgent.priority
        await pool.resume()
        await pool.drain()

    assert ["first", "urgent"] == log


async def test_a_change_of_lanes_under_a_backlog_is_refused() -> None:
    """Another number of lanes would send queued keys to other lanes: ConfigConflict names it."""
    fleet = Fleet()
    first, other = fleet.millpond(work=False), fleet.millpond()
    pool = first.pool("webhooks", lanes=2)

    @pool.task(key="to")
    async def send(to: str) -> None: ...

    more = other.pool("webhooks", lanes=4)

    @more.task(key="to", name="send")
    async def send_too(to: str) -> None: ...

    async with first:
        await send.submit("a")
        with pytest.raises(ConfigConflict) as caught:
            async with other:
                pass
        assert ("webhooks", "lanes", 2, 4) == (
            caught.value.pool,
            caught.value.field,
            caught.value.stored,
            caught.value.declared,
        )
        await pool.purge()
        async with other:
            assert 4 == len(await more.lanes())


# Bounds and rates


@pytest.mark.rows("DE-21")
async def test_a_bound_per_key_counts_the_tasks_of_a_key() -> None:
    """per_key refuses the overflow of one key, which the error names, and no other key's tasks."""
    mp = Millpond()
    pool = mp.pool(
        "webhooks",
        lanes=4,
        backpressure=bounded(100, on_full="fail_submitter", per_key=2),
    )

    @pool.task(key="to")
    async def send(to: str) -> None: ...

    async with mp:
        await pool.pause()
        await send.submit("a")
        await send.submit("a")
        with pytest.raises(PoolFull) as caught:
            await send.submit("a")
        assert ("webhooks", "a", 2, 2) == (
            caught.value.pool,
            caught.value.lane,
            caught.value.depth,
            caught.value.bound,
        )
        await send.submit("b")
        with pytest.raises(BatchTooLarge):
            await pool.submit_many(send.each(["c"] * 3))
        assert 3 == await pool.size()


async def test_a_rate_per_key_holds_its_lane_back() -> None:
    """Starts of one key keep the rate; tasks behind it in the lane wait too."""
    mp = Millpond()
    pool = mp.pool("webhooks", ordered=True, max_concurrent=5, rate_per_key=Rate(1, per=10))
    log = []

    @pool.task(key="to")
    async def send(to: str, n: int) -> None:
        log.append((to, n, round(clock())))

    async with mp:
        for n in range(3):
            await send.submit("a", n)
            await send.submit("b", n)
        await pool.drain()

    assert [("a", 0, 0), ("a", 1, 10), ("a", 2, 20)] == [one for one in log if one[0] == "a"]
    assert [("b", 0, 0), ("b", 1, 10), ("b", 2, 20)] == [one for one in log if one[0] == "b"]
