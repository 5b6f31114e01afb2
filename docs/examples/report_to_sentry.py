"""Errors of handlers in Sentry: `pip install "millpond[sentry]"`, and set SENTRY_DSN."""

import asyncio

import sentry_sdk

from millpond import Millpond
from millpond.telemetry.sentry import SentryMiddleware

mp = Millpond()
jobs = mp.pool("jobs")

sentry_sdk.init()  # the DSN is in $SENTRY_DSN; without one nothing is sent
mp.add_middleware(SentryMiddleware())


@jobs.task
async def report(day: str) -> str:
    return f"report of {day}"


async def main() -> None:
    async with mp:
        print(await (await report.submit("monday")))


asyncio.run(main())
