"""What a submit can say: later, only once, not too late; and what a handle answers."""

import asyncio

from millpond import Context, Millpond

mp = Millpond()
exports = mp.pool("exports", max_concurrent=2)


@exports.task
async def export(ctx: Context, month: str) -> str:
    for page in range(1, 4):
        await asyncio.sleep(0.01)  # the slow part
        await ctx.progress(page / 3, f"page {page}")
    return f"{month}.csv"


async def later() -> None:
    """Start after a delay; do not start at all if that takes more than a minute."""
    handle = await export.options(delay=0.1, expires_in=60.0).submit("june")
    print(handle.status, await handle)


async def once() -> None:
    """A second submit with the same key returns the first task."""
    first = await export.options(idempotency_key="july").submit("july")
    second = await export.options(idempotency_key="july").submit("july")
    print(second.duplicate, first.id == second.id)

    assert second.duplicate
    await first


async def newest() -> None:
    """Of the submits that wait under one key, the last one runs."""
    index = export.options(idempotency_key="index", dedupe="replace", delay=0.1)
    first = await index.submit("september")
    last = await index.submit("october")
    print(first.id == last.id, await last)


async def change() -> None:
    """Move a task, give it another month, and start it after all."""
    handle = await export.options(delay=3600).submit("november")
    await mp.reschedule(handle.id, delay=7200)  # or run_at=a datetime with a time zone
    await mp.update(handle.id, export.bind("december"), priority=5)
    await mp.run_now(handle.id)
    print(await handle)

    assert handle.result == "december.csv"


async def watch() -> None:
    """Follow the progress that the handler reports, then take the result."""
    handle = await export.submit("august")
    async for fraction, text in handle.progress():
        print(f"{fraction:.0%} {text}")
    print(await handle)


async def main() -> None:
    async with mp:
        await later()
        await once()
        await newest()
        await change()
        await watch()


asyncio.run(main())
