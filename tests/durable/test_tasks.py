"""Tasks of durable pools: what one process stored, another finds, runs and reads."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.pool.fleet import Fleet, until
from verify.servers.schemas import Schema

from millpond import Context, Keep, Millpond, Outcome, Pool, Rate, Retry, TaskFailed
from millpond.core.settle import Settlement
from millpond.errors import IdempotencyConflict
from millpond.pool.internals import internals_of
from millpond.runtime.batching import bytes_of


class Currency(Enum):
    """What an invoice is paid in."""

    EURO = "EUR"


class Line(msgspec.Struct):
    """One line of an invoice."""

    text: str
    size: tuple[int, ...]


@dataclass
class Invoice:
    """A result with types that JSON does not know."""

    number: int
    lines: list[Line]
    by_name: dict[str, tuple[float, ...]]
    total: Decimal
    currency: Currency
    due: datetime
    ident: UUID
    scan: bytes
    tags: frozenset[str]
    note: str | None = None


INVOICE = Invoice(
    number=3,
    lines=[Line("tea", (1, 2)), Line("milk", ())],
    by_name={"tea": (1.5,)},
    total=Decimal("19.90"),
    currency=Currency.EURO,
    due=datetime(2026, 11, 18, 12, 30, 0, 7, tzinfo=UTC),
    ident=UUID(int=7),
    scan=b"\x00\xff",
    tags=frozenset({"food"}),
)


async def completed(pool: Pool, count: int) -> bool:
    """Return whether so many have completed."""
    return count == (await pool.snapshot()).completed


def clocked(ran: list[tuple[float, str]], word: str) -> None:
    """Note which process ran a task, and when."""
    ran.append((asyncio.get_running_loop().time(), word))


# What is asked for once


async def test_a_key_answers_after_a_restart_and_in_another_process(place: Path | Schema) -> None:
    """With the task it stood for and its result; other arguments under it are a conflict."""
    fleet = Fleet(place)
    ran: list[int] = []

    def process() -> Millpond:
        mp = fleet.millpond(work=True)
        pool = mp.pool("orders")

        @pool.task
        async def order(number: int) -> int:
            ran.append(number)
            return number * 2

        return mp

    first, second = process(), process()
    async with first:
        known = await first.tasks["order"].options(idempotency_key="k").submit(7)
        assert 14 == await known
    async with second:
        order = second.tasks["order"].options(idempotency_key="k")
        again = await order.submit(7)
        assert (True, known.id, 14) == (again.duplicate, again.id, await again)
        with pytest.raises(IdempotencyConflict):
            await order.submit(8)
    assert [7] == ran


@pytest.mark.rows("DE-R03")
async def test_a_key_outlives_its_task_and_is_forgotten_in_its_time(place: Path | Schema) -> None:
    """Over restarts: Keep(keys=) counts from the end of the task, not from that of a process."""
    fleet = Fleet(place)
    keep = Keep(completed=60, keys=1000)

    def process() -> Millpond:
        mp = fleet.millpond(work=True, keep=keep)
        pool = mp.pool("orders")

        @pool.task
        async def order() -> None: ...

        return mp

    async with process() as first:
        known = await first.tasks["order"].options(idempotency_key="k").submit()
        await known
    await asyncio.sleep(300)
    async with process() as second:
        await asyncio.sleep(130)
        assert ["expired"] == await second.status([known.id])
        again = await second.tasks["order"].options(idempotency_key="k").submit()
        assert (True, known.id) == (again.duplicate, again.id)
    await asyncio.sleep(900)
    async with process() as third:
        await asyncio.sleep(130)
        assert not (await third.tasks["order"].options(idempotency_key="k").submit()).duplicate


async def test_records_of_the_audit_are_kept_for_their_time(place: Path | Schema) -> None:
    """Keep(audit=) over restarts; what is younger stays, and an idle store ends up with none."""
    fleet = Fleet(place)
    keep = Keep(completed=50, failed=50, keys=50, audit=600)

    def process() -> Millpond:
        mp = fleet.millpond(work=True, keep=keep)
        pool = mp.pool("jobs")

        @pool.task
        async def job() -> None: ...

        return mp

    async with process() as mp:
        old = await mp.tasks["job"].submit()
        await old
    await asyncio.sleep(500)
    async with process() as mp:
        young = await mp.tasks["job"].submit()
        await young
        await asyncio.sleep(65)
        assert {old.id, young.id} == {r.task async for r in mp.audit() if r.task is not None}
        await asyncio.sleep(130)
        assert {young.id} == {r.task async for r in mp.audit() if r.task is not None}
        await asyncio.sleep(800)
        assert [] == [r async for r in mp.audit()]


# What others wait for


@pytest.mark.rows("TRAP-18")
async def test_a_typed_result_is_read_by_a_process_that_never_ran_it(place: Path | Schema) -> None:
    """`mp.handle(id, of=...)` in another process gives an equal object of the same types."""
    fleet = Fleet(place)

    def process(*, work: bool) -> Millpond:
        mp = fleet.millpond(work=work)
        pool = mp.pool("bills")

        @pool.task
        async def bill(draft: Invoice) -> Invoice:
            assert INVOICE == draft
            return draft

        return mp

    client, worker, reader = process(work=False), process(work=True), process(work=False)
    async with client:
        task = (await client.tasks["bill"].submit(INVOICE)).id
    async with worker:
        await until(lambda: completed(worker.get_pool("bills"), 1))
    async with reader:
        handle = await reader.handle(task, of=reader.tasks["bill"])
        result = await handle
        assert INVOICE == result
        found = [vars(one) for one in (INVOICE, result)]
        assert [type(value) for value in found[0].values()] == [
            type(value) for value in found[1].values()
        ]
        assert isinstance(result.lines[0], Line)
        assert isinstance(result.lines[0].size, tuple)
        assert ["completed"] == await reader.status([task])


@pytest.mark.rows("CX-19")
async def test_a_result_that_is_too_large_fails_its_own_task_alone(place: Path | Schema) -> None:
    """It ends as bad_result, after one run; what ended in the same moment is stored in batches."""
    fleet = Fleet(place)
    mp = fleet.millpond(work=True)
    pool = mp.pool("films", max_concurrent=14, retry=Retry(attempts=5))
    ran: Counter[int] = Counter()

    @pool.task
    async def film(kilobytes: int) -> str:
        ran[kilobytes] += 1
        await asyncio.sleep(1)
        return "x" * (kilobytes << 10)

    settles: list[int] = []
    async with mp:
        settle = internals_of(mp).runtime.store.settle

        async def weighed(settlements: Sequence[Settlement], **options: Any) -> Any:
            settles.append(sum(map(bytes_of, settlements)))
            return await settle(settlements, **options)

        internals_of(mp).runtime.store.settle = weighed  # type: ignore[method-assign]
        sizes = [900 + number for number in range(12)]
        handles = await pool.submit_many(film.each([*sizes, 2048]))
        *good, large = await mp.wait(handles)
    assert [900 << 10, "bad_result", 1] == [len(good[0].result or ""), large.reason, large.attempt]
    assert ["completed"] * 12 == [one.status for one in good]
    assert dict.fromkeys((*sizes, 2048), 1) == ran
    assert sum(settles) > 10 << 20
    assert max(settles) <= 8 << 20


@pytest.mark.rows("DE-R11")
async def test_give_up_after_counts_from_the_first_start_in_any_process(
    place: Path | Schema,
) -> None:
    """The first start is stored: the process that goes on after a crash measures from there."""
    fleet = Fleet(place)
    starts: list[tuple[float, str]] = []
    retry = Retry(attempts=100, initial=10, factor=1, jitter=0, give_up_after=35)

    def process(name: str) -> Millpond:
        mp = fleet.millpond(work=True)
        pool = mp.pool("mail", retry=retry)

        @pool.task
        async def send() -> None:
            clocked(starts, name)
            raise OSError

        return mp

    first, second = process("one"), process("two")
    await first.__aenter__()
    handle = await first.tasks["send"].submit()
    await asyncio.sleep(15)
    await fleet.crash(first)
    async with second:
        there = await (await second.handle(handle.id)).wait(timeout=120)
    assert ("failed", 4) == (there.status, there.attempt)
    assert ["one", "one", "two", "two"] == [name for _, name in starts]
    assert [0, 10, 20, 30] == pytest.approx([at - starts[0][0] for at, _ in starts], abs=1.0)


async def test_a_client_gets_the_result_of_a_task_that_another_process_ran(
    place: Path | Schema,
) -> None:
    """Awaiting in a process without workers gives the result, or raises the error."""
    fleet = Fleet(place)

    def process(*, work: bool) -> Millpond:
        mp = fleet.millpond(work=work)
        pool = mp.pool("sums", retry=Retry.never())

        @pool.task
        async def add(a: int, b: int) -> int:
            await asyncio.sleep(2)
            if a < 0:
                raise ValueError("too small")
            return a + b

        return mp

    client, worker = process(work=False), process(work=True)
    async with client, worker:
        good, bad = await client.tasks["add"].submit(1, 2), await client.tasks["add"].submit(-1, 2)
        assert 3 == await good
        with pytest.raises(TaskFailed, match="too small") as caught:
            await bad
        assert "ValueError" in str(caught.value)


async def test_progress_is_seen_from_another_process(place: Path | Schema) -> None:
    """The last word of a running handler is stored."""
    fleet = Fleet(place)

    def process(*, work: bool) -> Millpond:
        mp = fleet.millpond(work=work)
        pool = mp.pool("films")

        @pool.task
        async def encode(ctx: Context) -> None:
            await ctx.progress(0.5, "half way")
            await asyncio.sleep(20)

        return mp

    client, worker = process(work=False), process(work=True)
    async with client, worker:
        handle = await client.tasks["encode"].submit()
        await asyncio.sleep(10)
        (info,) = await client.get_pool("films").tasks()
        assert "running" == info.status
        reported = [word async for word in handle.progress()]
        assert (0.5, "half way") in reported


async def test_the_progress_of_a_short_task_elsewhere_ends_with_its_last_report(
    place: Path | Schema,
) -> None:
    """It ended before this process looked once."""
    fleet = Fleet(place)

    def process(*, work: bool) -> Millpond:
        mp = fleet.millpond(work=work)

        @mp.pool("films").task
        async def encode(ctx: Context) -> None:
            await ctx.progress(0.5, "half way")
            await ctx.progress(1.0, "done")

        return mp

    client, worker = process(work=False), process(work=True)
    async with client, worker:
        handle = await client.tasks["encode"].submit()
        reported = [word async for word in handle.progress()]
        assert (1.0, "done") == reported[-1]


# Time


async def test_a_delay_goes_on_while_no_process_is_there(place: Path | Schema) -> None:
    """It is a moment, not a timer: over a restart it is due when it was said to be."""
    fleet = Fleet(place)
    ran: list[tuple[float, str]] = []

    def process() -> Millpond:
        mp = fleet.millpond(work=True)
        pool = mp.pool("mail")

        @pool.task
        async def send(word: str) -> None:
            clocked(ran, word)

        return mp

    async with process() as mp:
        send = mp.tasks["send"]
        await send.options(delay=100).submit("soon")
        await send.options(delay=1000).submit("late")
        await send.options(run_at=500.0).submit("at 500")
    await asyncio.sleep(200)
    async with process():
        await asyncio.sleep(1000)
    assert ["soon", "at 500", "late"] == [word for _, word in ran]
    assert pytest.approx([200.0, 500.0, 1000.0], abs=1.5) == [at for at, _ in ran]


async def test_a_backoff_goes_on_while_no_process_is_there(place: Path | Schema) -> None:
    """The second attempt comes when it was due, in whichever process is there then."""
    fleet = Fleet(place)
    ran: list[tuple[float, str]] = []

    def process(name: str) -> Millpond:
        mp = fleet.millpond(work=True)
        pool = mp.pool("mail", retry=Retry.constant(300.0, jitter=0.0))

        @pool.task
        async def send(ctx: Context) -> None:
            clocked(ran, f"{name} {ctx.attempt}")
            if ctx.attempt == 1:
                raise OSError

        return mp

    async with process("one") as mp:
        await mp.tasks["send"].submit()
        await asyncio.sleep(10)
    async with process("two"):
        await asyncio.sleep(400)
    assert ["one 1", "two 2"] == [word for _, word in ran]
    assert pytest.approx(300.0, abs=1.5) == ran[1][0]


# Lanes and stops


@pytest.mark.rows("DE-T08")
async def test_a_lane_is_served_again_at_the_moment_its_task_settles(place: Path | Schema) -> None:
    """Nothing passes between the end of one task and the start of the next, however it ended."""
    fleet = Fleet(place)
    mp = fleet.millpond(work=True)
    pool = mp.pool("hooks", lanes=2, retry=Retry.never())
    starts: list[tuple[float, str]] = []

    @pool.task(key="to")
    async def send(to: str, how: str) -> None:
        clocked(starts, how)
        await asyncio.sleep(1.7)
        if how == "fails":
            raise OSError

    async with mp:
        began = asyncio.get_running_loop().time()
        handles = [await send.submit("acme", how) for how in ("a", "fails", "b", "cancelled", "c")]
        await asyncio.sleep(2)
        await handles[3].cancel()
        await mp.wait(handles)
    assert ["a", "fails", "b", "c"] == [how for _, how in starts]
    expected = [1.7 * number for number in range(4)]
    assert expected == pytest.approx([at - began for at, _ in starts], abs=0.01)


@pytest.mark.rows("CX-T113", "CX-T114")
async def test_a_worker_that_stops_gives_back_all_that_it_holds(place: Path | Schema) -> None:
    """What runs and what it claimed ahead goes back at once; another worker is charged nothing."""
    fleet = Fleet(place)
    ran: list[tuple[str, int, int]] = []

    def process(name: str, seconds: float) -> Millpond:
        mp = fleet.millpond(work=True)
        pool = mp.pool("jobs", max_concurrent=2, prefetch=4)

        @pool.task
        async def job(ctx: Context, number: int) -> None:
            ran.append((name, number, ctx.attempt))
            await asyncio.sleep(seconds)

        return mp

    first, second = process("first", 3600.0), process("second", 0.1)
    async with first:
        await first.get_pool("jobs").submit_many(first.tasks["job"].each(range(10)))
        await asyncio.sleep(1)
        snapshot = await first.get_pool("jobs").snapshot()
        assert (2, 4) == (snapshot.running, snapshot.claimed)
    left = asyncio.get_running_loop().time()
    async with second:
        pool = second.get_pool("jobs")
        snapshot = await pool.snapshot()
        assert (0, 0, 10) == (snapshot.running, snapshot.claimed, snapshot.queued)
        await until(lambda: completed(pool, 10), within=10)
        assert asyncio.get_running_loop().time() - left < 5
    assert [("first", 0, 1), ("first", 1, 1)] == ran[:2]
    assert [("second", number, 1) for number in range(10)] == sorted(ran[2:])


# Limits over processes


async def test_two_processes_share_a_rate(place: Path | Schema) -> None:
    """All workers together start no more tasks in a minute than the rate allows."""
    fleet = Fleet(place)
    starts: list[tuple[float, str]] = []

    def process(name: str) -> Millpond:
        mp = fleet.millpond(work=True)
        pool = mp.pool("calls", max_concurrent=10, rate=Rate(6, per=60.0, burst=1))

        @pool.task
        async def call() -> None:
            clocked(starts, name)
            await asyncio.sleep(1)

        return mp

    one, two = process("one"), process("two")
    async with one, two:
        await one.get_pool("calls").submit_many([one.tasks["call"].bind() for _ in range(13)])
        await until(lambda: completed(one.get_pool("calls"), 13))
    moments = [at for at, _ in starts]
    assert moments[-1] - moments[0] >= 119.0
    assert all(later - sooner >= 9.9 for sooner, later in pairwise(moments))


async def test_two_processes_share_the_limit_of_a_key(place: Path | Schema) -> None:
    """At most so many of one key at a time, wherever they run; other keys are free."""
    fleet = Fleet(place)
    inside: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def process() -> Millpond:
        mp = fleet.millpond(work=True)
        pool = mp.pool("calls", max_concurrent=6, max_per_key=2)

        @pool.task(key=lambda tenant: tenant)
        async def call(tenant: str) -> None:
            inside[tenant] += 1
            most[tenant] = max(most[tenant], inside[tenant])
            await asyncio.sleep(1.5)
            inside[tenant] -= 1

        return mp

    one, two = process(), process()
    async with one, two:
        call = one.tasks["call"]
        await one.get_pool("calls").submit_many(call.each(["acme", "bolt", "coil"] * 6))
        await until(lambda: completed(one.get_pool("calls"), 18))
    assert {"acme": 2, "bolt": 2, "coil": 2} == most


# Dead letters and callbacks


async def test_a_dead_letter_is_driven_again_from_another_process(place: Path | Schema) -> None:
    """Any process can read its error; redriven, the task has all its attempts again."""
    fleet = Fleet(place)
    healthy = False

    def process(*, work: bool) -> Millpond:
        mp = fleet.millpond(work=work)
        pool = mp.pool("mail", retry=Retry.constant(1.0, attempts=2))

        @pool.task
        async def send() -> str:
            if not healthy:
                raise ConnectionError("no answer")
            return "sent"

        return mp

    async with process(work=True) as mp:
        task = (await mp.tasks["send"].submit()).id
        await until(lambda: failed(mp.get_pool("mail"), 1))
    operator, worker = process(work=False), process(work=True)
    async with operator:
        (letter,) = await operator.get_pool("mail").tasks(status="failed")
        assert (task, 2) == (letter.id, letter.attempt)
        assert "no answer" in str(letter.error)
        healthy = True
        assert 1 == await operator.get_pool("mail").redrive([task])
    async with worker:
        await until(lambda: completed(worker.get_pool("mail"), 1))
        assert "sent" == await (await worker.handle(task))


async def failed(pool: Pool, count: int) -> bool:
    """Return whether so many have failed."""
    return count == (await pool.snapshot()).failed


@pytest.mark.rows("CX-18")
@pytest.mark.parametrize("found_dead", [True, False])
async def test_a_callback_runs_although_its_process_died(
    place: Path | Schema, *, found_dead: bool
) -> None:
    """It was stored with the end of its task: the next process runs it."""
    fleet = Fleet(place)
    reports: list[tuple[str, str, int]] = []

    def process(name: str) -> Millpond:
        mp = fleet.millpond(work=True)
        pool = mp.pool("jobs")

        @mp.task
        async def report(ctx: Context, outcome: Outcome) -> None:
            reports.append((name, outcome.status, ctx.attempt))
            if name == "first":
                await asyncio.sleep(3600)

        @pool.task
        async def job() -> None: ...

        return mp

    first, second = process("first"), process("second")
    await first.__aenter__()
    await first.tasks["job"].options(on_complete=first.tasks["report"].bind()).submit()
    await asyncio.sleep(1)
    await fleet.crash(first, found_dead=found_dead)
    async with second:
        await asyncio.sleep(120)
    assert [("first", "completed", 1), ("second", "completed", 2)] == reports


@pytest.mark.parametrize("found_dead", [True, False])
async def test_a_closure_is_found_stale_after_its_process_died(
    place: Path | Schema, *, found_dead: bool
) -> None:
    """Its code is gone: the task fails, and no other process runs it."""
    fleet = Fleet(place)
    ran: list[str] = []
    first, second = fleet.millpond(work=True), fleet.millpond(work=True)
    pools = [mp.pool("jobs") for mp in (first, second)]

    async def forever() -> None:
        ran.append("closure")
        await asyncio.sleep(3600)

    await first.__aenter__()
    running = await pools[0].submit(forever)
    waiting = await pools[0].submit(forever)
    await asyncio.sleep(1)
    await fleet.crash(first, found_dead=found_dead)
    async with second:
        await until(lambda: failed(pools[1], 2))
        for task in (running.id, waiting.id):
            with pytest.raises(TaskFailed, match="stale"):
                await (await second.handle(task))
        assert 0 == await pools[1].size()
        assert 0 == await pools[1].redrive([running.id])
    assert ["closure"] == ran


async def test_a_full_pool_is_full_for_all_processes(place: Path | Schema) -> None:
    """The bound is decided where the task is stored: two processes never overfill it."""
    from millpond import PoolFull, bounded

    fleet = Fleet(place)

    def process() -> Millpond:
        mp = fleet.millpond(work=False)
        pool = mp.pool("jobs", backpressure=bounded(5, "fail_submitter"))

        @pool.task
        async def job() -> None: ...

        return mp

    one, two = process(), process()
    taken = refused = 0
    async with one, two:
        for _ in range(4):
            for mp in (one, two):
                try:
                    await mp.tasks["job"].submit()
                    taken += 1
                except PoolFull:
                    refused += 1
        assert (5, 3) == (taken, refused)
        assert 5 == await one.get_pool("jobs").size()


async def test_room_made_elsewhere_lets_a_blocked_submitter_in(place: Path | Schema) -> None:
    """A submit that waits in one process goes on when another process makes room."""
    from millpond import bounded

    fleet = Fleet(place)

    def process(*, work: bool) -> Millpond:
        mp = fleet.millpond(work=work)
        pool = mp.pool("jobs", backpressure=bounded(1, "block_submitter"))

        @pool.task
        async def job() -> int:
            return 1

        return mp

    client, worker = process(work=False), process(work=True)
    async with client:
        await client.tasks["job"].submit()
        blocked = asyncio.create_task(client.tasks["job"].submit())
        await asyncio.sleep(5)
        assert not blocked.done()
        async with worker:
            assert 1 == await (await blocked)


# What is known later


async def test_a_task_registered_while_its_workers_run_is_run_at_once(
    place: Path | Schema,
) -> None:
    """By every worker of its process, also if it was submitted, and parked, before it was known."""
    fleet = Fleet(place)
    client, worker = fleet.millpond(work=False), fleet.millpond(work=True)
    submits, serves = client.pool("late"), worker.pool("late", max_concurrent=2)

    @submits.task(name="early")
    async def early_elsewhere() -> str:
        raise NotImplementedError

    async with client, worker, worker.worker():
        waiting = await early_elsewhere.submit()
        await asyncio.sleep(5.0)

        @serves.task
        async def early() -> str:
            return "early"

        @serves.task
        async def late(number: int) -> int:
            return number

        async with asyncio.timeout(2.0):
            assert 3 == await (await late.submit(3))
            assert "early" == await waiting
