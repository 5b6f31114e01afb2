"""The workpool: a limit on parallelism, a callback for every outcome, and the loop's states."""

import asyncio

from millpond import Context, Millpond, Outcome, Retry

mp = Millpond("sqlite:///work.db", work=True)
work = mp.pool("work", max_concurrent=2, retry=Retry(attempts=2, initial=0.01))
go = asyncio.Event()
ends: dict[str, str] = {}


@work.task
async def act(ctx: Context, name: str) -> str:
    if name == "broken":
        raise ConnectionError(name)
    await go.wait()
    return name.upper()


@mp.task
async def ended(outcome: Outcome, name: str) -> None:
    """Called for success, failure and cancel; stored in the transaction that ended the task."""
    ends[name] = outcome.status


async def enqueue(name: str, delay: float = 0.0) -> int:
    call = act.bind(name).options(on_complete=ended.bind(name), delay=delay)
    return (await work.submit(call)).id


async def state() -> str:
    return (await work.snapshot()).state


async def until(wanted: str) -> None:
    async with asyncio.timeout(10):
        while await state() != wanted:
            await asyncio.sleep(0.005)


async def main() -> None:
    async with mp:
        await until("idle")  # nothing to do: the loop sleeps, and asks for nothing
        await enqueue("one")
        await enqueue("two")
        waiting = await enqueue("three")
        await until("saturated")  # both slots are taken; a further submit wakes no loop

        assert await work.cancel(waiting)  # a waiting task ends at once
        assert await mp.status([waiting]) == ["cancelled"]
        go.set()
        await enqueue("broken")
        later = await enqueue("later", delay=3600)
        await until("scheduled")  # the loop sleeps until the next task is due
        assert await work.cancel(later)
        await work.drain()  # callbacks included
    print(ends)
    assert ends == {
        "one": "completed",
        "two": "completed",
        "three": "cancelled",
        "broken": "failed",
        "later": "cancelled",
    }


if __name__ == "__main__":
    asyncio.run(main())
