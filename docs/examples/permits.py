"""Other ways to use a bulkhead: a value instead of an error, a weight, and a clean shutdown."""

import asyncio

from millpond import Bulkhead, Permit, PermitRejection

llm = Bulkhead("llm", 10, max_queue=5, max_weight=1000)


async def call_model(prompt: str) -> int:
    await asyncio.sleep(0.01)
    return len(prompt) * 10  # tokens used


async def by_value(prompt: str) -> int | None:
    match await llm.acquire(timeout=0.05):
        case Permit() as permit:
            with permit:
                return await call_model(prompt)
        case PermitRejection(reason=reason):
            print(f"not now: {reason}")
            return None


async def at_once(prompt: str) -> int | None:
    if permit := llm.try_acquire():
        with permit:
            return await call_model(prompt)
    return None


async def by_weight(prompt: str) -> int:
    async with llm.permit(weight=400, timeout=0.05) as permit:
        tokens = await call_model(prompt)
        permit.settle(tokens)  # reserved 400: refunds the rest, or charges the difference
        return tokens


async def main() -> None:
    assert await llm.run(call_model, "hello", timeout=0.05) == 50
    assert await by_value("hello") == 50
    assert await at_once("hello") == 50
    assert await by_weight("hello") == 50

    llm.close()  # refuses new callers; running calls go on
    left = await llm.drain(timeout=1.0)
    print(f"after drain: {left}")
    assert await by_value("hello") is None
    assert llm.stats().in_flight == 0


asyncio.run(main())
