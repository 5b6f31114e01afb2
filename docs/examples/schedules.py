"""Periodic tasks: crontab lines in a time zone, intervals, and events."""

import asyncio
from datetime import datetime

from millpond import Context, Millpond

mp = Millpond()  # or "sqlite:///work.db", or "postgresql://...": one firing for the whole fleet
reports = mp.pool("reports", max_concurrent=2)
done: list[tuple[str, object]] = []


@reports.task
async def report(ctx: Context, kind: str) -> None:
    due = datetime.fromisoformat(ctx.labels["scheduled_at"])
    done.append((kind, due))


@reports.task
async def audit(tick: dict[str, str | None]) -> None:
    done.append(("audit", tick["scheduled_at"]))


mp.cron("daily", "0 9 * * mon-fri", tz="Europe/Berlin", task=report.bind("daily"))

nightly = mp.cron(
    "nightly",
    "30 2 * * *",
    tz="America/New_York",
    task=report.bind("nightly").options(priority=-1, expires_in=3600),
    missed="skip",
    grace=600,
)

mp.cron(
    "catch-up",
    every=1,
    task=report.bind("catch-up").options(idempotency_key="catch-up", dedupe="inflight"),
)

mp.cron("warm", "0 * * * *", task=report.bind("warm"), on_start=True)

mp.cron("sweep", every=1, task=report.bind("sweep"))

mp.cron("tick", every=1)
mp.trigger("auditor", on="cron.tick", into=reports, task=audit)


async def main() -> None:
    async with mp:
        for one in await mp.schedules():
            print(one.id, datetime.fromtimestamp(one.next_at).astimezone(), one.missed)

        await nightly.pause()
        await nightly.resume()
        await nightly.remove()
        while {"sweep", "catch-up", "warm", "audit"} > {kind for kind, _ in done}:
            await asyncio.sleep(0.1)
    print(done)


if __name__ == "__main__":
    asyncio.run(main())
