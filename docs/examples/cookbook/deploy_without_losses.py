"""A deploy: the old worker stops, gives its task back uncharged, and the new one runs it."""

import asyncio
import signal
import sys
from pathlib import Path

from millpond import Context, Millpond

mp = Millpond("sqlite:///jobs.db")
jobs = mp.pool("jobs", max_concurrent=4)
STARTED = Path("started.txt")


@jobs.task
async def render(ctx: Context, page: str) -> str:
    if not STARTED.exists():
        STARTED.write_text(page)
        await asyncio.sleep(60)  # longer than the old worker may take to stop
    return f"{page} rendered at attempt {ctx.attempt}"


async def start_a_worker(*options: str) -> asyncio.subprocess.Process:
    command = ["-m", "millpond", "worker", f"{Path(__file__).stem}:mp", *options]
    quiet = asyncio.subprocess.DEVNULL
    here = {"PYTHONPATH": str(Path(__file__).parent)}
    return await asyncio.create_subprocess_exec(sys.executable, *command, stderr=quiet, env=here)


async def main() -> None:
    async with mp:
        handle = await render.submit("index.html")
        old = await start_a_worker("--grace", "0.2")
        while not STARTED.exists():
            await asyncio.sleep(0.02)

        new = await start_a_worker()  # first the new one, then the signal to the old one
        old.send_signal(signal.SIGTERM)
        assert await old.wait() == 0
        print(await handle)
        assert handle.attempt == 1  # the interrupted run was given back, and not charged

        new.send_signal(signal.SIGTERM)
        await new.wait()


if __name__ == "__main__":
    asyncio.run(main())
