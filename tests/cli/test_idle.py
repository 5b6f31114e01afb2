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


async def test_what_runs_here_is_waited_for_and_what_comes_of_it() -> None:
    """A follow-up is due when its parent has ended, and not before."""
    shop = Shop(Fleet())
    async with shop.mp, shop.mp.worker() as worker:
        await shop.parent.submit()
        assert not await idle_within(worker, 5)
        assert [7] == shop.ran
        shop.may_end.set()
        assert await idle_within(worker, 5)


async def test_what_runs_elsewhere_is_waited_for() -> None:
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


async def test_what_is_due_later_is_left() -> None:
    """Be it by a minute."""
    shop = Shop(Fleet())
    async with shop.mp, shop.mp.worker() as worker:
        await shop.job.options(delay=60).submit(1)
        assert await idle_within(worker, 5)
    assert [] == shop.ran


async def test_what_is_paused_is_left() -> None:
    """Nobody knows for how long."""
    shop = Shop(Fleet(), rate=Rate(1, per=1.0))
    async with shop.mp, shop.mp.worker() as worker:
        await shop.pool.pause()
        await shop.job.submit(1)
        assert await idle_within(worker, 5)
    assert [] == shop.ran


async def test_what_is_paused_by_its_key_is_left() -> None:
    """While the rest is done."""
    shop = Shop(Fleet())
    shop.may_end.set()
    async with shop.mp, shop.mp.worker() as worker:
        await shop.pool.pause(key="acme")
        await shop.job.options(key="acme").submit(1)
        await shop.job.options(key="bolt").submit(2)
        assert await idle_within(worker, 5)
    assert [2] == shop.ran


async def test_what_waits_for_a_rate_is_waited_for() -> None:
    """It starts by itself, if not at once."""
    shop = Shop(Fleet(), rate=Rate(1, per=10.0))
    shop.may_end.set()
    async with shop.mp, shop.mp.worker() as worker:
        for number in range(3):
            await shop.job.submit(number)
        assert not await idle_within(worker, 15)
        assert await idle_within(worker, 15)
    assert [0, 1, 2] == shop.ran


async def test_what_nobody_here_can_run_is_left() -> None:
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


async def test_a_store_that_is_away_is_not_one_without_work(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at until it answers, and that is said once."""
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
        told = [r for r in caplog.records if r.name == "millpond.cli"]
        assert ["the store cannot be looked at (the store is away); it is tried again"] == [
            record.getMessage() for record in told
        ]
        monkeypatch.setattr(worker.env, "view", view)
        async with asyncio.timeout(5):
            await waiting


async def test_callbacks_that_run_elsewhere_are_waited_for() -> None:
    """They belong to their pool."""
    fleet = Fleet()
    here, there = Shop(fleet), Shop(fleet)
    told = asyncio.Event()
    for shop in (here, there):

        @shop.mp.task(name="tell")
        async def tell(outcome: Outcome) -> None:
            await told.wait()

    there.may_end.set()
    async with here.mp, there.mp, there.mp.worker() as other:
        await here.job.options(on_complete=here.mp.tasks["tell"].bind()).submit(1)
        await until(lambda: _runs_a_callback(other))
        async with here.mp.worker() as worker:
            assert not await idle_within(worker, 30)
            told.set()
            assert await idle_within(worker, 5)


async def _runs_a_callback(worker: Worker) -> bool:
    return any(job.leased.call.function == "tell" for job in worker.jobs.values())


async def test_what_comes_while_it_looks_is_not_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be it in a pool that it has looked at already."""
    shop = Shop(Fleet())
    shop.mp.pool("later")
    async with shop.mp, shop.mp.worker() as worker:
        assert await idle_within(worker, 5)
        view = worker.env.view

        class Slow:
            """A view that takes so long that somebody submits meanwhile."""

            def __getattr__(self, name: str) -> Any:
                return getattr(view, name)

            async def pool(self, name: str, **asked: Any) -> Any:
                if name == "later":
                    await shop.job.submit(1)
                    await asyncio.sleep(0.01)
                return await view.pool(name, **asked)

        monkeypatch.setattr(worker.env, "view", Slow())
        assert not await nothing_left(worker)
        assert [1] == shop.ran
        shop.may_end.set()
