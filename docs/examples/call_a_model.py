"""Calls to a model that counts tokens, serves two pools, and sometimes answers "slow down"."""

import asyncio

from millpond import Context, Millpond, Rate, Throttled, adaptive, bounded, fair_round_robin

mp = Millpond()

openai = mp.budget("openai", 50, rate=[Rate(500, per=60), Rate(90_000, per=60, of="weight")])

chat = mp.pool(
    "chat",
    max_concurrent=adaptive(1, 40),
    queue=fair_round_robin("tenant"),
    backpressure=bounded(1000, on_full="fail_submitter", per_key=100),
    rate_per_key=Rate(60, per=60),
    budgets=[openai],
)
embed = mp.pool("embed", max_concurrent=10, budgets=[openai])


class Busy(Exception):
    """The model's answer to too many requests."""

    retry_after = 0.05


questions: list[str] = []


async def call_model(prompt: str) -> int:
    """Stand in for a model: use some tokens, and refuse one call."""
    questions.append(prompt)
    await asyncio.sleep(0.001)
    if len(questions) == 3:
        raise Busy
    return 10 * len(prompt)


@chat.task(key="tenant")
async def answer(ctx: Context, prompt: str, tenant: str) -> int:
    try:
        used = await call_model(f"{tenant} asks: {prompt}")
    except Busy as busy:
        raise Throttled(busy.retry_after) from busy
    ctx.settle_weight(used)
    return used


async def main() -> None:
    async with mp:
        handles = [
            await answer.options(weight=1200, expires_in=30.0).submit("hello", tenant)
            for tenant in ("acme", "bolt", "acme", "cord")
        ]
        print([await handle for handle in handles])

        taken = await openai.snapshot()
        print(f"{taken.running} of {taken.max_concurrent} taken by {', '.join(taken.pools)}")

        await chat.pause(key="acme")
        await openai.resize(20)

        assert len(questions) == 5
        assert all(handle.attempt == 1 for handle in handles)


if __name__ == "__main__":
    asyncio.run(main())
