"""The typing surface for threads: checked by mypy, never run."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, assert_type

from millpond import (
    Context,
    Millpond,
    RunReport,
    SubmitRejection,
    SyncHandle,
    SyncMillpond,
    SyncPool,
)
from millpond.pool.map import SyncMapped
from millpond.pool.outcome import Outcome
from millpond.pool.runs.run import SyncRun
from millpond.pool.runs.stream import SyncStream
from millpond.runtime.worker.worker import Worker

mp = Millpond()
pool = mp.pool("work", max_concurrent=4)


@pool.task
def double(n: int) -> int:
    return 2 * n


@pool.task
async def text(ctx: Context, n: int, times: int = 1) -> str:
    return str(n) * times


async def answer() -> bytes:
    return b""


def life() -> None:
    assert_type(mp.sync, SyncMillpond)
    with mp.sync as sync:
        assert_type(sync, SyncMillpond)
        assert_type(sync.get_pool("work"), SyncPool)
        assert_type(sync.pool("other", max_concurrent=3), SyncPool)
        assert_type(sync.pools(), list[SyncPool])
        with sync.worker([pool, "work"], concurrency=3) as worker:
            assert_type(worker, Worker)


def submit() -> None:
    assert_type(pool.sync, SyncPool)
    assert_type(double.sync.submit(3), SyncHandle[int])
    assert_type(text.sync.submit(3, times=4), SyncHandle[str])
    assert_type(text.options(priority=3).sync.submit(3), SyncHandle[str])
    assert_type(pool.sync.submit(double.bind(3)), SyncHandle[int])
    assert_type(pool.sync.submit(text.bind(3), priority=3, wait=1.0), SyncHandle[str])
    assert_type(pool.sync.submit(answer), SyncHandle[bytes])
    assert_type(pool.sync.submit(lambda: 3.0), SyncHandle[float])
    assert_type(pool.sync.submit_many(double.each([1, 2])), list[SyncHandle[int]])
    assert_type(pool.sync.try_submit(double.bind(3)), SyncHandle[int] | SubmitRejection)
    double.sync.submit("3")  # type: ignore[arg-type]
    text.sync.submit(3, colour="red")  # type: ignore[call-arg]
    pool.sync.submit(double.bind(3), colour="red")  # type: ignore[call-overload]
    pool.sync.submit(3)  # type: ignore[call-overload]


def handles(handle: SyncHandle[int]) -> None:
    assert_type(handle.get(), int)
    assert_type(handle.get(timeout=timedelta(seconds=3)), int)
    assert_type(handle.wait(3.0), SyncHandle[int])
    assert_type(handle.refresh(), SyncHandle[int])
    assert_type(handle.result, int | None)
    assert_type(handle.cancel("interrupt"), bool)
    assert_type(handle.progress(), Iterator[tuple[float, str]])
    handle.cancel("kindly")  # type: ignore[arg-type]
    handle.status = "completed"  # type: ignore[misc,assignment]
    for one in mp.sync.as_completed([handle]):
        assert_type(one, SyncHandle[int])
    assert_type(mp.sync.wait([handle], timeout=3), list[SyncHandle[int]])
    assert_type(mp.sync.handle(3), SyncHandle[Any])
    assert_type(mp.sync.handle(3, of=text), SyncHandle[str])


def many() -> None:
    assert_type(pool.sync.map(double, [1, 2]), SyncMapped[int])
    assert_type(pool.sync.map(double, [1, 2]).get(), list[int])
    assert_type(pool.sync.drain([double.bind(3)], run="x", timeout=3), RunReport)
    with pool.sync.run("nightly") as run:
        assert_type(run, SyncRun)
        assert_type(run.submit(double.bind(3)), SyncHandle[int])
    with pool.sync.stream([double.bind(3)]) as outcomes:
        assert_type(outcomes, SyncStream)
        for outcome in outcomes:
            assert_type(outcome, Outcome)
    assert_type(pool.sync.purge(key="k"), int)
    assert_type(pool.sync.size(), int)
