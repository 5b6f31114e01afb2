"""Results: a handle answers with what the handler returned, or raises."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from tests.pool.fleet import Fleet
from tests.pool.moments import result_of
from verify.servers.schemas import Schema

from millpond import Context, Keep, Millpond, Outcome, Retry, TaskFailed
from millpond.errors import ResultNotStored, ResultUnreadable, UnknownTask

Place = Path | Schema


@dataclass
class Point:
    """Something that JSON does not know."""

    x: int


class Color(StrEnum):
    """Text that is more than text."""

    RED = "red"


PLAIN: list[Any] = [None, 0, True, 1.0, "text", [1, [2.5, None]], {"a": {"b": [1]}}, [], ""]
OTHER: list[Any] = [(1, 2), {1}, Point(1), Color.RED, {1: "a"}, [(1,)], b"x", object(), "\ud800"]


def giving(value: Any) -> Callable[[], Any]:
    """Return a closure, of the same name each time."""

    async def give() -> Any:
        return value

    return give


async def ended(fleet: Fleet, value: Any) -> int:
    """Let a closure return a value in a process that ends; return its task."""
    mp = fleet.millpond(work=True)
    async with mp:
        handle = await mp.pool("jobs").submit(giving(value), idempotency_key="once")
        assert value is await result_of(handle)
    return handle.id


@pytest.mark.rows("TR-10")
@pytest.mark.parametrize("value", PLAIN, ids=repr)
async def test_a_closures_plain_result_is_there_after_a_restart(place: Place, value: Any) -> None:
    """The same value in the same type: by its id, and for the same key."""
    fleet = Fleet(place)
    task = await ended(fleet, value)
    mp = fleet.millpond(work=True)
    async with mp:
        again = await mp.pool("jobs").submit(giving("other"), idempotency_key="once")
        assert (True, task) == (again.duplicate, again.id)
        for handle in (again, await mp.handle(task)):
            got = await result_of(handle)
            assert (value, type(value)) == (got, type(got))
            assert value == handle.result


@pytest.mark.rows("TR-10")
@pytest.mark.parametrize("value", OTHER, ids=lambda value: type(value).__name__)
async def test_a_result_that_could_not_be_stored_raises_when_it_is_read_later(
    place: Place, value: Any
) -> None:
    """The error names the task and says what to do; the task itself is completed."""
    fleet = Fleet(place)
    task = await ended(fleet, value)
    mp = fleet.millpond(work=True)
    async with mp:
        handle = await mp.pool("jobs").submit(giving("other"), idempotency_key="once")
        assert ("completed", True) == (handle.status, handle.duplicate)
        with pytest.raises(ResultNotStored, match=str(task)) as missing:
            await handle
        assert (task, "jobs") == (missing.value.task_id, missing.value.pool)
        with pytest.raises(ResultNotStored):
            _ = (await mp.handle(task)).result
        assert "completed" == (await (await mp.handle(task)).wait()).status


@pytest.mark.rows("TR-10")
async def test_a_result_that_is_too_large_is_not_stored_either(place: Place) -> None:
    """A closure does not fail for it, as it did its work; reading it later raises."""
    fleet = Fleet(place)
    task = await ended(fleet, "x" * (2 << 20))
    mp = fleet.millpond(work=False)
    mp.pool("jobs")
    async with mp:
        with pytest.raises(ResultNotStored):
            await (await mp.handle(task))


@pytest.mark.rows("TR-10")
async def test_a_result_whose_function_is_not_known_here_is_not_made_up(place: Place) -> None:
    """A handle made from an id has no type for it; `of=` names the function."""
    fleet = Fleet(place)
    first, second = fleet.millpond(work=True), fleet.millpond(work=False)
    second.pool("jobs")

    @first.pool("jobs").task
    async def job() -> list[int]:
        return [1]

    async with first, second:
        handle = await job.submit()
        await handle
        with pytest.raises(ResultUnreadable, match="job"):
            await (await second.handle(handle.id))
        assert [1] == await (await second.handle(handle.id, of=job))


@pytest.mark.rows("TR-10")
async def test_a_closure_of_the_name_of_a_task_is_not_read_as_that_task(place: Place) -> None:
    """What it returned comes back, whatever the task of that name returns."""
    fleet = Fleet(place)
    mp = fleet.millpond(work=True)
    pool = mp.pool("jobs")

    async def job() -> dict[str, int]:
        return {"a": 1}

    job.__qualname__ = "job"

    @pool.task(name="job")
    async def registered() -> int:
        return 1

    async with mp:
        task = (await (await pool.submit(job)).wait()).id
    async with mp:
        assert {"a": 1} == await (await mp.handle(task))


@pytest.mark.rows("TR-10")
async def test_a_result_that_retention_took_is_an_error(place: Place) -> None:
    """The key is still known; its result is gone, and no other value takes its place."""
    fleet = Fleet(place)
    mp = fleet.millpond(work=True, keep=Keep(completed=1.0))
    pool = mp.pool("jobs")
    async with mp:
        first = await pool.submit(giving(7), idempotency_key="once")
        assert 7 == await first
        await asyncio.sleep(200)
        again = await pool.submit(giving(7), idempotency_key="once")
        assert again.duplicate
        with pytest.raises(UnknownTask, match="no longer kept"):
            await again
        with pytest.raises(UnknownTask, match="no longer kept"):
            _ = again.result


@pytest.mark.rows("TR-10")
async def test_a_callback_sees_whether_a_result_was_stored(place: Place) -> None:
    """`result` is None for a result that was not stored; `result_stored` says which it is."""
    fleet = Fleet(place)
    mp = fleet.millpond(work=True)
    pool = mp.pool("jobs")
    heard: list[tuple[Any, bool]] = []

    @mp.task
    async def note(outcome: Outcome) -> None:
        heard.append((outcome.result, outcome.result_stored))

    async with mp:
        for value in (5, None, (1, 2)):
            await (await pool.submit(giving(value), on_complete=note.bind()))
            await pool.drain()
    assert [(5, True), (None, True), (None, False)] == heard


@pytest.mark.rows("TR-10")
@pytest.mark.parametrize("value", [(1, 2), Color.RED, Point(1)], ids=["tuple", "enum", "dataclass"])
async def test_a_step_never_comes_back_as_another_type(place: Place, value: Any) -> None:
    """ctx.once refuses what a later attempt would get as something else."""
    fleet = Fleet(place)
    mp = fleet.millpond(work=True)
    pool = mp.pool("jobs", retry=Retry.never())

    async def step() -> Any:
        return value

    @pool.task
    async def job(ctx: Context) -> None:
        await ctx.once("step", step)

    async with mp:
        with pytest.raises(TaskFailed, match="come back the same"):
            await (await job.submit())


async def test_in_memory_a_closure_gives_the_very_object() -> None:
    """Nothing is encoded where nothing outlives the process."""
    mp = Millpond()
    pool = mp.pool("jobs")
    thing = object()
    async with mp:
        handle = await pool.submit(giving(thing))
        assert thing is await handle
        assert thing is await (await mp.handle(handle.id))
