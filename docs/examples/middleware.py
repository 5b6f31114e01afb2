"""Middleware: code around every handler, on the loop and in threads."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from millpond import Context, GiveUp, Middleware, Millpond, SyncContext

log = logging.getLogger("shop")


class Log(Middleware):
    def before(self, ctx: Context | SyncContext) -> None:
        log.info("%s begins, attempt %d", ctx.function, ctx.attempt)

    def after(self, ctx: Context | SyncContext, result: object) -> None:
        log.info("%s returned %r", ctx.function, result)

    def failed(self, ctx: Context | SyncContext, error: BaseException) -> None:
        log.info("%s raised %r", ctx.function, error)


class Tenant(Middleware):
    """Gives handlers the database of their tenant."""

    def around(self, ctx: SyncContext, call: Callable[[], object]) -> object:
        with connected(ctx.labels.get("tenant")):
            return call()

    async def around_async(self, ctx: Context, call: Callable[[], Awaitable[object]]) -> object:
        with connected(ctx.labels.get("tenant")):
            return await call()


class connected:  # noqa: N801 - a context manager, used like a function
    current: str | None = None

    def __init__(self, tenant: str | None) -> None:
        if tenant is None:
            raise GiveUp("a task needs the label tenant")
        self.tenant = tenant

    def __enter__(self) -> None:
        connected.current = self.tenant

    def __exit__(self, *error: object) -> None:
        connected.current = None


mp = Millpond()
mp.add_middleware(Log())  # the first is the outermost
mp.add_middleware(Tenant())
jobs = mp.pool("jobs", max_concurrent=1)


@jobs.task
async def report() -> str:
    return f"report of {connected.current}"


@jobs.task
def invoice() -> str:
    return f"invoice of {connected.current}"


async def main() -> None:
    async with mp:
        for task in (report, invoice):
            handle = await task.options(labels={"tenant": "acme"}).submit()
            print(await handle)


asyncio.run(main())
