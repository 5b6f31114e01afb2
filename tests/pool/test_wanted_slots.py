"""The figure for an autoscaler: how many slots a backlog could use."""

import asyncio
from datetime import timedelta

from millpond import Millpond, Outcome, Rate
from millpond.core.task import CALLBACKS
from millpond.pool.internals import internals_of
from millpond.pool.pool import Pool
from millpond.pool.wanted_slots import wanted_slots


async def wanted(mp: Millpond, pool: Pool) -> int:
    """Read the figure as the exporters do."""
    runtime = internals_of(mp).runtime
    now = runtime.clock()
    view = await runtime.view.pool(pool.name, now=now)
    callbacks = await runtime.view.pool(pool.name + CALLBACKS, measured=False)
    assert view is not None
    unfinished = 0 if callbacks is None else callbacks.queued + callbacks.running
    return wanted_slots(view, unfinished, now)


async def test_due_tasks_want_slots_up_to_the_limit() -> None:
    """Scheduled tasks want none yet, and a paused pool wants none."""
    mp = Millpond(work=False)
    pool = mp.pool("mail", max_concurrent=4)

    @pool.task
    async def send(number: int) -> None: ...

    async with mp:
        assert 0 == await wanted(mp, pool)
        await send.options(delay=timedelta(hours=1)).submit(0)
        assert 0 == await wanted(mp, pool)
        await send.submit(1)
        await send.submit(2)
        assert 2 == await wanted(mp, pool)
        await pool.submit_many(send.each(range(10)))
        assert 4 == await wanted(mp, pool)
        await pool.pause()
        assert 0 == await wanted(mp, pool)


async def test_a_callback_wants_a_slot() -> None:
    """Otherwise no worker would start for it."""
    mp = Millpond()
    pool = mp.pool("mail", max_concurrent=1)
    done = asyncio.Event()

    @pool.task
    async def send() -> None: ...

    @mp.task
    async def after(outcome: Outcome) -> None:
        await done.wait()

    async with mp:
        await (await send.options(on_complete=after.bind()).submit())
        await asyncio.sleep(1)
        assert 1 == await wanted(mp, pool)
        done.set()


async def test_a_rate_caps_the_figure() -> None:
    """Two starts a second of three seconds each keep six slots busy, not fifty."""
    mp = Millpond()
    pool = mp.pool("mail", max_concurrent=50, rate=Rate(2, per=1, burst=1))

    @pool.task
    async def send(number: int) -> None:
        await asyncio.sleep(3)

    async with mp:
        await pool.submit_many(send.each(range(60)))
        await asyncio.sleep(20)
        assert 6 <= await wanted(mp, pool) <= 7
        await pool.purge()
