"""on_complete: run once per end, in its own queue, never lost; also dead letters and on_empty."""

import asyncio
from dataclasses import dataclass

import pytest
from tests.pool.stores import any_pace, rounds  # noqa: F401 - a fixture

from millpond import (
    ConfigError,
    Context,
    DeadLetter,
    Empty,
    GiveUp,
    Millpond,
    Outcome,
    Retry,
    SyncContext,
    bounded,
    fifo,
    ring_buffer,
)
from millpond.pool.internals import internals_of

pytestmark = pytest.mark.usefixtures("any_pace")


@dataclass
class Report:
    pages: int


class Desk:
    """A pool, and a callback that notes the outcomes it gets."""

    def __init__(self, **options: object) -> None:
        self.mp = Millpond()
        options.setdefault("retry", Retry.never())
        self.pool = self.mp.pool("work", **options)  # type: ignore[arg-type]
        self.outcomes: list[Outcome] = []

        @self.mp.task
        async def note(outcome: Outcome) -> None:
            self.outcomes.append(outcome)

        self.note = note

        @self.pool.task
        async def job(what: str) -> Report:
            if what == "fail":
                raise OSError("no paper")
            if what == "wait":
                await asyncio.sleep(1000)
            return Report(len(what))

        self.job = job.options(on_complete=note.bind())


@pytest.mark.rows("CX-18", "CX-T20", "CX-17")
async def test_a_callback_gets_a_completed_task_once_with_its_typed_result() -> None:
    """The outcome has the task's id, pool, key, labels and its result as the type it had."""
    desk = Desk()
    async with desk.mp:
        handle = await desk.pool.submit(desk.job.bind("four"), key="acme", labels={"size": "A4"})
        assert Report(4) == await handle
        await desk.pool.drain()
        await asyncio.sleep(1000)
    (outcome,) = desk.outcomes
    assert (handle.id, "work", "job", "completed", "acme", {"size": "A4"}, Report(4), None, 1) == (
        outcome.task_id,
        outcome.pool,
        outcome.function,
        outcome.status,
        outcome.key,
        outcome.labels,
        outcome.result,
        outcome.error,
        outcome.attempts,
    )
    assert outcome.ok


@pytest.mark.rows("CX-18", "CX-T101")
async def test_a_callback_gets_a_failed_task_once_with_its_error() -> None:
    """The callback of a task that failed knows the type and the message."""
    desk = Desk()
    async with desk.mp:
        await (await desk.job.submit("fail")).wait()
        await desk.pool.drain()
    (outcome,) = desk.outcomes
    assert not outcome.ok
    assert ("failed", "OSError", "no paper") == (
        outcome.status,
        outcome.error.type if outcome.error else None,
        outcome.error.message if outcome.error else None,
    )


@pytest.mark.rows("CX-18", "CX-T119")
@pytest.mark.parametrize("running", [False, True])
async def test_a_callback_gets_a_cancelled_task_once(running: bool) -> None:
    """A task cancelled while it waited or ran calls back with cancelled."""
    desk = Desk()
    async with desk.mp:
        if not running:
            await desk.pool.pause()
        handle = await desk.job.submit("wait")
        await rounds()
        await handle.cancel("interrupt")
        await handle.wait()
        await desk.pool.drain()
    assert ["cancelled"] == [outcome.status for outcome in desk.outcomes]


@pytest.mark.rows("CX-18")
async def test_a_callback_gets_an_evicted_task_once() -> None:
    """A task that was accepted and then evicted calls back with rejected."""
    desk = Desk(backpressure=ring_buffer(1))
    async with desk.mp:
        await desk.pool.pause()
        old = await desk.job.submit("old")
        await desk.job.submit("young")
        await rounds()
        assert [(old.id, "rejected")] == [(o.task_id, o.status) for o in desk.outcomes]


async def test_a_task_refused_at_submit_has_no_callback() -> None:
    """The task was never accepted; submit() returned the refusal."""
    desk = Desk(backpressure=bounded(1, on_full="drop_newest"))
    async with desk.mp:
        await desk.pool.pause()
        await desk.job.submit("first")
        refused = await desk.job.submit("second")
        assert "rejected" == refused.status
        await rounds()
        assert [] == desk.outcomes


async def test_callbacks_run_although_the_pool_is_full_or_paused() -> None:
    """They have their own queue: outside max_concurrent, bound, order and pause."""
    desk = Desk(max_concurrent=1, backpressure=bounded(1, on_full="fail_submitter"))
    async with desk.mp:
        first = await desk.job.submit("a")
        await first
        await desk.job.submit("wait")
        await rounds()
        waiting = await desk.job.submit("b")
        await waiting.cancel()
        await desk.job.submit("c")
        await desk.pool.pause()
        await rounds()
        assert ["completed", "cancelled"] == [outcome.status for outcome in desk.outcomes]


async def test_callbacks_have_a_limit_of_their_own() -> None:
    """At most max_callbacks run at once."""
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=20, max_callbacks=3)
    running = most = ran = 0

    @mp.task
    async def slow(outcome: Outcome) -> None:
        nonlocal running, most, ran
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        ran += 1

    @pool.task
    async def job() -> None:
        pass

    async with mp:
        await pool.submit_many((job.bind() for _ in range(20)), on_complete=slow.bind())
        await pool.drain()
    assert (3, 20) == (most, ran)


async def test_a_full_worker_still_calls_back() -> None:
    """A worker whose slots are all taken by long jobs still runs callbacks."""
    mp = Millpond(work=False)
    pool = mp.pool("work", max_concurrent=5)
    seen: list[str] = []

    @mp.task
    async def note(outcome: Outcome) -> None:
        seen.append(outcome.status)

    @pool.task
    async def job() -> None:
        await asyncio.sleep(1000)

    async with mp, mp.worker(concurrency=1):
        await job.submit()
        await rounds()
        waiting = await job.options(on_complete=note.bind()).submit()
        await waiting.cancel()
        await rounds()
        assert ["cancelled"] == seen


@pytest.mark.rows("CX-17")
async def test_a_callback_that_fails_is_tried_again_and_touches_nothing() -> None:
    """Its failure never changes the end of its task."""
    mp = Millpond()
    pool = mp.pool("work")
    attempts: list[int] = []

    @mp.task
    async def shaky(ctx: Context, outcome: Outcome) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 4:
            raise OSError("line busy")

    @pool.task
    async def job() -> str:
        return "done"

    async with mp:
        handle = await job.options(on_complete=shaky.bind()).submit()
        assert "done" == await handle
        await pool.drain()
        assert [1, 2, 3, 4] == attempts
        await handle.refresh()
        assert ("completed", "done") == (handle.status, handle.result)
        assert (1, 0) == ((s := await pool.snapshot()).completed, s.failed)


async def test_drain_waits_for_callbacks_and_unsettled_lists_them() -> None:
    """drain waits for a callback that has not run, and unsettled shows it."""
    mp = Millpond()
    pool = mp.pool("work")
    done = False

    @mp.task
    async def slow(outcome: Outcome, channel: str) -> None:
        nonlocal done
        await asyncio.sleep(30)
        done = channel == "#ops"

    @pool.task
    async def job() -> None:
        pass

    async with mp:
        await (await job.options(on_complete=slow.bind(channel="#ops")).submit())
        await rounds()
        listed = await mp.unsettled()
        assert [("slow", "running")] == [(info.function, info.status) for info in listed]
        assert 0 == await pool.size()
        await pool.drain()
        assert done
        assert [] == await mp.unsettled()


async def test_a_callback_in_a_run_is_waited_for() -> None:
    """A run's drain returns after its callbacks."""
    desk = Desk()
    async with desk.mp:
        report = await desk.pool.drain([desk.job.bind("a"), desk.job.bind("fail")])
        assert (1, 1) == (report.completed, report.failed)
        assert ["completed", "failed"] == sorted(outcome.status for outcome in desk.outcomes)


async def test_a_callback_may_take_a_context_and_arguments() -> None:
    """ctx first, then the outcome, then the bound arguments."""
    mp = Millpond()
    pool = mp.pool("work")
    seen: list[tuple[str, str, int]] = []

    @mp.task
    async def note(ctx: Context, outcome: Outcome, channel: str, count: int = 1) -> None:
        seen.append((ctx.pool, channel, count))

    @pool.task
    async def job() -> None:
        pass

    async with mp:
        await job.options(on_complete=note.bind("#a", count=2)).submit()
        await pool.drain()
    assert [("work", "#a", 2)] == seen


async def test_a_bad_callback_is_refused_at_submit() -> None:
    """A value that is no call, or a call with wrong arguments, stores nothing."""
    desk = Desk()

    @desk.mp.task
    async def loud(outcome: Outcome, channel: str) -> None: ...

    @desk.mp.task
    async def deaf() -> None: ...

    async with desk.mp:
        await desk.pool.pause()
        with pytest.raises(ConfigError, match="on_complete"):
            await desk.pool.submit(desk.job.bind("a"), on_complete=rounds)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="channel"):
            await desk.job.function.options(on_complete=loud.bind(channel=5)).submit("a")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="outcome"):
            await desk.job.function.options(on_complete=deaf.bind()).submit("a")
        assert 0 == await desk.pool.size()


@pytest.mark.real_loop
async def test_a_plain_function_may_be_the_callback() -> None:
    """A def callback runs in a thread and gets a SyncContext."""
    mp = Millpond()
    pool = mp.pool("work")
    seen: list[tuple[type, str]] = []

    @mp.task
    def note(ctx: SyncContext, outcome: Outcome) -> None:
        seen.append((type(ctx), outcome.status))

    @pool.task
    async def job() -> None:
        pass

    async with mp:
        await job.options(on_complete=note.bind()).submit()
        await pool.drain()
    assert [(SyncContext, "completed")] == seen


async def test_a_closure_calls_back_without_its_value() -> None:
    """The callback runs as for any task; the value of a closure is in no store."""
    desk = Desk()
    async with desk.mp:
        handle = await desk.pool.submit(rounds, on_complete=desk.note.bind())
        await handle
        await desk.pool.drain()
    assert [("completed", None)] == [(o.status, o.result) for o in desk.outcomes]


async def test_a_redriven_task_calls_back_again() -> None:
    """It runs for the failure, and for the completion after the redrive."""
    mp = Millpond()
    pool = mp.pool("work", retry=Retry.never())
    seen: list[str] = []
    healthy = False

    @mp.task
    async def note(outcome: Outcome) -> None:
        seen.append(outcome.status)

    @pool.task
    async def job() -> None:
        if not healthy:
            raise OSError

    async with mp:
        handle = await job.options(on_complete=note.bind()).submit()
        await handle.wait()
        healthy = True
        await pool.redrive([handle])
        await pool.drain()
    assert ["failed", "completed"] == seen


# Dead letters and on_empty


async def test_a_dead_letter_has_everything_and_can_be_redriven() -> None:
    """on_dead_letter gets the task, its payload, its error and its attempts, once."""
    letters: list[DeadLetter] = []
    mp = Millpond()
    pool = mp.pool(
        "work", retry=Retry(attempts=2, initial=1.0), on_dead_letter=letters.append, queue=fifo()
    )

    @pool.task(key="name")
    async def job(name: str) -> None:
        if name == "bad":
            raise OSError("always")
        if name == "hopeless":
            raise GiveUp("no use")

    async with mp:
        bad = await job.submit("bad")
        await (await job.submit("good")).wait()
        await bad.wait()
        (letter,) = letters
        assert (bad.id, "work", "job", 2, "bad") == (
            letter.task_id,
            letter.pool,
            letter.function,
            letter.attempts,
            letter.key,
        )
        assert b"bad" in letter.payload
        assert letter.error is not None
        assert ("OSError", "always") == (letter.error.type, letter.error.message)
        await (await job.submit("hopeless")).wait()
        assert 2 == len(letters)
        listed = await pool.tasks(status="failed")
        assert ["bad", "hopeless"] == [info.key for info in listed]
        assert 2 == await pool.redrive([info.id for info in listed])
        await pool.drain()
        assert 4 == len(letters)


async def test_a_task_that_no_handler_ended_is_a_dead_letter_too() -> None:
    """A task that expired in the queue becomes a dead letter like one that failed."""
    letters: list[DeadLetter] = []
    mp = Millpond()
    pool = mp.pool("work", on_dead_letter=letters.append)

    @pool.task
    async def job() -> None: ...

    async with mp:
        await pool.pause()
        handle = await job.options(expires_in=10).submit()
        await handle.wait(timeout=20)
        await rounds()
        assert [(handle.id, "expired")] == [(one.task_id, one.reason) for one in letters]


async def test_hooks_that_fail_are_counted_and_nothing_else() -> None:
    """A hook that raises, at once or when awaited, changes no outcome."""
    mp = Millpond()

    async def later(_: Empty) -> None:
        await asyncio.sleep(1)
        raise RuntimeError("empty")

    def now(_: DeadLetter) -> None:
        raise RuntimeError("dead")

    pool = mp.pool("work", retry=Retry.never(), on_dead_letter=now, on_empty=later)

    @pool.task
    async def job() -> None:
        raise OSError

    async with mp:
        handle = await job.submit()
        assert "failed" == (await handle.wait()).status
        await asyncio.sleep(5)
        assert 2 == internals_of(mp).runtime.counts.hook_errors
        assert "failed" == (await (await job.submit()).wait()).status


@pytest.mark.rows("TRAP-5")
async def test_on_empty_fires_once_each_time_the_pool_runs_dry() -> None:
    """Not for each task, and again after the next backlog."""
    empties: list[Empty] = []
    mp = Millpond()
    pool = mp.pool("work", max_concurrent=2, on_empty=empties.append)

    @pool.task
    async def job() -> None:
        await asyncio.sleep(1)

    async with mp:
        for expected in (5, 10):
            await mp.wait(await pool.submit_many(job.bind() for _ in range(5)))
            assert expected == empties[-1].processed
        assert 2 == len(empties)


async def test_observers_that_raise_are_counted_and_the_others_are_called() -> None:
    """A bad observer changes nothing for tasks and other observers."""
    mp = Millpond()
    pool = mp.pool("work")
    seen: list[str] = []

    def bad(_: object) -> None:
        raise RuntimeError("observer")

    mp.observe(bad)
    stop = mp.observe(lambda happened: seen.append(happened.kind))

    @pool.task
    async def job() -> str:
        return "done"

    async with mp:
        assert "done" == await (await job.submit())
        assert (["completed"], 1) == (seen, internals_of(mp).runtime.counts.observer_errors)
        stop()
        stop()
        await (await job.submit())
        assert ["completed"] == seen
