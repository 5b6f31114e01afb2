"""Tasks for the tests of process handlers: children import this module and find them by name."""

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import for_ever, until

from millpond import (
    Cancelled,
    ConfigError,
    GiveUp,
    Millpond,
    Retry,
    RetryLater,
    SyncContext,
    Throttled,
)

mp = Millpond()
pool = mp.pool("processes", max_concurrent=2, retry=Retry.never())


@dataclass
class Page:
    number: int
    text: str


@pool.task(executor="process")
def echo(ctx: SyncContext, page: Page) -> tuple[int, str, Page]:
    return os.getpid(), f"{ctx.pool}/{ctx.attempt}/{ctx.key}", page


@pool.task(executor="process")
async def in_a_loop(number: int) -> int:
    import asyncio

    await asyncio.sleep(0)
    return number * 2


@pool.task(executor="process")
def hang(started: str) -> None:
    child = subprocess.Popen(["/bin/sleep", "3600"])
    Path(started).write_text(f"{os.getpid()} {child.pid}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for_ever()


@pool.task(executor="process")
def leave(code: int) -> None:
    os._exit(code)


@pool.task(executor="process")
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pool.task(executor="process")
def not_wanted(reason: str) -> None:
    raise Cancelled(reason)


@pool.task(executor="process", ignore_result=True)
def silent() -> object:
    return object()


@pool.task(executor="process")
def wrong() -> object:
    return object()


@pool.task(executor="process")
def fail(how: str) -> Any:
    match how:
        case "error":
            raise FileNotFoundError("no such page")
        case "give up":
            raise GiveUp("no use")
        case "exit":
            raise SystemExit(3)
        case _:
            return how


@pool.task(executor="process")
def later(marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).touch()
        raise RetryLater(0.01, spend=False)
    return "at last"


@pool.task(executor="process")
def busy(ctx: SyncContext, marker: str) -> str:
    ctx.settle_weight(ctx.weight - 1)
    if not Path(marker).exists():
        Path(marker).touch()
        raise Throttled(0.01, scope="key")
    return "at last"


@pool.task(executor="process")
def report_progress(ctx: SyncContext, go: str) -> str:
    ctx.progress(0.5, "half")
    until(Path(go).exists)
    return "reported"


@pool.task(executor="process")
def listen(ctx: SyncContext, started: str) -> str:
    Path(started).write_text("yes")
    until(lambda: ctx.cancelled)
    return f"heard: {ctx.cancel_reason}"


@pool.task(executor="process")
def too_far(ctx: SyncContext) -> str:
    try:
        ctx.progress(7.0)
    except ConfigError as error:
        return type(error).__name__
    return "taken"


@pool.task(executor="process")
def not_here(ctx: SyncContext) -> list[str]:
    from millpond.errors import NotSupported

    refused = []
    for ask in (lambda: ctx.submit(wrong.bind()), lambda: ctx.once("a", lambda: 1)):
        try:
            ask()
        except NotSupported as error:
            refused.append(error.feature)
    return refused


@pool.task(executor="process", retry=Retry(attempts=3, initial=0.01, jitter=0.0))
def flaky(ctx: SyncContext) -> int:
    if ctx.attempt < 3:
        os._exit(1)
    return ctx.attempt
