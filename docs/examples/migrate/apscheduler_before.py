"""Jobs at certain times with APScheduler, inside a program with asyncio."""

import asyncio
from datetime import UTC, datetime, timedelta

from apscheduler.events import EVENT_JOB_MISSED, JobExecutionEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger

fired = asyncio.Event()
ticks = 0


async def report(kind: str) -> None:
    print("report:", kind)
    fired.set()


async def tick() -> None:
    global ticks  # noqa: PLW0603
    ticks += 1


def missed(event: JobExecutionEvent) -> None:
    print("missed:", event.job_id)


async def main() -> None:
    scheduler = AsyncIOScheduler(timezone="Europe/Berlin")
    scheduler.add_listener(missed, EVENT_JOB_MISSED)
    scheduler.add_job(
        report,
        CronTrigger.from_crontab("0 9 * * mon-fri", timezone="Europe/Berlin"),
        ["daily"],
        id="daily",
        coalesce=True,
        misfire_grace_time=300,
        max_instances=1,
    )
    scheduler.add_job(tick, "interval", seconds=1, id="tick")
    scheduler.start()

    soon = datetime.now(UTC) + timedelta(seconds=0.1)
    scheduler.add_job(report, "date", ["once"], run_date=soon)
    await fired.wait()

    fired.clear()
    scheduler.modify_job("daily", next_run_time=datetime.now(UTC))  # fire it now
    await fired.wait()

    while ticks < 2:
        await asyncio.sleep(0.1)
    scheduler.pause_job("tick")
    print("ticks: paused")
    scheduler.remove_job("tick")
    print("left:", [job.id for job in scheduler.get_jobs()])
    scheduler.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
