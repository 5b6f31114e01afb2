"""An application with a schedule, to see what a worker counts."""

import os

from millpond import Millpond

mp = Millpond(f"sqlite:///{os.environ['PLACE']}/work.db")
jobs = mp.pool("jobs")


@jobs.task
async def tick() -> None:
    """Say that the schedule fired."""
    print("ticked", flush=True)  # noqa: T201


mp.cron("tick", every=3600, task=tick, on_start=True)
