"""The public typing surface: checked by mypy, never run."""

import asyncio
from datetime import timedelta
from typing import Literal, assert_never, assert_type

from millpond import (
    Bulkhead,
    BulkheadRejected,
    Capacity,
    Handle,
    HookEvent,
    Leftover,
    Millpond,
    Permit,
    PermitRejection,
    Reason,
    RejectReason,
    Stats,
    SubmitRejection,
    adaptive,
)

llm = Bulkhead("llm", 10, max_queue=5, max_weight=1000)
Bulkhead("llm", adaptive(1, 50, initial=5), on_admit=lambda event: event.capacity)


async def call_model(prompt: str, tokens: int) -> list[str]:
    return [prompt] * tokens


def try_acquire() -> None:
    if permit := llm.try_acquire():
        assert_type(permit, Permit)
        permit.settle(3)
        permit.release(failed=True)
    else:
        assert_type(permit, PermitRejection)
        assert_type(permit.reason, RejectReason)
        assert_type(permit.capacity, Capacity)


async def acquire() -> None:
    match await llm.acquire(timeout=0.05, signal=asyncio.Event(), weight=3):
        case Permit() as permit:
            with permit as same:
                assert_type(same, Permit)
        case PermitRejection(reason=reason):
            assert_type(reason, RejectReason)
        case never:
            assert_never(never)


async def run() -> None:
    assert_type(await llm.run(call_model, "prompt", 3), list[str])
    assert_type(await llm.run(call_model, "prompt", 3, timeout=timedelta(seconds=1)), list[str])
    await llm.run(call_model, "prompt")  # type: ignore[arg-type]
    await llm.run(call_model, "prompt", "3")  # type: ignore[arg-type]
    await llm.run(call_model, "prompt", 3, retries=3)  # type: ignore[call-arg]
    await llm.run(len, "prompt")  # type: ignore[arg-type]


async def contexts() -> None:
    async with llm as nothing:
        assert_type(nothing, None)
    async with llm.permit(weight=1200, timeout=0.05) as permit:
        assert_type(permit, Permit)
    with llm.blocking(timeout=1) as permit:
        assert_type(permit, Permit)


async def reports() -> None:
    assert_type(llm.stats(), Stats)
    assert_type(llm.would_admit(weight=3), Literal[True] | PermitRejection)
    assert_type(await llm.drain(timeout=3), Leftover)
    assert_type(llm.resize(max_concurrent=3, revision=7), int)
    llm.stats().in_flight = 3  # type: ignore[misc]


def hook(event: HookEvent) -> None:
    assert_type(event.kind, Literal["admit", "reject", "release", "close"])
    assert_type(event.id, int | None)


def rejected(error: BulkheadRejected) -> str:
    return error.code + error.bulkhead + error.reason


mp = Millpond()
reviews = mp.pool("reviews")


@reviews.task(key="tenant")
async def review(number: int, tenant: str) -> list[str]:
    return [tenant] * number


async def try_submit() -> None:
    if answer := await reviews.try_submit(review.bind(3, "acme")):
        assert_type(answer, Handle[list[str]])
        assert_type(await answer, list[str])
    else:
        assert_type(answer, SubmitRejection)
        assert_type(answer.reason, Reason)


def unknown_names() -> None:
    from millpond import PolFull  # type: ignore[attr-defined]

    raise PolFull
