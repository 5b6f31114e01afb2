"""run.on_complete and pool.when_all: a call that runs once when all tasks of a run have ended."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from tests.pool.stores import any_pace  # noqa: F401 - a fixture

from millpond import ConfigError, Context, Millpond, Outcome, Retry, RunOutcome, SyncContext
from millpond.errors import RunStopped

pytestmark = pytest.mark.usefixtures("any_pace")


@dataclass
class Thumbnail:
    photo: str


class Studio:
    """A pool whose runs report to a list."""

    def __init__(self, **options: Any) -> None:
        self.mp = Millpond()
        self.pool = self.mp.pool("photos", max_concurrent=2, retry=Retry.never(), **options)
        self.noted: list[tuple[RunOutcome, str]] = []

        @self.mp.task
        async def publish(outcome: RunOutcome, album: str) -> None:
            self.noted.append((outcome, album))

        self.publish = publish

        @self.pool.task
        async def shrink(ctx: Context, photo: str) -> Thumbnail:
            if photo == "broken":
                raise OSError("not a photo")
            if photo == "pair":
                await ctx.submit(shrink.bind("second"))
            return Thumbnail(photo)

        self.shrink = shrink

    async def only_outcome(self) -> RunOutcome:
        """Wait for an idle pool; return the outcome of the one callback."""
        await self.pool.drain()
        ((outcome, album),) = self.noted
        assert "summer" == album
        return outcome


@pytest.mark.rows("DP-23")
async def test_when_all_runs_a_call_after_the_last_task_with_typed_results() -> None:
    """The results are in the order of the calls, in the type that the function returns."""
    studio = Studio()
    async with studio.mp:
        calls = [studio.shrink.bind(photo) for photo in ("a", "b", "c")]
        handles = await studio.pool.when_all(calls, then=studio.publish.bind(album="summer"))
        assert Thumbnail("b") == await handles[1]
        outcome = await studio.only_outcome()
    assert [Thumbnail("a"), Thumbnail("b"), Thumbnail("c")] == outcome.results
    assert [handle.id for handle in handles] == [task.task_id for task in outcome.tasks]
    assert ("photos", None, 3, 3, True, 0) == (
        outcome.pool,
        outcome.name,
        outcome.total,
        outcome.completed,
        outcome.ok,
        outcome.left_out,
    )
    assert outcome.opened_at <= outcome.finished_at


async def test_a_failed_task_does_not_keep_the_call_from_running() -> None:
    """The outcome counts the failure and has its error."""
    studio = Studio()
    async with studio.mp:
        await studio.pool.when_all(
            studio.shrink.each(["a", "broken"]), then=studio.publish.bind("summer")
        )
        outcome = await studio.only_outcome()
    assert (1, 1, False, None) == (outcome.completed, outcome.failed, outcome.ok, outcome.stopped)
    assert [Thumbnail("a")] == outcome.results
    error = outcome.tasks[1].error
    assert error is not None
    assert "not a photo" == error.message


async def test_the_call_does_not_wait_for_another_callback() -> None:
    """It runs when a callback of one of its tasks ends the run, whatever retry is to come."""
    studio = Studio()

    @studio.mp.task(retry=Retry.constant(500.0))
    async def down(_: Outcome) -> None:
        raise OSError("the messenger is down")

    @studio.mp.task
    async def report(_: Outcome) -> None:
        pass

    async with studio.mp:
        await studio.pool.submit(studio.shrink.bind("a"), on_complete=down.bind())
        await asyncio.sleep(1.0)
        calls = [studio.shrink.bind("b").options(on_complete=report.bind())]
        await studio.pool.when_all(calls, then=studio.publish.bind("summer"))
        await asyncio.sleep(1.0)
        assert ["summer"] == [album for _, album in studio.noted]


async def test_on_error_fail_stops_the_run_and_then_calls() -> None:
    """The tasks that waited are cancelled; the call gets the reason."""
    studio = Studio()
    async with studio.mp:
        await studio.pool.pause()
        photos = ["broken", *("waits" for _ in range(5))]
        await studio.pool.when_all(
            studio.shrink.each(photos), then=studio.publish.bind("summer"), on_error="fail"
        )
        await studio.pool.resize(max_concurrent=1)
        await studio.pool.resume()
        outcome = await studio.only_outcome()
    assert (1, 5, "run_failed") == (outcome.failed, outcome.cancelled, outcome.stopped)


async def test_the_call_waits_for_follow_ups() -> None:
    """Follow-ups through ctx belong to the run."""
    studio = Studio()
    async with studio.mp:
        await studio.pool.when_all([studio.shrink.bind("pair")], then=studio.publish.bind("summer"))
        outcome = await studio.only_outcome()
    assert [Thumbnail("pair"), Thumbnail("second")] == outcome.results


async def test_all_of_nothing_calls_at_once() -> None:
    """An empty list of calls has ended when it is stored."""
    studio = Studio()
    async with studio.mp:
        assert [] == await studio.pool.when_all([], then=studio.publish.bind("summer"))
        assert (0, True) == ((outcome := await studio.only_outcome()).total, outcome.ok)


async def test_a_named_run_is_submitted_once() -> None:
    """The second when_all under a name stores nothing and returns no handles."""
    studio = Studio()
    async with studio.mp:
        for expected in (1, 0):
            handles = await studio.pool.when_all(
                [studio.shrink.bind("a")], then=studio.publish.bind("summer"), run="album-7"
            )
            assert expected == len(handles)
            await studio.pool.drain()
        assert "album-7" == (await studio.only_outcome()).name


@pytest.mark.rows("DP-24")
async def test_a_redrive_does_not_call_a_second_time() -> None:
    """A run that a redriven task ends again has called already."""
    studio = Studio()
    async with studio.mp:
        calls = [studio.shrink.bind("broken")]
        (handle,) = await studio.pool.when_all(calls, then=studio.publish.bind("summer"))
        await studio.only_outcome()
        assert 1 == await studio.pool.redrive([handle])
        await studio.only_outcome()


async def test_a_run_by_hand_takes_a_callback() -> None:
    """It is submitted when the block and the last task have ended; the last callback set counts."""
    studio = Studio()
    async with studio.mp:
        async with studio.pool.run("album") as run:
            await run.on_complete(studio.publish.bind("winter"))
            await run.on_complete(studio.publish.bind("summer"))
            await run.submit(studio.shrink.bind("a"))
        outcome = await studio.only_outcome()
    assert ("album", 1) == (outcome.name, outcome.completed)


async def test_a_run_that_was_left_with_an_error_calls_back() -> None:
    """It is cancelled, and that is an end."""
    studio = Studio()
    async with studio.mp:
        await studio.pool.pause()
        with pytest.raises(LookupError):
            async with studio.pool.run() as run:
                await run.on_complete(studio.publish.bind("summer"))
                await run.submit(studio.shrink.bind("a"))
                raise LookupError
        await studio.pool.resume()
        outcome = await studio.only_outcome()
    assert ("cancelled", 1) == (outcome.stopped, outcome.cancelled)


async def test_a_finished_run_takes_no_other_callback() -> None:
    """The same callback again is no error, so that a program may be run again."""
    studio = Studio()
    async with studio.mp:
        for _ in range(2):
            async with studio.pool.run("album") as run:
                await run.on_complete(studio.publish.bind("summer"))
        await studio.only_outcome()
        async with studio.pool.run("album") as run:
            with pytest.raises(RunStopped, match="had ended"):
                await run.on_complete(studio.publish.bind("winter"))


async def test_a_callback_is_checked_where_it_is_given() -> None:
    """A value that is no call, or a function without an outcome, is refused at once."""
    studio = Studio()

    @studio.mp.task
    async def no_outcome() -> None: ...

    async with studio.mp:
        with pytest.raises(ConfigError, match="must be a call"):
            await studio.pool.when_all([], then=studio.publish)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="must be a call"):
            await studio.pool.when_all([studio.shrink.bind("a")], then=None)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="must take the outcome"):
            await studio.pool.when_all([studio.shrink.bind("a")], then=no_outcome.bind())
        async with studio.pool.run() as run:
            with pytest.raises(ConfigError, match="must be a call"):
                await run.on_complete("publish")  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="must be a call"):
                await run.on_complete(None)  # type: ignore[arg-type]
        assert 0 == (await studio.pool.snapshot()).total
        with pytest.raises(ConfigError, match="is not open"):
            await studio.pool.run().on_complete(studio.publish.bind("summer"))


async def test_a_callback_that_waits_is_unsettled() -> None:
    """It is listed until it has run, with the function's name; a def function may be one."""
    studio = Studio()
    names: list[str] = []

    @studio.mp.task
    def note(ctx: SyncContext, outcome: RunOutcome) -> None:
        names.append(f"{ctx.pool} {outcome.total}")

    async with studio.mp:
        await studio.pool.when_all([], then=note.bind())
        assert ["note"] == [task.function for task in await studio.mp.unsettled()]
        await studio.pool.drain()
        assert [] == await studio.mp.unsettled()
    assert ["photos 0"] == names
