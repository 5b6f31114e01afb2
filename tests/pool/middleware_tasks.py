"""Tasks in processes, with a middleware: children import this module and find both."""

import os

from millpond import Middleware, Millpond, Retry, SyncContext

mp = Millpond()
pool = mp.pool("processes", max_concurrent=2, retry=Retry.never())


class Doubling(Middleware):
    """Replaces results."""

    def around(self, ctx: SyncContext, call):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        result = call()
        return [f"{ctx.function} in {ctx.pool}", os.getpid(), result * 2]


mp.add_middleware(Doubling())


@pool.task(executor="process")
def number() -> list[object]:
    return 21  # type: ignore[return-value]


@pool.task(executor="process")
async def later() -> list[object]:
    return 4  # type: ignore[return-value]
