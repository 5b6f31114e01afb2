"""Two pools that share a model which counts tokens: what each process of a fleet runs."""

import asyncio
import random
import sys

from millpond import Context, Millpond, Rate, Retry, Throttled, adaptive
from millpond.core.spec import BudgetSpec

MODEL = BudgetSpec(
    name="model",
    max_concurrent=4,
    rates=(Rate(60, per=1.0, burst=6, of="weight"), Rate(70, per=1.0, burst=7)),
)


def application(url: str) -> Millpond:
    """The application; every process makes the same one."""
    mp = Millpond(url, lease=2.0, work=False)
    model = mp.budget(MODEL.name, MODEL.max_concurrent, rate=MODEL.rates)
    chat = mp.pool(
        "chat",
        max_concurrent=adaptive(2, 4, initial=4),
        rate_per_key=Rate(20, per=1.0, burst=3),
        budgets=[model],
        retry=Retry.constant(0.01),
    )
    mp.pool("embed", max_concurrent=4, budgets=[model], retry=Retry.constant(0.01))

    @chat.task(key="tenant")
    async def call(ctx: Context, number: int, tenant: str) -> str:
        dice = random.Random()
        # Calls that take different times, so that a kill meets some of them at work.
        await asyncio.sleep(dice.choice((0.0, 0.005, 0.02)))
        ctx.settle_weight(dice.randint(0, ctx.weight))
        if dice.random() < 0.05 and not ctx.is_retry:
            raise ValueError(tenant)
        if number % 20 in (7, 13) and dice.random() < 0.5:
            raise Throttled(0.02, scope="key" if number % 20 == 7 else "pool")
        return tenant

    return mp


async def serve(url: str) -> None:
    """Run tasks until killed."""
    mp = application(url)
    async with mp, mp.worker(concurrency=6):
        sys.stdout.write("up\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
