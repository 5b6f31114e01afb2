"""When `--once` is over: nothing of its pools runs, and nothing that is due could start."""

import asyncio
from typing import Any

import pytest
from tests.pool.fleet import Fleet, until

from millpond import Context, Millpond, Outcome, Pool, Rate
from millpond.cli.idle import nothing_left, until_idle
from millpond.runtime.worker.worker import Worker


class Shop:
    """A process of a fleet: a pool, a task, and whether its worker is idle."""

    def __init__(self, fleet: Fleet, **options: object) -> None:
        self.mp: Millpond = fleet.millpond(work=False)
        self.pool: Pool = self.mp.pool("jobs", **options)  # type: ignore[arg-type]
        self.may_end = asyncio.Event()
        self.ran: list[int] = []

        @self.pool.task(name="job")
        async def job(number: int) -> None:
            self.ran.append(number)
            await self.may_end.wait()

        @self.pool.task(name="parent")
        async def parent(ctx: Context) -> None:
            await ctx.submit(job.bind(7))

        self.job, self.parent = job, parent


async def idle_within(worker: Worker, seconds: float) -> bool:
    """Whether it is idle before long."""
    try:
        async with asyncio.timeout(seconds):
            await until_idle(worker)
    except TimeoutError:
        return False
    return True


async def test_a_worker_with_nothing_to_do_is_idle_at_once() -> None:
    """Within a moment."""
    shop = Shop(Fleet())
    async with shop.mp, shop.mp.worker() as worker:
        assert await idle_within(worker, 0.1)


async def test_once_waits_for_running_tasks_and_their_follow_ups() -> None:
    """A follow-up is due when its parent has ended, and not before."""
    shop = Shop(Fleet())
    async with shop.mp, shop.mp.worker() as worker:
        await shop.parent.submit()
        assert not await idle_within(worker, 5)
        assert [7] == shop.ran
        shop.may_end.set()
        assert await idle_within(worker, 5)


async def test_once_waits_for_tasks_on_other_workers() -> None:
    """It may fail, or leave more to do."""
    fleet = Fleet()
    here, there = Shop(fleet), Shop(fleet)
    async with here.mp, there.mp, there.mp.worker() as other:
        await here.job.submit(1)
        await until(lambda: _is_busy(other))
        async with here.mp.worker() as worker:
            assert not await idle_within(worker, 30)
            there.may_end.set()
            assert await idle_within(worker, 5)
    assert ([], [1]) == (here.ran, there.ran)


async def _is_busy(worker: Worker) -> bool:
    return bool(worker.jobs)


async def test_once_leaves_scheduled_tasks() -> None:
    """Be it by a minute."""
    shop = Shop(Fleet())
    async with shop.mp, shop.mp.worker() as worker:
        await shop.job.options(delay=60).submit(1)
        assert await idle_within(worker, 5)
    assert [] == shop.ran


async def test_once_leaves_tasks_of_a_paused_pool() -> None:
    """A pause has no end that the worker could wait for."""
    shop = Shop(Fleet(), rate=Rate(1, per=1.0))
    async with shop.mp, shop.mp.worker() as worker:
        await shop.pool.pause()
        await shop.job.submit(1)
        assert await idle_within(worker, 5)
    assert [] == shop.ran


async def test_once_leaves_tasks_of_a_paused_key() -> None:
    """While the rest is done."""
    shop = Shop(Fleet())
    shop.may_end.set()
    async with shop.mp, shop.mp.worker() as worker:
        await shop.pool.pause(key="acme")
        await shop.job.options(key="acme").submit(1)
        await shop.job.options(key="bolt").submit(2)
        assert await idle_within(worker, 5)
    assert [2] == shop.ran


async def test_once_waits_for_tasks_that_wait_for_a_rate() -> None:
    """It starts by itself, if not at once."""
    shop = Shop(Fleet(), rate=Rate(1, per=10.0))
    shop.may_end.set()
    async with shop.mp, shop.mp.worker() as worker:
        for number in range(3):
            await shop.job.submit(number)
        assert not await idle_within(worker, 15)
        assert await idle_within(worker, 15)
    assert [0, 1, 2] == shop.ran


async def test_once_leaves_tasks_of_unknown_functions() -> None:
    """A function that is not known here waits for a worker that has it."""
    fleet = Fleet()
    here, there = Shop(fleet), Shop(fleet)

    @there.pool.task
    async def only_there() -> None:
        raise AssertionError

    async with here.mp, there.mp, here.mp.worker() as worker:
        await only_there.submit()
        assert await idle_within(worker, 5)


@pytest.mark.parametrize("state", ["fenced", "late"])
async def test_a_worker_that_may_not_work_is_not_idle(state: str) -> None:
    """It joins again, or renews its lease, and then there may be work for it."""
    shop = Shop(Fleet())
    async with shop.mp, shop.mp.worker() as worker:
        assert await idle_within(worker, 5)
        setattr(worker, state, True)
        assert not await idle_within(worker, 0.5)
        setattr(worker, state, False)
        assert await idle_within(worker, 5)


async def test_an_unreachable_store_is_not_idle(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker polls until the store answers, and logs the failure once."""
    shop = Shop(Fleet())
    async with shop.mp, shop.mp.worker() as worker:
        view = worker.env.view

        class Away:
            """A view that cannot be had."""

            def __getattr__(self, name: str) -> object:
                raise ConnectionError("the store is away")

        monkeypatch.setattr(worker.env, "view", Away())
        waiting = asyncio.create_task(until_idle(worker))
        await asyncio.sleep(0.9)
        assert not waiting.done()
        output = [r for r in caplog.records if r.name == "millpond.cli"]
        assert ["cannot read the store (the store is away); trying again"] == [
            record.getMessage() for record in output
        ]
        monkeypatch.setattr(worker.env, "view", view)
        async with asyncio.timeout(5):
            await waiting


async def test_once_waits_for_callbacks_on_other_workers() -> None:
    """They belong to their pool."""
    fleet = Fleet()
    here, there = Shop(fleet), Shop(fleet)
    output = asyncio.Event()
    for shop in (here, there):

        @shop.mp.task(name="notify")
        async def notify(outcome: Outcome) -> None:
            await output.wait()

    there.may_end.set()
    async with here.mp, there.mp, there.mp.worker() as other:
        await here.job.options(on_complete=here.mp.tasks["notify"].bind()).submit(1)
        await until(lambda: _runs_a_callback(other))
        async with here.mp.worker() as worker:
            assert not await idle_within(worker, 30)
            output.set()
            assert await idle_within(worker, 5)


async def _runs_a_callback(worker: Worker) -> bool:
    return any(job.leased.call.function == "notify" for job in worker.jobs.values())


async def test_a_task_submitted_during_the_idle_check_is_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Be it in a pool that it has looked at already."""
    shop = Shop(Fleet())
    shop.mp.pool("later")
    async with shop.mp, shop.mp.worker() as worker:
        assert await idle_within(worker, 5)
        view = worker.env.view

        class Slow:
            """A view so slow that a task is submitted while it reads."""

            def __getattr__(self, name: str) -> Any:
                return getattr(view, name)

            async def pool(self, name: str, **requested: Any) -> Any:
                if name == "later":
                    await shop.job.submit(1)
                    await asyncio.sleep(0.01)
                return await view.pool(name, **requested)

        monkeypatch.setattr(worker.env, "view", Slow())
        assert not await nothing_left(worker)
        assert [1] == shop.ran
        shop.may_end.set()
