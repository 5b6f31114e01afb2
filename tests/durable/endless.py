"""A process that runs what never ends by itself, and says when it begins and when it is stopped."""

import asyncio
import sys

from tests.waiting import never_ends

from millpond import Millpond


def make(url: str, lease: float, *, work: bool) -> Millpond:
    """Return the application as it is in every process."""
    mp = Millpond(url, lease=lease, work=work)

    @mp.pool("jobs").task
    async def endless() -> None:
        say("begun")
        try:
            await never_ends()
        finally:
            say("stopped")

    return mp


def say(word: str) -> None:
    """Print a word for the process that started this one."""
    print(word, flush=True)  # noqa: T201


async def main(url: str, lease: float) -> None:
    """Work until killed."""
    async with make(url, lease, work=True):
        await never_ends()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
