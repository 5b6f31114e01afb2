"""Slots, turns and hooks: no handler and no hook leaks a flag or a slot."""

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from millpond import Millpond, Outcome, Retry, bounded
from millpond.errors import PoolClosed
from millpond.pool.internals import internals_of
from millpond.runtime.jobs.job import current_job

T = TypeVar("T")

variable: contextvars.ContextVar[object] = contextvars.ContextVar("variable")


class Anything:
    """Something a context may hold."""


async def soon(awaitable: Awaitable[T]) -> T:
    """Await with a timeout of a minute."""
    async with asyncio.timeout(60):
        return await awaitable


async def a_second() -> None:
    """Take a second."""
    await asyncio.sleep(1)


def raises_cancelled(_: object) -> None:
    """Raise CancelledError, as the result of a cancelled future does."""
    raise asyncio.CancelledError


@pytest.mark.parametrize("by", ["observer", "on_empty", "on_dead_letter"])
async def test_a_hook_that_raises_a_cancellation_is_counted_like_any_other(by: str) -> None:
    """The CancelledError comes from a cancelled future, and cancels no task of the pool."""
    hooks: dict[str, Any] = {} if by == "observer" else {by: raises_cancelled}
    mp = Millpond()
    pool = mp.pool("p", retry=Retry.never(), **hooks)
    other = mp.pool("other")
    if by == "observer":
        mp.observe(raises_cancelled)

    async def fails() -> None:
        await asyncio.sleep(1)
        raise ValueError

    async with mp:
        for work in (a_second, fails, a_second):
            await soon((await pool.submit(work)).wait())
        await soon(await other.submit(a_second))
        assert mp.counts.hook_errors + mp.counts.observer_errors > 0


@pytest.mark.parametrize("slots", [1, 2, 5])
async def test_cancelling_the_task_of_an_idle_slot_costs_no_slot(slots: int) -> None:
    """A handler cancels its own asyncio task late, when the slot is idle or runs another job."""
    mp = Millpond()
    pool = mp.pool("p", max_concurrent=slots)

    async def cancels_later() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(5, task.cancel)
        await asyncio.sleep(1)

    async with mp:
        for handle in [await pool.submit(cancels_later) for _ in range(slots)]:
            await soon(handle)
        await asyncio.sleep(10)
        (worker,) = internals_of(mp).runtime.workers
        assert [] == [slot for slot in worker.slots.all if slot.task.done()]
        assert set(worker.slots.idle) == worker.slots.all
        for handle in [await pool.submit(a_second) for _ in range(2 * slots)]:
            await soon(handle)


async def test_a_handler_that_cancels_its_own_task_fails_only_its_attempt() -> None:
    """The other tasks run in other slots."""
    mp = Millpond()
    pool = mp.pool("p", retry=Retry.never())

    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async with mp:
        handles = [await pool.submit(one) for one in (cancels_itself, a_second, a_second)]
        for handle in handles:
            await soon(handle.wait())
        assert ["failed", "completed", "completed"] == [handle.status for handle in handles]


async def test_a_slot_keeps_nothing_of_the_context_it_was_made_in() -> None:
    """The slot does not keep the submitter that caused it alive."""
    mp = Millpond()
    pool = mp.pool("p", max_concurrent=3)
    held: list[weakref.ref[Anything]] = []

    async def request() -> None:
        something = Anything()
        variable.set(something)
        held.append(weakref.ref(something))
        await (await pool.submit(a_second))

    async with mp:
        for _ in range(3):
            await asyncio.create_task(request())
        await asyncio.sleep(100)
        gc.collect()
        assert [None] * 3 == [one() for one in held]


async def test_a_hook_does_not_run_in_the_context_of_a_job() -> None:
    """Also when the submit of a handler triggered the hook."""
    seen = []

    async def hook(_: object) -> None:
        seen.append((current_job.get(), (await pool.submit(a_second)).submitted_by))

    mp = Millpond()
    pool = mp.pool("p")
    emptied = mp.pool("emptied", on_empty=hook, backpressure=bounded(1, on_full="drop_oldest"))

    async def handler() -> None:
        await emptied.submit(a_second)
        await emptied.purge()
        await asyncio.sleep(1)

    async with mp:
        await emptied.pause()
        await soon(await pool.submit(handler))
        await asyncio.sleep(1)
    assert [(None, "user")] == seen


async def test_hundreds_of_full_pools_do_not_keep_callbacks_from_their_turn() -> None:
    """One worker with one slot: each pool has its turn, and each callback runs at once."""
    mp = Millpond(work=False)
    pools = [mp.pool(f"p{number}") for number in range(600)]
    times: list[float] = []
    work = mp.task(a_second)

    @mp.task
    async def note_time(_outcome: Outcome) -> None:
        times.append(asyncio.get_running_loop().time())

    async with mp, mp.worker(concurrency=1):
        begun = asyncio.get_running_loop().time()
        for pool in pools:
            await pool.submit(work.bind(), on_complete=note_time.bind())
        await asyncio.sleep(601)
        assert pytest.approx([begun + 1 + number for number in range(600)]) == times
        assert 0 == mp.counts.stalls


async def test_a_worker_with_one_slot_goes_round_its_pools() -> None:
    """Whichever pool has the longest queue, each has a turn before any has another."""
    mp = Millpond(work=False)
    pools = [mp.pool(f"p{number}") for number in range(4)]
    started: list[str] = []

    @mp.task
    async def work(name: str) -> None:
        started.append(name)
        await asyncio.sleep(1)

    async with mp, mp.worker(concurrency=1):
        for pool in pools:
            for _ in range(5):
                await pool.submit(work.bind(pool.name))
        await asyncio.sleep(30)
        rounds = [started[at : at + 4] for at in range(0, 20, 4)]
        assert [{"p0", "p1", "p2", "p3"}] * 5 == [set(one) for one in rounds]


async def test_another_turn_continues_where_a_cancelled_one_stopped() -> None:
    """A submit that runs a turn can be cancelled in it: the pool goes on."""
    mp = Millpond()
    pool = mp.pool("p")
    async with mp:
        (worker,) = internals_of(mp).runtime.workers
        await asyncio.sleep(1)
        lease = internals_of(mp).runtime.store.lease
        calls: list[None] = []

        async def slow(*args: Any, **kwargs: Any) -> Any:
            calls.append(None)
            await asyncio.sleep(1)
            return await lease(*args, **kwargs)

        internals_of(mp).runtime.store.lease = slow  # type: ignore[method-assign]
        submitting = asyncio.create_task(pool.submit(a_second))
        await asyncio.sleep(0.5)
        assert 1 == len(calls)
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
        internals_of(mp).runtime.store.lease = lease  # type: ignore[method-assign]
        # The task was stored before the turn; no other submit comes to start the next turn.
        await soon(pool.drain())
        assert (1, False) == ((await pool.snapshot()).completed, worker.scheduled)


@pytest.mark.parametrize("concurrency", [None, 1])
async def test_everything_goes_on_with_eager_tasks(concurrency: int | None) -> None:
    """A loop that starts tasks at once (from Python 3.12 on) starts no job amid a turn."""
    eager = getattr(asyncio, "eager_task_factory", None)
    asyncio.get_running_loop().set_task_factory(eager)
    mp = Millpond(work=False)
    pool = mp.pool("p", max_concurrent=2, backpressure=bounded(2))

    @mp.task
    async def work(number: int) -> int:
        if number % 3 == 0:
            await asyncio.sleep(1)
        return number

    async def plain(number: int) -> int:
        return await (await pool.submit(work.bind(number), wait=500))

    async with mp, mp.worker(concurrency=concurrency):
        doing = [asyncio.create_task(plain(number)) for number in range(30)]
        assert list(range(30)) == await soon(asyncio.gather(*doing))
        assert list(range(20)) == await soon(_all(pool.map(work, range(20))))


async def _all(mapped: Any) -> Any:
    return await mapped


async def test_a_failed_item_of_a_map_waits_for_its_retry_outside_a_slot() -> None:
    """Its next attempt waits for room in the queue; the chunk that ran it makes that room."""
    mp = Millpond()
    pool = mp.pool("p", backpressure=bounded(1), retry=Retry(attempts=2, jitter=0.0))
    failed: list[int] = []

    async def work(number: int) -> int:
        await asyncio.sleep(1)
        if not failed:
            failed.append(number)
            raise ValueError
        return number

    async def apply() -> list[int]:
        return await pool.map(work, [1, 2, 3])

    async with mp:
        mapping = asyncio.create_task(apply())
        await asyncio.sleep(0.5)
        await pool.submit(a_second)
        assert [1, 2, 3] == await soon(mapping)


async def test_a_map_ends_when_a_failed_item_cannot_be_retried() -> None:
    """The pool closed meanwhile: the error is PoolClosed, caused by the error of the item."""
    mp = Millpond()
    pool = mp.pool("p", retry=Retry(attempts=2, jitter=0.0))

    async def work(_number: int) -> None:
        await asyncio.sleep(1)
        raise ValueError

    async def apply() -> list[None]:
        return await pool.map(work, [1, 2])

    async with mp:
        mapping = asyncio.create_task(apply())
        await asyncio.sleep(0.5)
        await pool.close()
        with pytest.raises(PoolClosed) as caught:
            await soon(mapping)
        assert isinstance(caught.value.__cause__, ValueError)
        await asyncio.sleep(100)
        assert {} == internals_of(mp).runtime.env.background


@pytest.mark.real_loop
async def test_an_interrupt_during_a_thread_cancels_the_coroutine_it_returns() -> None:
    """The thread cannot be stopped; the coroutine that it returns does not start."""
    mp = Millpond()
    pool = mp.pool("p")
    gate, inside, begun = threading.Event(), threading.Event(), []

    async def after() -> None:
        begun.append(True)

    def before() -> Any:
        inside.set()
        gate.wait(5)
        return after()

    async with mp:
        handle = await pool.submit(before)
        assert await asyncio.to_thread(inside.wait, 5)
        await handle.cancel(mode="interrupt")
        gate.set()
        await handle.wait(timeout=5)
        assert ("cancelled", []) == (handle.status, begun)


async def test_a_batch_whose_first_item_was_cancelled_lingers_from_the_next() -> None:
    """The linger time of the cancelled item does not count."""
    mp = Millpond()
    pool = mp.pool("p", max_concurrent=5)
    called: list[tuple[float, list[int]]] = []

    @pool.batch_task(size=5, linger=1.0)
    async def work(items: list[int]) -> list[int]:
        called.append((asyncio.get_running_loop().time(), items))
        return items

    async with mp:
        begun = asyncio.get_running_loop().time()
        first = await work.submit(1)
        await asyncio.sleep(0.4)
        await first.cancel()
        await asyncio.sleep(0.1)
        await soon(await work.submit(2))
        ((moment, items),) = called
        assert [2] == items
        assert moment == pytest.approx(begun + 1.5)


async def test_waiters_that_give_up_are_forgotten() -> None:
    """However many wait for one task, they leave no entry behind."""
    mp = Millpond(work=False)
    pool = mp.pool("p")
    work = mp.task(a_second)
    async with mp:
        handle = await pool.submit(work.bind())
        waiting = [asyncio.create_task(handle.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not internals_of(mp).runtime.waiting.any_waiting


async def test_a_bound_method_can_stop_waiting() -> None:
    """A bound method is a new object each time, but compares equal."""

    class Listener:
        def heard(self, _end: object) -> None:
            """Receive the end of the task."""

    mp = Millpond(work=False)
    async with mp:
        listener, waiting = Listener(), internals_of(mp).runtime.waiting
        waiting.on_end(1, listener.heard)
        waiting.forget(1, listener.heard)
        assert not waiting.any_waiting


CHURN: dict[str, Callable[[list[Any]], list[Any]]] = {
    "first first": list,
    "last first": lambda given: given[::-1],
}


@pytest.mark.parametrize("order", CHURN)
async def test_thousands_of_cancelled_parked_submitters_leave_nothing_behind(order: str) -> None:
    """A cancelled submitter leaves its place in line at once, first or last."""
    mp = Millpond()
    pool = mp.pool("p", backpressure=bounded(1))

    async def for_long() -> None:
        await asyncio.sleep(1_000)

    async with mp:
        for _ in range(2):
            await pool.submit(for_long)
        parked = [asyncio.create_task(pool.submit(a_second)) for _ in range(3_000)]
        await asyncio.sleep(1)
        assert 3_000 == (await pool.snapshot()).blocked_submitters
        for one in CHURN[order](parked):
            one.cancel()
        await asyncio.gather(*parked, return_exceptions=True)
        await asyncio.sleep(1)
        runtime = internals_of(mp).runtime
        assert ({}, {}, set()) == (
            runtime.submitter._lines,
            runtime.env.background,
            runtime.submitter._offering,
        )
        assert 2 == len(runtime.closures)


async def test_thousands_that_are_submitted_and_cancelled_leave_nothing() -> None:
    """They are cancelled before they start, while they run, or while a wait is pending."""
    mp = Millpond()
    pool = mp.pool("p", max_concurrent=3)

    async def at_once() -> None:
        pass

    async with mp:
        for number in range(3_000):
            handle = await pool.submit(a_second if number % 2 else at_once)
            waiting = asyncio.create_task(handle.wait())
            if number % 3 == 0:
                await asyncio.sleep(0)
            await handle.cancel("interrupt")
            if number % 5 == 0:
                waiting.cancel()
            else:
                await waiting
        await pool.drain()
        runtime = internals_of(mp).runtime
        (worker,) = runtime.workers
        assert ({}, False) == (runtime.closures, runtime.waiting.any_waiting)
        assert ({}, {}) == (runtime.env.background, worker.jobs)
        assert [] == worker.ended
        assert 3 >= len(worker.slots.all)
        assert 0 == len(worker.queues._moments)


async def test_an_ended_task_is_settled_although_its_slot_takes_another_job() -> None:
    """No slot is idle then, and only this slot knows that the task ended."""
    mp = Millpond()
    pool = mp.pool("p", max_concurrent=6)
    go, last, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @pool.task
    async def ends(number: int) -> None:
        await go.wait()
        if number == 4:
            # Its waiter resumes after the turn that settles these, when new jobs are ready.
            last.set()

    async with mp:
        for number in range(5):
            await ends.submit(number)
        late = await pool.submit(last.wait)
        for _ in range(6):
            await pool.submit(over.wait)
        await asyncio.sleep(1)
        go.set()
        await soon(late.wait())
        over.set()
