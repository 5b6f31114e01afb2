"""A durable queue with a bound: an endpoint answers 429 instead of accepting without end."""

import asyncio

from millpond import Millpond, SubmitRejection, bounded

mp = Millpond("sqlite:///reports.db")
reports = mp.pool("reports", max_concurrent=2, backpressure=bounded(5, "fail_submitter", per_key=2))


@reports.task(key="customer")
async def report(customer: str, month: int) -> str:
    return f"{customer} {month}"


async def post_report(customer: str, month: int) -> tuple[int, str]:
    """Answer a request: 202 with the task, or 429 with the reason."""
    match await reports.try_submit(report.bind(customer, month)):
        case SubmitRejection(reason=reason):
            return 429, str(reason)
        case handle:
            return 202, str(handle.id)


async def main() -> None:
    async with mp:
        answers = [
            await post_report(customer, month)
            for customer in ("acme", "bolt", "cord")
            for month in (1, 2, 3)
        ]
        statuses = [status for status, _ in answers]
        print(statuses, {text for status, text in answers if status == 429})
        assert statuses == [202, 202, 429, 202, 202, 429, 202, 429, 429]
        # The first two 429 are for the key (2 each), the last two for the pool (5 in all).
        assert await reports.size() == 5

        await reports.drain()
        assert (await post_report("acme", 3))[0] == 202  # there is room again


if __name__ == "__main__":
    asyncio.run(main())
