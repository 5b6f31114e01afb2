"""Ten callers, a dependency that takes two at a time, and room for three to wait."""

import asyncio

from millpond import Bulkhead, BulkheadRejected

llm = Bulkhead("llm", 2, max_queue=3)  # two run, three wait, the rest are refused at once


async def ask(question: int) -> str:
    try:
        async with llm:
            await asyncio.sleep(0.01)  # the slow dependency
            return f"answer {question}"
    except BulkheadRejected as refused:
        return f"busy: {refused.reason}"


async def main() -> None:
    answers = await asyncio.gather(*(ask(n) for n in range(10)))
    for answer in answers:
        print(answer)

    assert answers[:5] == [f"answer {n}" for n in range(5)]
    assert answers[5:] == ["busy: queue_limit"] * 5

    stats = llm.stats()
    print(f"admitted {stats.admitted}, rejected {stats.rejected}, in flight {stats.in_flight}")
    assert (stats.admitted, stats.rejected, stats.in_flight) == (5, 5, 0)


asyncio.run(main())
