"""The tally of a worker: what its last log line counts."""

import asyncio

from millpond import Millpond
from millpond.pool.internals import internals_of


async def test_an_event_is_no_completed_task() -> None:
    """The library stores an event as a task of its own; a worker counts those of callers."""
    mp = Millpond(work=False)
    pool = mp.pool("jobs")
    async with mp, mp.worker():
        await mp.emit("quiet")
        await (await pool.submit(lambda: None))
        await asyncio.sleep(1)
        (worker,) = internals_of(mp).runtime.workers
        assert 1 == worker.tally.completed
