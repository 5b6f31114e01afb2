"""One more process that calls the model, for the pool that all of them share."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from docs.examples.llm_gateway.gateway import Gateway
from docs.examples.llm_gateway.limits import Limits
from docs.examples.llm_gateway.wire import HttpModel


@asynccontextmanager
async def workers(count: int, url: str, port: int, limits: Limits) -> AsyncIterator[None]:
    """Run so many of them, and let them end in good order."""
    given = (sys.executable, "-m", __name__, url, str(port), json.dumps(limits.plain()))
    pipe = asyncio.subprocess.PIPE
    fleet = [
        await asyncio.create_subprocess_exec(*given, stdin=pipe, stdout=pipe) for _ in range(count)
    ]
    try:
        for process in fleet:
            assert process.stdout is not None
            await process.stdout.readline()
        yield
    finally:
        for process in fleet:
            await process.communicate(b"")


async def main(url: str, port: int, limits: Limits) -> None:
    """Work until the process that asked for it is gone."""
    model = HttpModel(port)
    gateway = Gateway(url, model, limits)
    async with gateway.mp, gateway.mp.worker():
        print("up", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    model.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Limits(**json.loads(sys.argv[3]))))
