"""The typing surface of pools: checked by mypy, never run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from millpond import (
    BoundCall,
    Context,
    Failed,
    GiveUp,
    Handle,
    Keep,
    Millpond,
    Outcome,
    Pool,
    Rate,
    Reason,
    Rejection,
    Retry,
    RetryLater,
    RunReport,
    Status,
    SubmitRejection,
    SyncContext,
    TaskFailed,
    TaskFunction,
    bounded,
    fail_fast,
    fair_round_robin,
    fifo,
    lifo,
    priority,
    ring_buffer,
)
from millpond.core.audit import Record
from millpond.core.quantiles import Quantiles
from millpond.pool.map import Mapped
from millpond.pool.runs.run import Run
from millpond.pool.runs.stream import Stream
from millpond.pool.schedules.schedule import Schedule, SyncSchedule
from millpond.pool.snapshot import LaneStatus, Snapshot, TaskInfo
from millpond.runtime.error_info import ErrorInfo
from millpond.runtime.observe.hooks import DeadLetter, Empty, Observed
from millpond.runtime.worker.worker import Worker

mp = Millpond(keep=Keep(completed=timedelta(hours=2)), lease=timedelta(seconds=30))


class Report:
    """What a review comes to."""


def on_dead_letter(letter: DeadLetter) -> None:
    assert_type(letter.error, ErrorInfo | None)
    assert_type(letter.payload, bytes)


async def on_empty(empty: Empty) -> None:
    assert_type(empty.lane, str | None)


def my_policy(attempt: int, error: BaseException) -> float | None:
    return None if isinstance(error, KeyError) else 2.0 * attempt


# Declaring

reviews = mp.pool(
    "pr-review",
    max_concurrent=5,
    queue=fair_round_robin("tenant_id", weights={"acme": 2}),
    backpressure=bounded(1000, on_full="block_submitter", per_key=10),
    max_per_key=2,
    rate=[Rate(100, per=60.0), Rate(9000, per=timedelta(minutes=1), of="weight")],
    rate_per_key=Rate(1, 2.0, burst=1),
    prefetch=3,
    max_callbacks=4,
    retry=Retry(5, initial=timedelta(seconds=1), on=OSError, never=(KeyError, "ValueError")),
    on_dead_letter=on_dead_letter,
    on_empty=on_empty,
)
assert_type(reviews, Pool)
assert_type(mp.get_pool("pr-review"), Pool)
assert_type(mp.pools(), list[Pool])
webhooks = mp.pool("webhooks", lanes=8)
mp.pool("orders", ordered=True, queue=fifo(), retry=my_policy)
mp.pool("hot", queue=priority(aging=timedelta(minutes=1)), backpressure=ring_buffer(10))
mp.pool("first", queue="fifo")
unnamed = mp.pool()
mp.pool("newest", queue=lifo(), backpressure=fail_fast(), retry=Retry.never())

mp.pool("x", 5)  # type: ignore[call-arg]
mp.pool("x", max_concurrent="5")  # type: ignore[arg-type]
mp.pool("x", queue="random")  # type: ignore[arg-type]
mp.pool("x", backpressure=1000)  # type: ignore[arg-type]
mp.pool("x", rate=100)  # type: ignore[arg-type]
mp.pool("x", retry=3)  # type: ignore[arg-type]
mp.pool("x", colour="red")  # type: ignore[call-arg]
mp.pool("x", on_empty=on_dead_letter)  # type: ignore[arg-type]


# Registering


async def charge() -> int:
    return 3


@mp.task
async def plain(number: int) -> list[str]:
    return [str(number)]


@reviews.task(key="tenant_id", timeout=300, retry=Retry.constant(1.0), aliases=["check"])
async def review(pr: int, tenant_id: str) -> Report:
    return Report()


@reviews.task
async def fetch(ctx: Context, url: str, *, depth: int = 0) -> bytes:
    assert_type(ctx.task_id, int)
    assert_type(ctx.is_retry, bool)
    assert_type(ctx.deadline, float | None)
    assert_type(ctx.cancelled, asyncio.Event)
    assert_type(ctx.lease_lost, asyncio.Event)
    assert_type(ctx.labels, dict[str, str])
    assert_type(await ctx.submit(plain.bind(3), priority=2, pool=webhooks), Handle[list[str]])
    assert_type(await ctx.submit_many([plain.bind(3)]), list[Handle[list[str]]])
    assert_type(await ctx.once("charge", charge), int)
    await ctx.progress(0.5, "halfway")
    await ctx.progress("half")  # type: ignore[arg-type]
    await ctx.submit(plain.bind("3"))  # type: ignore[arg-type]
    await ctx.submit(plain.bind(3), colour="red")  # type: ignore[call-arg]
    return url.encode()


@reviews.task
def crunch(ctx: SyncContext, size: int) -> float:
    assert_type(ctx.cancelled, bool)
    assert_type(ctx.lease_lost, bool)
    assert_type(ctx.submit(plain.bind(3)), Handle[list[str]])
    assert_type(ctx.once("weigh", lambda: 3), int)
    ctx.progress(0.5)
    return float(size)


@reviews.task(executor="process", priority=3)
def grind(size: int) -> int:
    return size


@reviews.task
async def hello() -> str:
    return "hello"


@mp.task
async def notify(outcome: Outcome, channel: str) -> None:
    assert_type(outcome.ok, bool)
    assert_type(outcome.error, ErrorInfo | None)


@mp.task(name="page-on-call")
async def page(ctx: Context, outcome: Outcome, *, loudly: bool = False) -> None:
    assert_type(outcome.status, str)


@mp.task
def note(outcome: Outcome, path: str) -> None:
    assert_type(outcome.attempts, int)


@mp.task(key=lambda name, size: f"{name}-{size}")
async def build(name: str, size: int) -> None:
    raise GiveUp(name) if size else RetryLater(timedelta(seconds=3), spend=False)


mp.task(executor="fork")  # type: ignore[call-overload]
mp.task(colour="red")  # type: ignore[call-overload]
mp.task(3)  # type: ignore[call-overload]


async def called_directly() -> None:
    assert_type(await plain(3), list[str])
    assert_type(await review(3, "acme"), Report)
    assert_type(grind(3), int)
    await review(3)  # type: ignore[call-arg]
    await review("3", "acme")  # type: ignore[arg-type]


def bound() -> None:
    assert_type(review.bind(1984, "acme"), BoundCall[Report])
    assert_type(review.bind(pr=1984, tenant_id="acme"), BoundCall[Report])
    assert_type(fetch.bind("https://a.example", depth=3), BoundCall[bytes])
    assert_type(crunch.bind(3), BoundCall[float])
    assert_type(notify.bind(channel="#ops"), BoundCall[None])
    assert_type(page.bind(loudly=True), BoundCall[None])
    assert_type(note.bind("log"), BoundCall[None])
    assert_type(review.bind(3, "a").options(priority=3).options(delay=1), BoundCall[Report])
    assert_type(review.options(priority=10).bind(3, "a"), BoundCall[Report])
    assert_type(plain.name, str)
    review.bind("1984", "acme")  # type: ignore[arg-type]
    review.bind(1984)  # type: ignore[call-arg]
    review.bind(1984, "acme", 3)  # type: ignore[call-arg]
    review.bind(1984, tenant="acme")  # type: ignore[call-arg]
    fetch.bind(Context(None), "https://a.example")  # type: ignore[call-arg,arg-type]
    crunch.bind("3")  # type: ignore[arg-type]
    notify.bind()  # type: ignore[call-arg]
    notify.bind(channel=3)  # type: ignore[arg-type]
    review.bind(3, "a").options(colour="red")  # type: ignore[call-arg]
    review.options(priority="high")  # type: ignore[arg-type]


# Batch tasks


@reviews.batch_task(size=64, linger=timedelta(milliseconds=50))
async def embed(texts: list[str]) -> list[float | Failed]:
    return [Failed("empty") if not text else float(len(text)) for text in texts]


@reviews.batch_task()
async def lengths(ctx: Context, texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


@reviews.batch_task(key=str)
def upper(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


@reviews.batch_task()
def halves(ctx: SyncContext, numbers: list[int]) -> list[float]:
    return [number / 2 for number in numbers]


async def batches() -> None:
    assert_type(await embed.submit("hello"), Handle[float])
    assert_type(await lengths.submit("hello"), Handle[int])
    assert_type(await upper.submit("hello"), Handle[str])
    assert_type(await halves.submit(3), Handle[float])
    assert_type(await embed(["hello"]), list[float | Failed])
    await embed.submit(["hello"])  # type: ignore[arg-type]
    await embed.submit(3)  # type: ignore[arg-type]
    reviews.batch_task(size="64")  # type: ignore[arg-type]


# Submitting


async def work() -> bytes:
    return b""


def count() -> int:
    return 3


@mp.task
async def with_defaults(number: int, base: int = 10, *, prefix: str = "") -> bytes:
    return b""


@mp.task
async def all_defaults(number: int = 3) -> bytes:
    return b""


async def submit() -> None:
    assert_type(await review.submit(1984, "acme"), Handle[Report])
    assert_type(await review.options(priority=10).submit(1984, "acme"), Handle[Report])
    assert_type(await reviews.submit(review.bind(1984, "acme")), Handle[Report])
    assert_type(
        await reviews.submit(
            review.bind(1984, "acme"),
            wait=timedelta(seconds=3),
            priority=10,
            key="acme",
            labels={"team": "core"},
            idempotency_key="review-pr-1984",
            dedupe="inflight",
            delay=1.5,
            expires_in=timedelta(hours=1),
            timeout=60,
            retry=Retry.linear(1.0),
            on_complete=notify.bind(channel="#ops"),
            weight=3,
            submitted_by="me",
        ),
        Handle[Report],
    )
    await reviews.submit(plain.bind(3), run_at=datetime.now(UTC))
    assert_type(await reviews.submit(hello), Handle[str])
    assert_type(await reviews.submit(work), Handle[bytes])
    assert_type(await reviews.submit(lambda: 3), Handle[int])
    assert_type(await reviews.submit(lambda: plain(3)), Handle[list[str]])
    await reviews.submit(review)  # type: ignore[arg-type]
    await reviews.submit(work())  # type: ignore[call-overload]
    await reviews.submit(3)  # type: ignore[call-overload]
    await reviews.submit(review.bind(1984, "acme"), colour="red")  # type: ignore[call-overload]
    await reviews.submit(review.bind(1984, "acme"), priority="high")  # type: ignore[call-overload]
    await reviews.submit(review.bind(1, "a"), dedupe="sometimes")  # type: ignore[call-overload]
    await reviews.submit(review.bind(1, "a"), labels={"team": 3})  # type: ignore[dict-item]
    await reviews.submit(review.bind(1, "a"), on_complete=notify)  # type: ignore[call-overload]
    await review.submit("1984", "acme")  # type: ignore[arg-type]
    await review.submit(1984, "acme", priority=10)  # type: ignore[call-arg]


async def submit_many(batch: list[tuple[int, str]]) -> None:
    calls = (review.bind(n, t).options(idempotency_key=f"pr-{n}") for n, t in batch)
    assert_type(await reviews.submit_many(calls, wait=3), list[Handle[Report]])
    assert_type(await reviews.submit_many(plain.each([1, 2]), priority=3), list[Handle[list[str]]])
    assert_type(
        await reviews.submit_many(plain.options(key="a").each([1])), list[Handle[list[str]]]
    )
    await reviews.submit_many([3])  # type: ignore[arg-type]
    await reviews.submit_many(plain.bind(3))  # type: ignore[call-overload]
    await reviews.submit_many([plain.bind(3)], colour="red")  # type: ignore[call-overload]
    assert_type(await reviews.submit_many([count, count]), list[Handle[int]])


async def try_submit() -> None:
    answer = await reviews.try_submit(review.bind(1984, "acme"), priority=3)
    assert_type(answer, Handle[Report] | SubmitRejection)
    if answer:
        assert_type(answer, Handle[Report])
    else:
        assert_type(answer, SubmitRejection)
        assert_type(answer.depth, int | None)
    match await reviews.try_submit(work):
        case SubmitRejection(reason=reason):
            assert_type(reason, Reason)
        case handle:
            assert_type(handle, Handle[bytes])
    match await reviews.try_submit(work):
        case Rejection() as rejection:
            assert_type(rejection.reason, Reason)
        case handle:
            assert_type(handle, Handle[bytes])


# Handles


async def handles(handle: Handle[Report]) -> None:
    assert_type(await handle, Report)
    assert_type(await handle.wait(timeout=timedelta(seconds=3)), Handle[Report])
    assert_type(await handle.refresh(), Handle[Report])
    assert_type(handle.result, Report | None)
    assert_type(handle.error, ErrorInfo | None)
    assert_type(handle.status, Status)
    assert_type(handle.id, int)
    assert_type(handle.position, int | None)
    assert_type(handle.rejection_reason, Reason | None)
    assert_type(handle.duplicate, bool)
    assert_type(await handle.cancel(mode="interrupt"), bool)
    assert_type(handle.progress(), AsyncIterator[tuple[float, str]])
    await handle.cancel(mode="kindly")  # type: ignore[arg-type]
    handle.status = Status.COMPLETED  # type: ignore[misc]
    try:
        await handle
    except TaskFailed as error:
        assert_type(error.error_type, str)
        assert_type(error.attempts, int)


def widened(handle: Handle[bool]) -> Handle[int]:
    return handle


def narrowed(handle: Handle[int]) -> Handle[bool]:
    return handle  # type: ignore[return-value]


async def many_handles(first: Handle[int], second: Handle[int]) -> None:
    assert_type(await mp.wait([first, second], timeout=3), list[Handle[int]])
    async for one in mp.as_completed([first, second]):
        assert_type(one, Handle[int])
    assert_type(await mp.handle(3), Handle[Any])
    assert_type(await mp.handle(3, of=review), Handle[Report])
    assert_type(mp.handle(3, of=fetch), Awaitable[Handle[bytes]])
    assert_type(await mp.status([3, 4]), list[str])
    assert_type(await mp.cancel(3), bool)
    assert_type(await mp.why(3), str)
    await mp.handle("3")  # type: ignore[call-overload]
    await mp.handle(3, of=work)  # type: ignore[call-overload]


# Runs, map and stream


async def runs() -> None:
    seed = [fetch.bind("https://a.example")]
    report = await reviews.drain(
        seed, run="crawl", on_error="fail", max_tasks=100, progress=True, timeout=60
    )
    assert_type(report, RunReport)
    assert_type(report.ok, bool)
    assert_type(await reviews.drain(), RunReport)
    assert_type(await reviews.report("crawl"), RunReport | None)
    assert_type(reviews.sync.report("crawl"), RunReport | None)
    async with reviews.run("nightly", max_tasks=100) as run:
        assert_type(run, Run)
        assert_type(await run.submit(review.bind(3, "acme"), priority=3), Handle[Report])
        assert_type(await run.submit_many(plain.each([1, 2])), list[Handle[list[str]]])
    assert_type(run.report, RunReport | None)
    async with reviews.stream(seed, run="crawl") as outcomes:
        assert_type(outcomes, Stream)
        async for outcome in outcomes:
            assert_type(outcome, Outcome)
    await reviews.drain(fetch.bind("https://a.example"))  # type: ignore[arg-type]
    await reviews.drain(seed, on_error="retry")  # type: ignore[arg-type]
    await reviews.drain(seed, "crawl")  # type: ignore[call-arg]
    reviews.run("nightly", colour="red")  # type: ignore[call-arg]


async def numbers() -> AsyncIterator[int]:
    yield 3


async def halve(number: int) -> float:
    return number / 2


def name_of(number: int) -> str:
    return str(number)


async def maps() -> None:
    assert_type(await reviews.map(plain, [1, 2]), list[list[str]])
    assert_type(await reviews.map(plain.options(priority=3), [1, 2]), list[list[str]])
    assert_type(await reviews.map(halve, range(3)), list[float])
    assert_type(await reviews.map(name_of, numbers(), priority=3), list[str])
    assert_type(reviews.map(halve, [1]), Mapped[float])
    assert_type(await reviews.map(with_defaults, [1, 2]), list[bytes])
    assert_type(await reviews.map(with_defaults.options(priority=3), [1]), list[bytes])
    assert_type(await reviews.submit(all_defaults), Handle[bytes])
    assert_type(reviews.sync.map(with_defaults, [1, 2]).get(), list[bytes])
    await reviews.map(with_defaults, ["1"])  # type: ignore[arg-type]
    await reviews.submit(with_defaults)  # type: ignore[arg-type]
    async for result in reviews.map(halve, numbers()):
        assert_type(result, float)
    await reviews.map(halve, ["1"])  # type: ignore[arg-type]
    await reviews.map(plain, ["1"])  # type: ignore[arg-type]
    await reviews.map(halve, 3)  # type: ignore[call-overload]
    await reviews.map(review, [1])  # type: ignore[arg-type]


# Control, and looking


async def control(handle: Handle[int]) -> None:
    await reviews.pause(key="acme")
    await webhooks.resume(lane=3)
    assert_type(await reviews.resize(3, revision=7), int)
    assert_type(await reviews.purge(), int)
    assert_type(await reviews.cancel(3, mode="interrupt"), bool)
    assert_type(await reviews.cancel_all(before=3.0, key="acme"), int)
    assert_type(await reviews.redrive([3, handle]), int)
    await reviews.close()
    await reviews.pause("acme")  # type: ignore[call-arg]
    await reviews.redrive(3)  # type: ignore[arg-type]
    await reviews.resize("3")  # type: ignore[arg-type]


def watch(happened: Observed) -> None:
    assert_type(happened.task_id, int | None)


async def looking() -> None:
    assert_type(await reviews.size(), int)
    snapshot = await reviews.snapshot()
    assert_type(snapshot, Snapshot)
    assert_type(snapshot.waits, Quantiles)
    snapshot.running = 3  # type: ignore[misc]
    assert_type(await reviews.tasks(status="failed", limit=10), list[TaskInfo])
    assert_type(await webhooks.lanes(), list[LaneStatus])
    assert_type(await mp.unsettled(), list[TaskInfo])
    async for record in mp.audit(reviews):
        assert_type(record, Record)
    stop = mp.observe(watch)
    stop()
    async with mp as same:
        assert_type(same, Millpond)
        async with mp.worker([reviews, "webhooks"], concurrency=3, grace=1.0) as worker:
            assert_type(worker, Worker)


def scheduling() -> None:
    schedule = mp.cron("daily", "0 9 * * *", tz="Europe/Berlin", task=review.bind(1, "acme"))
    assert_type(schedule, Schedule)
    assert_type(schedule.sync, SyncSchedule)
    mp.cron("often", every=timedelta(minutes=5), emits="tick", missed="all")
    mp.cron("daily", "@daily", task=review)  # type: ignore[arg-type]
    mp.cron("daily", "@daily", missed="never")  # type: ignore[arg-type]


def takes_any_task(task: TaskFunction[..., object, Any]) -> str:
    return task.name


takes_any_task(review)
takes_any_task(embed)
takes_any_task(work)  # type: ignore[arg-type]
