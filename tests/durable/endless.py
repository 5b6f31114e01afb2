"""A process that runs what never ends by itself, and says when it begins and when it is stopped."""

import asyncio
import sys
from pathlib import Path

from millpond import Millpond


def make(path: Path, lease: float, *, work: bool) -> Millpond:
    """Return the application as it is in every process."""
    mp = Millpond(f"sqlite:///{path}", lease=lease, work=work)

    @mp.pool("jobs").task
    async def endless() -> None:
        say("begun")
        try:
            await asyncio.sleep(3600)
        finally:
            say("stopped")

    return mp


def say(word: str) -> None:
    """Tell the one who started this."""
    print(word, flush=True)  # noqa: T201


async def main(path: Path, lease: float) -> None:
    """Work until killed."""
    async with make(path, lease, work=True):
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
