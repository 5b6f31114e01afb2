"""A program that uses a process pool, for tests that kill it or look at its output.

`parent.py DEED` runs one handler, prints the pids its child sends, and waits to be killed. With
FORK=1 it also forks; the pid of the fork is printed first. The fork holds the same descriptors.
"""

import asyncio
import functools
import os
import sys
import threading
import warnings

from tests.waiting import for_ever, never_ends

from millpond.runtime.executors.processes.process_pool import ProcessPool
from millpond.runtime.executors.processes.protocol import Errand

say = functools.partial(print, flush=True)


def shout(payload: bytes) -> bytes:
    """Print from a handler that lives in the main module."""
    sys.stdout.write(f"shouted {payload.decode()}\n")
    return os.fsencode(__name__)


async def main(deed: str) -> None:
    """Start the deed and print the first message of its child."""
    pool = ProcessPool(2)
    if deed == "shout":
        for word in (b"once", b"twice"):
            say("answer", await pool.run(Errand(module="__main__", qualname=deed, payload=word)))
        await pool.close()
        return
    if deed == "starting":
        job = Errand(module="tests.runtime.handlers", qualname="sleeping", payload=b"")
        asyncio.get_running_loop().call_soon(lambda: say(*(child.pid for child in pool.children)))
        await pool.run(job)

    def print_pids(pids: bytes) -> None:
        with warnings.catch_warnings():
            # From Python 3.12 on fork() warns about threads; this child does not use them.
            warnings.simplefilter("ignore", DeprecationWarning)
            fork = os.fork() if "FORK" in os.environ else None
        if fork == 0:
            for_ever()
        say(*([fork] if fork else []), pids.decode())

    await pool.run(
        Errand(module="tests.runtime.handlers", qualname=deed, payload=b""), on_message=print_pids
    )
    await never_ends()


if __name__ == "__main__":
    # The worker of a pool has more threads than one, and they do not end all at once.
    for _ in range(4):
        threading.Thread(target=for_ever, daemon=True).start()
    asyncio.run(main(sys.argv[1]))
