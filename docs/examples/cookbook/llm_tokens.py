"""Calls to a model that limits tokens per minute and sometimes answers 429."""

import asyncio

from millpond import Context, Millpond, Rate, Throttled

mp = Millpond()
model = mp.budget("model", 8, rate=[Rate(600, per=60), Rate(90_000, per=60, of="weight")])
chat = mp.pool("chat", max_concurrent=8, budgets=[model])
calls: list[str] = []


class TooManyRequests(Exception):
    """What the client of the model raises for a 429."""

    retry_after = 0.2


async def complete(prompt: str) -> int:
    """Stand in for the model: return the tokens used; refuse the second call."""
    calls.append(prompt)
    refused = len(calls) == 2
    await asyncio.sleep(0.005)
    if refused:
        raise TooManyRequests
    return 100 + len(prompt)


@chat.task
async def answer(ctx: Context, prompt: str) -> int:
    try:
        used = await complete(prompt)
    except TooManyRequests as busy:
        ctx.settle_weight(0)  # a refused call uses no tokens
        raise Throttled(busy.retry_after) from busy  # holds the pool back on every worker
    ctx.settle_weight(used)  # 40,000 were reserved; the rest is refunded
    return used


async def main() -> None:
    async with mp:
        # Two fit into the 90,000 tokens of a minute; the third waits for a refund, not a minute.
        handles = [await answer.options(weight=40_000).submit(f"question {n}") for n in range(6)]
        async with asyncio.timeout(10):
            print([await handle for handle in handles])
        print(f"{len(calls)} calls for {len(handles)} answers")
        assert len(calls) == 7
        assert all(handle.attempt == 1 for handle in handles)  # a 429 is not charged


if __name__ == "__main__":
    asyncio.run(main())
