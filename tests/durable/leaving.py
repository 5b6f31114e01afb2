"""A program whose functions exit, or fork, in every place where Millpond calls them.

    python leaving.py STORE exit PLACES KIND
    python leaving.py STORE fork PLACES

It prints each place after which the worker still runs a task, and after SIGTERM `stopped`.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from millpond import Context, Millpond, Retry, SyncContext, TaskFailed

ERRORS = {
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
}
STORE, DEED, PLACES, KIND, *_ = [*sys.argv[1:], "", "", "", ""]
EXIT = 70
"""How a child ends that went on where the parent does."""


class Now:
    """Where to leave now."""

    place = ""
    called = threading.Event()
    children: ClassVar[list[int]] = []
    main: asyncio.Task[Any] | None = None
    results = 0


def say(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def leave(place: str) -> None:
    """Exit or fork, if this is the place that was asked for; once."""
    if place != Now.place or Now.called.is_set():
        return
    Now.called.set()
    if DEED == "fork":
        child = os.fork()
        if child == 0:
            return
        Now.children.append(child)
    if DEED == "exit":
        raise ERRORS[KIND](3)


@dataclass
class Odd:
    """An argument that leaves while it is read."""

    n: int

    def __post_init__(self) -> None:
        # The submit reads it, too, to see whether it stays the same.
        if self.n == 1 and asyncio.current_task() is not Now.main:
            leave("reading")


@dataclass
class OddResult:
    """A result that leaves while it is stored."""

    n: int

    def __post_init__(self) -> None:
        Now.results += 1
        if Now.results > 1:
            leave("storing")


class Unspeakable(Exception):
    """An error that leaves while its message is read."""

    def __str__(self) -> str:
        leave("message")
        return "said"


def policy(_attempt: int, _error: BaseException) -> None:
    """Retry nothing."""
    leave("policy")


async def awaited(place: str) -> None:
    """Leave in the middle of a coroutine."""
    await asyncio.sleep(0)
    leave(place)
    await asyncio.sleep(0)


def on_dead_letter(_letter: Any) -> Any:
    """Leave, or return what leaves."""
    leave("hook")
    return awaited("async_hook") if Now.place == "async_hook" else None


mp = Millpond(STORE, work=True)
pool = mp.pool(
    "p", retry=Retry.never(), on_dead_letter=on_dead_letter, on_empty=lambda _: leave("on_empty")
)
asking = mp.pool("asking", retry=policy)
mp.observe(lambda _: leave("observer"))


@pool.task
async def fine() -> int:
    """Return."""
    return 1


@pool.task
async def on_loop() -> None:
    """Leave on the loop."""
    await awaited("loop")


@pool.task
def in_thread() -> None:
    """Leave in a thread."""
    leave("thread")


@pool.task
def in_thread_asking(ctx: SyncContext) -> None:
    """Go on with the context in a child."""
    leave("thread_context")
    ctx.progress(0.5)


@pool.batch_task(size=2, linger=0.01)
async def batch(items: list[int]) -> list[int]:
    """Leave in a batch."""
    await awaited("batch")
    return items


@pool.batch_task(size=2, linger=0.01)
def batch_in_thread(items: list[int]) -> list[int]:
    """Leave in a batch in a thread."""
    leave("batch_thread")
    return items


@pool.batch_task(size=2, linger=0.01)
async def batch_results(items: list[int]) -> list[Any]:
    """Give errors back as results."""
    Now.called.set()
    return [ERRORS[KIND](3) for _ in items]


@pool.batch_task(size=1, linger=0.01)
async def batch_of_odd(items: list[Odd]) -> list[int]:
    """Take items that leave while they are read."""
    return [one.n for one in items]


@pool.batch_task(size=1, linger=0.01)
async def batch_storing(items: list[int]) -> list[OddResult]:
    """Give results that leave while they are stored."""
    return [OddResult(n) for n in items]


@pool.task
async def once(ctx: Context) -> None:
    """Leave in a step."""
    await ctx.once("step", lambda: awaited("once"))


@pool.task
def once_in_thread(ctx: SyncContext) -> None:
    """Leave in a step, in a thread."""
    ctx.once("step", lambda: leave("once_thread"))


@pool.task
async def commit(ctx: Context) -> None:
    """Leave in the function given to ctx.commit."""
    await ctx.commit(lambda _: leave("commit"))


@pool.task
def commit_in_thread(ctx: SyncContext) -> None:
    """Do so in a thread."""
    ctx.commit(lambda _: leave("commit_thread"))


@pool.task
async def transaction(ctx: Context) -> None:
    """Leave in a transaction."""
    async with ctx.transaction() as held:
        held.execute("SELECT 1")
        leave("transaction")


@pool.task
def transaction_in_thread(ctx: SyncContext) -> None:
    """Do so in a thread."""
    with ctx.transaction() as held:
        held.execute("SELECT 1")
        leave("transaction_thread")


@pool.task
async def callback(_outcome: Any) -> None:
    """Leave in a callback."""
    await awaited("callback")


@pool.task
async def fails() -> None:
    """Fail."""
    raise ValueError


@pool.task
async def unspeakable() -> None:
    """Fail with an error that leaves."""
    raise Unspeakable


@asking.task
async def asks() -> None:
    """Fail, and ask the policy."""
    raise ValueError


@pool.task(executor="process")
def in_process(deed: str, kind: str) -> None:
    """Leave in a process."""
    if deed == "fork":
        os.fork()
    else:
        raise ERRORS[kind](3)


WAYS: dict[str, Callable[[], Any]] = {
    "loop": on_loop.submit,
    "thread": in_thread.submit,
    "thread_context": in_thread_asking.submit,
    "batch": lambda: batch.submit(1),
    "batch_thread": lambda: batch_in_thread.submit(1),
    "batch_results": lambda: batch_results.submit(1),
    "reading": lambda: batch_of_odd.submit(Odd(1)),
    "storing": lambda: batch_storing.submit(8),
    "once": once.submit,
    "once_thread": once_in_thread.submit,
    "commit": commit.submit,
    "commit_thread": commit_in_thread.submit,
    "transaction": transaction.submit,
    "transaction_thread": transaction_in_thread.submit,
    "callback": lambda: fine.options(on_complete=callback.bind()).submit(),
    "hook": fails.submit,
    "async_hook": fails.submit,
    "on_empty": fine.submit,
    "observer": fine.submit,
    "message": unspeakable.submit,
    "policy": asks.submit,
    "process": lambda: in_process.submit(DEED, KIND),
}


async def left(place: str) -> None:
    """Leave in one place, and see that the worker goes on."""
    Now.place = place
    Now.called.clear()
    with contextlib.suppress(TaskFailed):
        await (await WAYS[place]())
    if place != "process":
        await asyncio.to_thread(Now.called.wait)
    while Now.children:
        _, status = await asyncio.to_thread(os.waitpid, Now.children.pop(), 0)
        assert EXIT == os.waitstatus_to_exitcode(status)
    assert 1 == await (await fine.submit())
    say(place)


async def main() -> None:
    """Leave in one place after the other, and then when asked to."""
    Now.main = asyncio.current_task()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with mp:
        for place in PLACES.split(",") if PLACES else WAYS:
            await left(place)
        say("ready")
        await stop.wait()
    say("stopped")


if __name__ == "__main__":
    asyncio.run(main())
