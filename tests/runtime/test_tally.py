"""The tally of a worker: the counts in its last log line."""

import asyncio

from millpond import Millpond
from millpond.pool.internals import internals_of


async def test_the_tally_does_not_count_events_as_tasks() -> None:
    """Millpond stores an event as a task; the tally counts only the tasks of callers."""
    mp = Millpond(work=False)
    pool = mp.pool("jobs")
    async with mp, mp.worker():
        await mp.emit("quiet")
        await (await pool.submit(lambda: None))
        await asyncio.sleep(1)
        (worker,) = internals_of(mp).runtime.workers
        assert 1 == worker.tally.completed
