"""When all tasks of a batch have ended, run one more: also if this process dies in between."""

import asyncio

from millpond import Context, Millpond, Retry, RunReport

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
async def notify(batch: str, completed: int, failed: int) -> str:
    mails.append(batch)
    return f"{batch}: {completed} loaded, {failed} failed"


async def load_all(batch: str, names: list[str]) -> RunReport:
    """Wait for the batch and all it submits, then notify once; call it again after a crash."""
    report = await imports.drain(load.each(names), run=batch)
    done = notify.bind(batch, report.completed, report.failed)
    print(await (await imports.submit(done, idempotency_key=f"done:{batch}")))
    return report


async def main() -> None:
    async with mp:
        first = await load_all("monday", ["a.csv", "b.csv", "more/"])
        assert first.total == 6  # two files, a folder and its three files
        again = await load_all("monday", ["a.csv", "b.csv", "more/"])
        assert again.finished_before  # nothing was loaded again
        assert mails == ["monday"]  # and the mail was sent once


if __name__ == "__main__":
    asyncio.run(main())
