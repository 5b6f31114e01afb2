"""An application for workers of real processes: it brings a store, and the work to be done.

It prints what happens, one word and a task a line, so that a test can wait for it.
"""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millpond import Context, Millpond, Rate, Retry
from millpond.pool.internals import internals_of
from millpond.store.memory import MemoryStore


def report(*words: object) -> None:
    """Print a line at once."""
    print(*words, flush=True)  # noqa: T201


@asynccontextmanager
async def work() -> AsyncIterator[None]:
    """Submit the tasks that SHOP_WORK names, and print each task's status at the end."""
    report("threads", threading.active_count())
    named = os.environ.get("SHOP_WORK", "").split()
    for name in named:
        await mp.tasks[name].submit()
    try:
        yield
    finally:
        for task in await mp.unsettled():
            report("left", task.function, task.status, task.attempt, task.runs)


mp = Millpond(resources=work)
internals_of(mp).owner.make_store = lambda: MemoryStore(clock=time.time)
jobs = mp.pool("jobs", max_concurrent=4)
other = mp.pool("other")
paced = mp.pool("paced", rate=Rate(1, per=0.3))


@jobs.task
async def quick() -> None:
    """End at once."""
    report("quick", "done")


@jobs.task(retry=Retry.never())
async def broken() -> None:
    """Fail for good."""
    raise ValueError("no \x1b[31mcolours\x1b[0m")


@jobs.task(retry=Retry.constant(3600.0, attempts=2))
async def again() -> None:
    """Fail, to be tried again in an hour."""
    raise ValueError("later")


@jobs.task
async def parent(ctx: Context) -> None:
    """Submit more as it ends, to another pool."""
    await ctx.submit(child.bind())


@other.task
async def child() -> None:
    """Come after `parent`."""
    await asyncio.sleep(0.05)  # its parent has ended and left its pool idle by then
    report("child", "done")


@paced.task
async def slowly() -> None:
    """Wait for the rate of its pool."""
    report("slowly", "done")


@jobs.task
async def brief() -> None:
    """Need a moment that a grace period has."""
    report("brief", "begun")
    await asyncio.sleep(0.5)  # longer than a signal needs to get here
    report("brief", "done")


@jobs.task
async def endless() -> None:
    """Go on until interrupted."""
    report("endless", "begun")
    try:
        await asyncio.Event().wait()
    finally:
        report("endless", "interrupted")


@jobs.task
async def stubborn() -> None:
    """Go on though interrupted."""
    report("stubborn", "begun")
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            report("stubborn", "interrupted")


@jobs.task
def threaded() -> None:
    """Keep a thread, for ever."""
    report("threaded", "begun")
    threading.Event().wait()


@jobs.task
async def elsewhere() -> None:
    """Keep a thread of the loop's own executor, for ever."""
    report("elsewhere", "begun")
    await asyncio.to_thread(threading.Event().wait)


@jobs.task(executor="process")
def apart() -> None:
    """Keep a process, for ever."""
    report("apart", os.getpid())
    threading.Event().wait()


@jobs.task
async def blocking() -> None:
    """Keep the loop, for ever."""
    report("blocking", "begun")
    while True:
        time.sleep(60)  # noqa: ASYNC251 - that is the point
