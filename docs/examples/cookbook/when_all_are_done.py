"""When all tasks of a batch have ended, run one more: also if this process dies before that."""

import asyncio

from millpond import Context, Millpond, Retry, RunOutcome

mp = Millpond("sqlite:///imports.db", work=True)
imports = mp.pool("imports", max_concurrent=4, retry=Retry.never())
mails: list[str] = []


@imports.task
async def load(ctx: Context, name: str, depth: int = 0) -> int:
    """Load a file; a folder submits its files into the same batch."""
    if name.endswith("/") and depth < 2:
        await ctx.submit_many(load.bind(f"{name}{n}", depth + 1) for n in range(3))
    return 1


@imports.task
async def notify(outcome: RunOutcome, to: str) -> None:
    mails.append(f"{to}: {outcome.name}, {outcome.completed} loaded, {outcome.failed} failed")


async def load_all(batch: str, names: list[str]) -> int:
    """Store the batch and its callback in one transaction; return how many tasks are new."""
    calls = load.each(names)
    return len(await imports.when_all(calls, then=notify.bind("ada"), run=batch))


async def main() -> None:
    async with mp:
        assert await load_all("monday", ["a.csv", "b.csv", "more/"]) == 3
        assert await load_all("monday", ["a.csv", "b.csv", "more/"]) == 0  # it is known by its name
        await imports.drain()  # callbacks too; without it a worker does the same
    print(mails)
    assert mails == ["ada: monday, 6 loaded, 0 failed"]  # two files, a folder and its three files


if __name__ == "__main__":
    asyncio.run(main())
