"""A worker is killed with kill -9 while it runs a task: another one runs it again, at once."""

import asyncio
import signal
import sys
import time
from pathlib import Path

from millpond import Context, Millpond

mp = Millpond("sqlite:///jobs.db")
jobs = mp.pool("jobs", max_concurrent=4)
STARTED = Path("started.txt")


@jobs.task
async def import_file(ctx: Context, name: str) -> str:
    if ctx.attempt == 1:
        STARTED.write_text(name)
        await asyncio.sleep(60)  # the process dies in here
    return f"{name} imported at attempt {ctx.attempt}"


async def start_a_worker() -> asyncio.subprocess.Process:
    command = ["-m", "millpond", "worker", f"{Path(__file__).stem}:mp"]
    quiet = asyncio.subprocess.DEVNULL
    here = {"PYTHONPATH": str(Path(__file__).parent)}
    return await asyncio.create_subprocess_exec(sys.executable, *command, stderr=quiet, env=here)


async def main() -> None:
    async with mp:
        handle = await import_file.submit("orders.csv")
        worker = await start_a_worker()
        while not STARTED.exists():
            await asyncio.sleep(0.02)

        worker.send_signal(signal.SIGKILL)
        await worker.wait()
        died = time.monotonic()

        async with mp.worker():
            print(await handle)
        print(f"recovered in {time.monotonic() - died:.1f} s; a lease lasts 30 s")
        assert handle.attempt == 2
        assert time.monotonic() - died < 10


if __name__ == "__main__":
    asyncio.run(main())
