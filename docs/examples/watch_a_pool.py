"""Watch a pool: counts, reasons, audit records, and what is left to do."""

import asyncio
from collections import Counter

from millpond import Millpond, Observed, Outcome, Retry

mp = Millpond()
jobs = mp.pool("jobs", max_concurrent=2, max_per_key=1, retry=Retry(attempts=2, initial=0.01))
seen: Counter[str] = Counter()
notified: list[str] = []


@jobs.task(key="tenant")
async def work(tenant: str, *, fail: bool = False) -> str:
    await asyncio.sleep(0.005)
    if fail:
        raise ConnectionError("no answer")
    return tenant


@mp.task
async def notify(outcome: Outcome, channel: str) -> None:
    notified.append(f"{channel}: {outcome.function} {outcome.status}")


def observer(happened: Observed) -> None:
    seen[happened.kind] += 1


async def counts_and_reasons() -> None:
    *_, last = [await work.submit("acme") for _ in range(3)]
    await work.options(delay=60).submit("bolt")

    snapshot = await jobs.snapshot()
    print(snapshot.state, snapshot.running, snapshot.queued, snapshot.scheduled)
    assert (snapshot.running, snapshot.queued, snapshot.scheduled) == (1, 3, 1)

    why = await mp.why(last.id)
    print(why)
    assert why == "key acme at 1/1; 1 ahead"

    for task in await mp.unsettled():
        print(task.function, task.status, task.key)
    assert await last == "acme"
    await jobs.purge()

    snapshot = await jobs.snapshot()
    print(f"half waited less than {snapshot.waits.p50:.3f} s, ran {snapshot.run_times.p50:.3f} s")


async def what_happened() -> None:
    stop = mp.observe(observer)
    call = work.bind("cara", fail=True).options(on_complete=notify.bind("#ops"))
    handle = await jobs.submit(call)
    await handle.wait()
    await jobs.drain()  # callbacks too
    stop()
    print(dict(seen), notified)
    assert seen == {"retry": 1, "failed": 1, "completed": 1}  # the callback is the completed one

    async for record in mp.audit(jobs):
        if record.task == handle.id:
            print(record.kind, record.event, record.before, "->", record.after, record.attempt)


async def main() -> None:
    async with mp:
        await counts_and_reasons()
        await what_happened()
    print(mp.counts)


asyncio.run(main())
