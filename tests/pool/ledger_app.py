"""An application with a ledger of its own, run in processes that tests kill and freeze.

    python -m tests.pool.ledger_app FILE [unfenced]

With "unfenced" its commits do not look at their fence: a test must notice that.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from tests.waiting import until

from millpond import Context, Millpond, Pool, Retry, SyncContext
from millpond.errors import LeaseLost

LEASE = 1.5
ADD = "INSERT INTO ledger (task, attempt) VALUES (?, ?)"
MAKE = "CREATE TABLE ledger (task INTEGER NOT NULL, attempt INTEGER NOT NULL)"


class App:
    """A Millpond on a file and its tasks."""

    def __init__(self, file: str, *, work: bool) -> None:
        self.mp = Millpond(f"sqlite:///{file}", work=work, lease=LEASE, durability="normal")
        self.pool: Pool = self.mp.pool(
            "ledger", max_concurrent=8, retry=Retry.constant(0.0, attempts=100)
        )

        # Each takes a while, so that kills meet it before, in and after its transaction.
        @self.pool.task
        async def by_commit(ctx: Context) -> int:
            await asyncio.sleep(ctx.task_id % 100 / 1000)
            await ctx.commit(lambda own: own.execute(ADD, (ctx.task_id, ctx.attempt)), result=1)
            await asyncio.sleep(ctx.task_id % 5 / 1000)
            return 0

        @self.pool.task
        async def by_transaction(ctx: Context) -> int:
            async with ctx.transaction() as tx:
                tx.execute(ADD, (ctx.task_id, ctx.attempt))
                await asyncio.sleep(ctx.task_id % 5 / 1000)
                tx.complete(2)
            return 0

        @self.pool.task
        def in_thread(ctx: SyncContext) -> int:
            time.sleep(ctx.task_id % 100 / 1000)  # kills meet it at any moment
            with ctx.transaction() as tx:
                tx.execute(ADD, (ctx.task_id, ctx.attempt))
                tx.complete(3)
            return 0

        @self.pool.task
        def late(ctx: SyncContext, how: str, folder: str) -> int:
            """The first attempt writes the file `begun`, and commits when the file `go` exists."""
            place = Path(folder)
            if ctx.attempt == 1:
                (place / "begun").touch()
                until((place / "go").exists)
            try:
                write(ctx, how)
            except LeaseLost:
                (place / f"refused-{ctx.attempt}").touch()
                raise
            (place / f"stored-{ctx.attempt}").touch()
            return ctx.attempt

        @self.pool.task
        async def charge(ctx: Context, folder: str) -> list[int]:
            """Charge once, whatever happens to the first attempt afterwards."""
            place = Path(folder)

            async def pay() -> int:
                with (place / "charges").open("a") as charges:
                    charges.write("paid\n")
                return 4711

            receipt = await ctx.once("charge", pay)
            if ctx.attempt == 1:
                await ctx.progress(0.5, "charged")
                (place / "begun").touch()
                await asyncio.Event().wait()
            return [receipt, ctx.attempt]

        self.tasks: tuple[Any, ...] = (by_commit, by_transaction, in_thread)
        self.late = late
        self.charge = charge


def write(ctx: SyncContext, how: str) -> None:
    """Add to the ledger and complete, one way or the other."""
    row = (ctx.task_id, ctx.attempt)
    if how == "commit":
        ctx.commit(lambda own: own.execute(ADD, row), result=ctx.attempt)
        return
    with ctx.transaction() as tx:
        tx.execute(ADD, row)
        tx.complete(ctx.attempt)


async def main(file: str) -> None:
    """Work until killed."""
    async with App(file, work=True).mp:
        await asyncio.Event().wait()


if __name__ == "__main__":
    if "unfenced" in sys.argv:
        from millpond.pool import handler_transaction as transaction
        from millpond.runtime.worker import commit
        from millpond.store.sql import handler_transaction as held
        from millpond.store.sql import store

        places: dict[str, tuple[Any, ...]] = {
            "holds": (held, store),
            # It may know that it was fenced before it calls the store.
            "may_commit": (commit, transaction),
        }
        for name, modules in places.items():
            for module in modules:
                setattr(module, name, lambda *_: True)
    asyncio.run(main(sys.argv[1]))
