"""The bulkhead: a hard limit, a bounded wait, and a refusal with a reason instead of latency."""

import asyncio
from collections import Counter

from millpond import Bulkhead, BulkheadRejected, HookEvent, Permit, PermitRejection

metrics: Counter[str] = Counter()


def count(event: HookEvent) -> None:
    metrics[f"{event.kind} {event.reason or ''}".strip()] += 1


async def do_work() -> str:
    await asyncio.sleep(0.01)
    return "done"


async def by_hand(bulkhead: Bulkhead) -> str:
    match await bulkhead.acquire():
        case Permit() as permit:
            try:
                return await do_work()
            finally:
                permit.release()  # exactly once; `with permit:` does it for you
        case PermitRejection(reason=reason):
            return f"503: {reason}"


async def at_the_limit() -> None:
    strict = Bulkhead("strict", 10, on_admit=count, on_reject=count)  # no queue: it fails fast
    answers = await asyncio.gather(*(by_hand(strict) for _ in range(12)))
    assert answers == ["done"] * 10 + ["503: concurrency_limit"] * 2
    assert metrics == {"admit": 10, "reject concurrency_limit": 2}


async def with_a_queue() -> None:
    queued = Bulkhead("queued", 1, max_queue=2)
    first = asyncio.create_task(queued.run(do_work))
    await asyncio.sleep(0)
    try:
        await queued.run(do_work, timeout=0.001)  # how long it may wait, not how long it may run
    except BulkheadRejected as late:
        print(late.reason)

    abort = asyncio.Event()
    waiter = asyncio.create_task(queued.run(do_work, signal=abort))
    await asyncio.sleep(0)
    abort.set()
    try:
        await waiter
    except BulkheadRejected as aborted:
        print(aborted.reason)
    assert await first == "done"
    assert queued.stats().pending == 0


async def shut_down() -> None:
    last = Bulkhead("last", 1, max_queue=5)
    running = asyncio.create_task(last.run(do_work))
    waiting = asyncio.create_task(last.run(do_work))
    await asyncio.sleep(0)
    last.close()  # refuses those who wait and all who come; the running call goes on
    await last.drain()
    assert await running == "done"
    try:
        await waiting
    except BulkheadRejected as refused:
        print(refused.reason)
    stats = last.stats()
    assert (stats.admitted, stats.released, stats.rejected) == (1, 1, 1)
    assert (stats.in_flight, stats.underflow) == (0, 0)


async def main() -> None:
    await at_the_limit()
    await with_a_queue()
    await shut_down()


if __name__ == "__main__":
    asyncio.run(main())
