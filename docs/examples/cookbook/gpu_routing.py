"""Inference on two kinds of GPU: a model goes to the pool of its card, and waits in a bound."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from millpond import Context, Handle, Millpond, Rejection, bounded

mp = Millpond("sqlite:///gpu.db")

small = mp.pool("gpu-small", max_concurrent=4, backpressure=bounded(100, "fail_submitter"))
large = mp.pool("gpu-large", max_concurrent=1, backpressure=bounded(10, "fail_submitter"))
POOLS = {"7b": small, "70b": large}

busy: Counter[str] = Counter()
most: Counter[str] = Counter()


@mp.task(timeout=30)
async def infer(ctx: Context, model: str, prompt: str) -> str:
    card: str = ctx.resources
    busy[card] += 1
    most[card] = max(most[card], busy[card])
    await asyncio.sleep(0.005)
    busy[card] -= 1
    return f"{model} on {card}: {prompt}"


async def route(model: str, prompt: str) -> Handle[str] | Rejection:
    """Submit to the pool of the model's card; a refusal is a value with its reason."""
    return await POOLS[model].try_submit(infer.bind(model, prompt))


def card(name: str) -> Callable[[], AbstractAsyncContextManager[str]]:
    """Return what a worker enters once: here it would load the model onto its card."""

    @asynccontextmanager
    async def loaded() -> AsyncIterator[str]:
        yield name

    return loaded


async def main() -> None:
    async with mp:
        requests = [("7b", f"small {n}") for n in range(8)] + [
            ("70b", f"large {n}") for n in range(12)
        ]
        answers = [await route(model, prompt) for model, prompt in requests]
        refused = [answer for answer in answers if isinstance(answer, Rejection)]
        print(f"{len(refused)} refused: {refused[0].reason}")
        assert len(refused) == 2  # ten may wait for the large card

        # One process per machine in production: millpond worker app:mp --pools gpu-small
        async with (
            mp.worker(pools=[small], resources=card("a10")),
            mp.worker(pools=[large], resources=card("h100")),
        ):
            for answer in answers:
                if not isinstance(answer, Rejection):
                    text = await answer
                    assert ("h100" in text) == text.startswith("70b")
        print(dict(most))
        assert most["h100"] == 1
        assert 1 < most["a10"] <= 4


if __name__ == "__main__":
    asyncio.run(main())
