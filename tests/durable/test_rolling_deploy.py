"""Rolling deploys: old and new versions of a function share one store, and no task is lost."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.pool.fleet import Fleet
from tests.pool.moments import result_of
from verify.servers.schemas import Schema

from millpond import Context, Handle, Millpond, Outcome, Retry, Stuck, TaskFailed, fifo
from millpond.pool.internals import internals_of

Place = Path | Schema

DAY = 86_400.0


def release(fleet: Fleet, number: int, *, work: bool = True, **options: Any) -> Millpond:
    """Return the application of one release: the second one's review has one more parameter."""
    mp = fleet.millpond(work=work)
    pool = mp.pool("reviews", **options)
    if number == 1:

        @pool.task(name="review", key="pr" if options.get("ordered") else None)
        async def first(pr: int) -> str:
            return f"first {pr}"

    else:

        @pool.task(name="review", key="pr" if options.get("ordered") else None)
        async def second(pr: int, tenant: str) -> str:
            return f"second {pr} {tenant}"

    return mp


async def parked(mp: Millpond, count: int, pool: str = "reviews") -> None:
    """Wait until so many tasks of a pool are parked."""

    async def enough() -> bool:
        return (await mp.get_pool(pool).snapshot()).parked == count

    await until(enough)


async def until(happened: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again until something has happened."""
    async with asyncio.timeout(120):
        while not await happened():  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.1)


async def _true(condition: Callable[[], bool]) -> bool:
    return condition()


async def results(handles: list[Handle[Any]]) -> list[Any]:
    """Return the results of tasks that some worker runs soon."""
    return [await asyncio.wait_for(result_of(one), 600) for one in handles]


def unfit_arguments(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log messages about arguments that do not fit."""
    return [one.message for one in caplog.records if "MILL-096" in one.message]


@pytest.mark.rows("TR-11")
async def test_a_backlog_waits_for_a_worker_that_understands_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """New workers park it uncharged and say once which argument is missing; an old one runs it."""
    fleet = Fleet(place)
    async with release(fleet, 1, work=False) as old:
        handles = [await old.tasks["review"].submit(number) for number in range(5)]
        async with release(fleet, 2) as new:
            await parked(new, 5)
            fits = await new.tasks["review"].submit(9, "acme")
            assert ["second 9 acme"] == await results([fits])
            why = await new.why(handles[0].id)
            info = await handles[0].refresh()
            assert ("queued", 0) == (info.status, info.attempt)
            assert 1 == new.counts.unfit_arguments
        assert 1 == len(unfit_arguments(caplog))
        for message in (why, unfit_arguments(caplog)[0], str(info.error)):
            assert "'tenant'" in message
            assert "review" in message
        assert "review(pr: int, tenant: str)" in unfit_arguments(caplog)[0]
        assert new.counts.corrupt == 0
        async with release(fleet, 1):
            assert [f"first {n}" for n in range(5)] == await results(handles)
            assert {1} == {one.attempt for one in handles}


@pytest.mark.rows("TR-11")
async def test_a_new_argument_met_by_an_old_worker_waits_for_a_new_one(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The old worker does not run it without the argument, and does not fail it."""
    fleet = Fleet(place)
    async with release(fleet, 1) as old, release(fleet, 2, work=False) as new:
        handle = await new.tasks["review"].submit(1, "acme")
        await parked(old, 1)
        assert "'tenant'" in unfit_arguments(caplog)[0]
        assert "does not take" in unfit_arguments(caplog)[0]
        async with release(fleet, 2):
            assert ["second 1 acme"] == await results([handle])


@pytest.mark.rows("TR-11")
async def test_two_releases_beside_each_other_run_what_each_understands(place: Place) -> None:
    """A worker never claims again what it could not read, so neither spins."""
    fleet = Fleet(place)
    async with release(fleet, 1) as old, release(fleet, 2) as new:
        handles = []
        for number in range(6):
            handles.append(await old.tasks["review"].submit(number))
            handles.append(await new.tasks["review"].submit(number, "acme"))
        expected = [result for n in range(6) for result in (f"first {n}", f"second {n} acme")]
        assert expected == await results(handles)
        await asyncio.sleep(100)
        turns = [worker.turns for mp in (old, new) for worker in internals_of(mp).runtime.workers]
        assert sum(turns) < 200


@pytest.mark.rows("TR-11")
async def test_an_argument_of_another_type_is_parked_and_runs_after_a_rollback(
    place: Place,
) -> None:
    """A number where text is wanted now; what no version reads stays parked."""
    fleet = Fleet(place)
    before, after, third = (fleet.millpond(work=work) for work in (False, True, True))
    for mp in (before, after, third):
        mp.pool("reviews")

    @before.task(name="job")
    async def takes_number(value: int) -> int:
        return value

    @after.task(name="job")
    async def takes_text(value: str) -> str:
        return value

    @third.task(name="job")
    async def takes_list(value: list[int]) -> int:
        return sum(value)

    async with before:
        handle = await before.get_pool("reviews").submit(takes_number.bind(7))
        async with after:
            await parked(after, 1)
            async with third:
                await asyncio.sleep(50)
                await parked(after, 1)
                assert "'value' is not what" in await third.why(handle.id)
        again = fleet.millpond(work=True)
        again.pool("reviews")
        again.task(name="job")(inspect.unwrap(takes_number))
        async with again:
            assert [7] == await results([handle])


@dataclass
class Order:
    """What a task takes; what it objects to is no part of its type."""

    amount: int
    most = 10

    def __post_init__(self) -> None:
        if self.amount > self.most:
            raise ValueError(f"more than {self.most}")


@pytest.mark.rows("TR-11")
async def test_a_fix_that_no_signature_shows_takes_a_redrive(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of the same signature leaves a parked task alone until it is redriven."""
    fleet = Fleet(place)
    mp = fleet.millpond(work=True)
    pool = mp.pool("reviews")

    @pool.task
    async def pay(order: Order) -> int:
        return order.amount

    async with mp:
        monkeypatch.setattr(Order, "most", 1_000)
        big = pay.bind(Order(100))
        payload = internals_of(big).encode()
        monkeypatch.setattr(Order, "most", 10)
        monkeypatch.setattr(type(internals_of(big)), "encode", lambda _self: payload)
        handle = await pool.submit(big)
        await parked(mp, 1)
    monkeypatch.setattr(Order, "most", 1_000)
    async with mp:
        await asyncio.sleep(100)
        assert 1 == (await pool.snapshot()).parked
        assert 1 == await pool.redrive([handle.id])
        assert [100] == await results([await mp.handle(handle.id, of=pay)])


@pytest.mark.rows("TR-11")
@pytest.mark.stores("memory")
async def test_after_a_day_it_fails_for_its_own_reason_and_a_redrive_brings_it_back() -> None:
    """The failure says which argument and which function, with no attempt charged."""
    fleet = Fleet()
    async with release(fleet, 1, work=False) as old, release(fleet, 2):
        handle = await old.tasks["review"].submit(3)
        with pytest.raises(TaskFailed, match="MILL-096") as failure:
            await asyncio.wait_for(result_of(handle), DAY + 600)
        assert ("unfit_arguments", 0) == (failure.value.reason, failure.value.attempts)
        assert "ArgumentsDoNotFit" in failure.value.error_type
        assert "'tenant'" in failure.value.error_message
        async with release(fleet, 1):
            assert 1 == await old.get_pool("reviews").redrive([handle.id])
            assert ["first 3"] == await results([await old.handle(handle.id)])


@pytest.mark.rows("TR-11")
@pytest.mark.parametrize(
    "options",
    [{"prefetch": 4}, {"ordered": True}, {"lanes": 2}, {"max_per_key": 1}, {"queue": fifo()}],
    ids=lambda given: next(iter(given)),
)
async def test_tasks_that_do_not_fit_wait_in_every_kind_of_pool(
    place: Place, options: dict[str, Any]
) -> None:
    """With prefetch, lanes and keys such a task waits, uncharged, for a worker that reads it."""
    fleet = Fleet(place)
    async with release(fleet, 1, work=False, **options) as old:
        handles = [await old.tasks["review"].submit(number) for number in range(8)]
        async with release(fleet, 2, **options) as new:
            # In two lanes only the heads are met; each blocks its lane.
            await parked(new, 2 if "lanes" in options else 8)
        async with release(fleet, 1, **options):
            assert [f"first {n}" for n in range(8)] == await results(handles)
            assert {1} == {one.attempt for one in handles}


@pytest.mark.rows("TR-11")
async def test_an_item_of_a_batch_that_does_not_fit_leaves_the_others_alone(place: Place) -> None:
    """The rest of the batch is run, and the item waits for a worker that reads it."""
    fleet = Fleet(place)
    old, new = fleet.millpond(work=False), fleet.millpond(work=True)

    @old.pool("reviews").batch_task(name="job", size=4, linger=0.01)
    async def numbers(items: list[int]) -> list[int]:
        return items

    @new.pool("reviews").batch_task(name="job", size=4, linger=0.01)
    async def texts(items: list[str]) -> list[str]:
        return items

    async with old, new:
        first = await numbers.submit(1)
        second = await texts.submit("two")
        assert ["two"] == await results([second])
        await parked(new, 1)
        assert 0 == (await first.refresh()).attempt


@pytest.mark.rows("TR-11")
async def test_a_run_of_which_only_such_tasks_are_left_is_stuck(place: Place) -> None:
    """It names the function and the argument."""
    fleet = Fleet(place)
    async with release(fleet, 1, work=False) as old, release(fleet, 2):
        with pytest.raises(Stuck, match="'tenant'"):
            async with old.get_pool("reviews").run("nightly") as run:
                await run.submit(old.tasks["review"].bind(1))


@pytest.mark.rows("TR-11")
async def test_a_callback_that_does_not_fit_waits_too(place: Place) -> None:
    """on_complete is a call like any other: its stored arguments meet another function."""
    fleet = Fleet(place)
    old, new, third = (fleet.millpond(work=work) for work in (False, True, True))
    heard: list[str] = []
    for mp in (old, new, third):

        @mp.pool("reviews").task
        async def review(pr: int) -> int:
            return pr

    @old.task(name="note")
    async def note(outcome: Outcome, channel: str) -> None: ...

    @new.task(name="note")
    async def renamed(outcome: Outcome, room: str) -> None: ...

    @third.task(name="note")
    async def as_before(outcome: Outcome, channel: str) -> None:
        heard.append(channel)

    async with old:
        call = old.tasks["review"].bind(1).options(on_complete=note.bind("#ops"))
        handle = await old.get_pool("reviews").submit(call)
        async with new:
            assert [1] == await results([handle])
            await until(partial(_true, lambda: new.counts.unfit_arguments == 1))
        async with third:
            await until(partial(_true, lambda: bool(heard)))
    assert ["#ops"] == heard


@pytest.mark.rows("TR-11")
async def test_a_handler_that_ran_is_never_taken_for_one_that_could_not_be_read(
    place: Place,
) -> None:
    """An unreadable result of another task, met in a handler, is an error of that handler."""
    fleet = Fleet(place)
    mp = fleet.millpond(work=True)
    pool = mp.pool("reviews")

    @pool.task
    async def number() -> int:
        return 1

    @mp.task(name="as_text")
    async def as_text() -> list[str]:
        return []

    @pool.task
    async def reads(ctx: Context, task: int) -> str:
        return str(await (await mp.handle(task, of=as_text)))

    async with mp:
        handle = await number.submit()
        await results([handle])
        with pytest.raises(TaskFailed) as failure:
            await (await reads.options(retry=Retry.never()).submit(handle.id))
        assert (None, 1) == (failure.value.reason, failure.value.attempts)


@pytest.mark.rows("TR-11")
@pytest.mark.real_loop
async def test_tasks_that_do_not_fit_wait_for_a_worker_of_another_program(url: str) -> None:
    """With hints, threads and the fast path: one program parks it, the other runs it."""

    def application(number: int, *, work: bool) -> Millpond:
        mp = Millpond(url, work=work)
        pool = mp.pool("reviews", max_concurrent=4, prefetch=8)
        if number == 1:

            @pool.task(name="review")
            def first(pr: int) -> int:
                return pr

        else:

            @pool.task(name="review")
            def second(number: int) -> int:
                return -number

        return mp

    async with application(1, work=False) as old:
        handles = [await old.tasks["review"].submit(number) for number in range(30)]
        async with application(2, work=True) as new:
            await parked(new, 30)
            turns = sum(worker.turns for worker in internals_of(new).runtime.workers)
            more = [await new.tasks["review"].submit(number) for number in range(10)]
            assert [-n for n in range(10)] == await results(more)
            assert sum(worker.turns for worker in internals_of(new).runtime.workers) < turns + 60
        async with application(1, work=True):
            assert list(range(30)) == await results(handles)
            assert {1} == {one.attempt for one in handles}
