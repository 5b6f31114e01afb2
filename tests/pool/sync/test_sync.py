"""`mp.sync`: the same pools for threads."""

import asyncio
import contextlib
import contextvars
import itertools
import os
import signal
import threading
import traceback
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from millpond import (
    Context,
    Handle,
    Millpond,
    Pool,
    Retry,
    RunOutcome,
    Status,
    SubmitRejection,
    SyncContext,
    SyncHandle,
    TaskFailed,
    TaskRejected,
    WouldDeadlock,
    bounded,
)
from millpond.errors import AlreadyOpen, NotOpen, NotSupported, PoolClosed
from millpond.pool import loop_bridge
from millpond.pool.internals import internals_of

SOON = 5.0
"""Seconds within which every event of these tests happens."""


def loops() -> list[str]:
    """Return the names of the live loop threads."""
    return [one.name for one in threading.enumerate() if one.name == "millpond loop"]


@pytest.fixture
def mp() -> Millpond:
    return Millpond()


@pytest.fixture
def pool(mp: Millpond) -> Pool:
    return mp.pool("work", max_concurrent=4)


@contextlib.contextmanager
def interrupted(when: Callable[[], object]) -> Iterator[None]:
    """Send Ctrl-C once, after an event that the block itself causes."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        when()
        signal.pthread_kill(main, signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    try:
        yield
    finally:
        presser.join()
        signal.signal(signal.SIGINT, before)


# Its life


def test_a_block_opens_the_millpond_on_a_loop_of_its_own_and_closes_it(
    mp: Millpond, pool: Pool
) -> None:
    """A program without a loop needs only `with mp.sync`; no thread is left afterwards."""
    with mp.sync as sync:
        assert sync is mp.sync
        assert (True, ["millpond loop"]) == (sync.is_open, loops())
        assert 3 == pool.sync.submit(lambda: 1 + 2).get(timeout=SOON)
    assert (False, []) == (mp.is_open, loops())


def test_it_can_be_opened_again(mp: Millpond, pool: Pool) -> None:
    """Each block has a loop of its own."""
    for n in range(3):
        with mp.sync:
            assert n == pool.sync.submit(partial(int, n)).get(timeout=SOON)


def test_a_closed_millpond_raises_not_open(mp: Millpond, pool: Pool) -> None:
    """The call starts no loop."""
    with pytest.raises(NotOpen, match=r"with mp\.sync"):
        pool.sync.size()
    with pytest.raises(NotOpen):
        next(iter(mp.sync.audit()))
    with pytest.raises(NotOpen), mp.sync.worker():
        pass
    assert [] == loops()


def test_a_second_block_is_refused_and_the_first_goes_on(mp: Millpond, pool: Pool) -> None:
    """A second block would close the Millpond while the first one uses it."""
    with mp.sync as sync:
        with pytest.raises(AlreadyOpen), sync:
            pass
        assert 0 == pool.sync.size()


@pytest.mark.real_loop
async def test_a_block_is_refused_while_it_is_open_on_a_loop(mp: Millpond) -> None:
    """A Millpond that a loop opened cannot be opened again by a thread."""
    async with mp:
        with pytest.raises(AlreadyOpen):
            await asyncio.to_thread(mp.sync.__enter__)
        assert [] == loops()


@pytest.mark.real_loop
async def test_threads_use_the_loop_on_which_it_is_open(mp: Millpond, pool: Pool) -> None:
    """Where a loop runs already, no second one is made."""

    def in_a_thread() -> int:
        assert [] == loops()
        return pool.sync.submit(lambda: 42).get(timeout=SOON)

    async with mp:
        assert 42 == await asyncio.to_thread(in_a_thread)


def test_an_error_of_the_block_comes_out_as_it_was(mp: Millpond) -> None:
    """The traceback has no frames of the loop, and the Millpond is closed."""

    def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine") as caught, mp.sync:
        fail()
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "fail" == frames[-1]
    assert "_between" not in frames
    assert (False, []) == (mp.is_open, loops())


def test_a_failed_opening_raises_and_leaves_no_thread(pool: Pool) -> None:
    """An error on the way in ends the loop's thread, and another try is free."""
    broken = [True]

    @contextlib.asynccontextmanager
    async def resources() -> AsyncIterator[str]:
        if broken:
            raise ConnectionError("no database")
        yield "client"

    mp = Millpond(resources=resources)
    for _ in range(2):
        with pytest.raises(ConnectionError, match="no database"), mp.sync:
            pass
        assert (False, []) == (mp.is_open, loops())
    broken.clear()
    with mp.sync:
        assert mp.is_open


def test_ctrl_c_within_the_block_closes_the_millpond(mp: Millpond) -> None:
    """The interrupt reaches only the thread of the block; the loop closes in order."""
    with pytest.raises(KeyboardInterrupt), mp.sync:
        raise KeyboardInterrupt
    assert (False, []) == (mp.is_open, loops())


# Whose thread


@pytest.mark.real_loop
async def test_on_the_loops_own_thread_it_refuses_to_wait_for_itself(
    mp: Millpond, pool: Pool
) -> None:
    """It would never return; the message names the way out."""
    async with mp:
        for call in (pool.sync.size, lambda: next(iter(mp.sync.audit())), mp.sync.unsettled):
            with pytest.raises(RuntimeError, match="await"):
                call()
        handle = await pool.submit(pool.sync.size)
        assert 1 == await handle, "in a thread of the pool it is welcome"


async def test_an_async_handler_is_refused_as_well(mp: Millpond, pool: Pool) -> None:
    """A handler on the loop is on the loop's own thread."""

    async def handler() -> int:
        return pool.sync.size()

    async with mp:
        with pytest.raises(TaskFailed, match="await"):
            await (await pool.submit(handler, retry=lambda _attempt, _error: None))


def test_a_loop_that_does_not_run_is_not_waited_for(mp: Millpond, pool: Pool) -> None:
    """A caller opened the Millpond and stopped its loop: no answer would ever come."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(mp.__aenter__())
    said: list[str] = []

    def ask() -> None:
        with pytest.raises(RuntimeError) as caught:
            pool.sync.size()
        said.append(str(caught.value))

    asker = threading.Thread(target=ask)
    asker.start()
    asker.join(SOON)
    loop.run_until_complete(mp.__aexit__(None, None, None))
    loop.close()
    assert "does not run" in said[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_after_a_fork_the_child_raises_not_open_and_the_parent_goes_on(
    mp: Millpond, pool: Pool
) -> None:
    """A forked child has no loop to wait for, so the call raises at once."""
    with mp.sync:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            signal.alarm(3)  # a child that waits for ever must not outlive the test
            try:
                pool.sync.size()
            except NotOpen as error:
                os._exit(0 if "fork" in str(error) else 2)
            except BaseException:  # noqa: BLE001 - nothing may come back from a fork
                os._exit(3)
            os._exit(4)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert 7 == pool.sync.submit(lambda: 7).get(timeout=SOON)


# Waiting


def test_each_wait_honours_its_timeout_and_the_task_goes_on(mp: Millpond, pool: Pool) -> None:
    """The wait raises TimeoutError and does not cancel the task."""
    gate = threading.Event()
    with mp.sync as sync:
        handle = pool.sync.submit(lambda: gate.wait(SOON))
        late: list[Callable[[], object]] = [
            lambda: handle.get(timeout=0.01),
            lambda: handle.get(timeout=timedelta(milliseconds=10)),
            lambda: handle.wait(0),
            lambda: sync.wait([handle], timeout=0.01),
            lambda: pool.sync.drain(timeout=0.01),
        ]
        for wait in late:
            with pytest.raises(TimeoutError):
                wait()
        gate.set()
        assert True is handle.get(timeout=SOON)
        assert True is handle.get(timeout=0), "what is known needs no time"
        assert Status.COMPLETED is handle.wait(0).status


def test_a_timeout_holds_also_while_the_loop_is_blocked(
    mp: Millpond, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler blocks the loop; a wait with a timeout in a thread still ends in time."""
    monkeypatch.setattr(loop_bridge, "LATE", 0.01)
    blocked, gate = threading.Event(), threading.Event()

    async def block() -> str:
        blocked.set()
        gate.wait(SOON)
        return "late"

    with mp.sync:
        handle = pool.sync.submit(block)
        assert blocked.wait(SOON)
        with pytest.raises(TimeoutError):
            handle.get(timeout=0.01)
        gate.set()
        assert "late" == handle.get(timeout=SOON)


def test_a_timeout_of_the_handlers_own_is_not_taken_for_one_of_the_wait(
    mp: Millpond, pool: Pool
) -> None:
    """A task that fails by TimeoutError fails: the wait itself had time."""

    def fail() -> None:
        raise TimeoutError("the database")

    with mp.sync, pytest.raises(TaskFailed, match="the database") as caught:
        pool.sync.submit(fail, retry=lambda _attempt, _error: None).get()
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_ctrl_c_ends_the_wait_and_not_the_task(mp: Millpond, pool: Pool) -> None:
    """The task runs on, and the loop has no entry for the wait."""
    gate = threading.Event()

    def handler() -> str:
        gate.wait(SOON)
        return "done"

    def until_a_thread_waits() -> None:
        while not internals_of(mp).runtime.waiting.any_waiting:
            gate.wait(0.001)

    with mp.sync as sync:
        handle = pool.sync.submit(handler)
        with interrupted(until_a_thread_waits), pytest.raises(KeyboardInterrupt):
            handle.get()
        assert ["running"] == sync.status([handle.id])
        assert not internals_of(mp).runtime.waiting.any_waiting
        gate.set()
        assert "done" == handle.get(timeout=SOON)


def test_ctrl_c_while_a_full_pool_is_waited_for_leaves_the_line(mp: Millpond) -> None:
    """An interrupted submit does not store its task later."""
    full = mp.pool("full", backpressure=bounded(1, on_full="block_submitter"))
    parked = threading.Event()
    mp.observe(lambda seen: parked.set() if seen.kind == "blocked" else None)
    with mp.sync:
        full.sync.pause()
        full.sync.submit(lambda: 1)
        with interrupted(lambda: parked.wait(SOON)), pytest.raises(KeyboardInterrupt):
            full.sync.submit(lambda: 2)
        assert 0 == full.sync.snapshot().blocked_submitters
        full.sync.resume()
        full.sync.drain(timeout=SOON)
        assert 1 == full.sync.snapshot().completed


@pytest.mark.real_loop
async def test_a_waiting_thread_raises_not_open_when_the_millpond_closes(
    mp: Millpond, pool: Pool
) -> None:
    """The task cannot end any more, so the wait raises."""
    task = pool.task(name="noop")(lambda: None)
    async with mp:
        await pool.pause()
        handle: SyncHandle[None] = SyncHandle(
            internals_of(mp).owner.bridge, internals_of(await task.submit())
        )
        waiting = asyncio.ensure_future(asyncio.to_thread(handle.get))
        while not internals_of(mp).runtime.waiting.any_waiting:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
    with pytest.raises(NotOpen):
        await waiting


def test_a_waiting_thread_raises_not_open_when_the_loop_ends(mp: Millpond, pool: Pool) -> None:
    """The loop ends while the Millpond is open: the wait raises instead of hanging."""
    said: list[BaseException] = []
    task = pool.task(name="noop")(lambda: None)

    def wait() -> None:
        try:
            task.sync.submit().get()
        except BaseException as error:  # noqa: BLE001 - checked below
            said.append(error)

    async def main() -> None:
        internals_of(mp).owner.work = False  # nothing runs, so that nothing has to be stopped
        await mp.__aenter__()
        waiter.start()
        while not internals_of(mp).runtime.waiting.any_waiting:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)

    waiter = threading.Thread(target=wait)
    asyncio.run(main())
    waiter.join(SOON)
    assert [NotOpen] == [type(error) for error in said]


# Context variables


NAME = contextvars.ContextVar("name", default="no name")


def test_the_threads_context_goes_with_a_closure(mp: Millpond, pool: Pool) -> None:
    """A closure sees the contextvars of the thread that submitted it, on the loop and off it."""

    async def on_the_loop() -> str:
        return NAME.get()

    def submit(name: str) -> list[str]:
        NAME.set(name)
        handles = [pool.sync.submit(NAME.get), pool.sync.submit(on_the_loop)]
        mapped = pool.sync.map(lambda _: NAME.get(), iter([0])).get()
        return [*(handle.get(timeout=SOON) for handle in handles), *mapped]

    found: dict[str, list[str]] = {}
    with mp.sync:
        threads = [
            threading.Thread(target=lambda name=name: found.update({name: submit(name)}))
            for name in ("ada", "grace")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
    assert {"ada": ["ada"] * 3, "grace": ["grace"] * 3} == found


def test_the_loop_of_a_block_starts_in_the_context_of_its_thread(mp: Millpond, pool: Pool) -> None:
    """Registered handlers see variables set before the block, as with `async with mp`."""

    @pool.task
    async def name() -> str:
        return NAME.get()

    token = NAME.set("outer")
    try:
        with mp.sync:
            assert "outer" == name.sync.submit().get(timeout=SOON)
    finally:
        NAME.reset(token)


def test_a_task_submitted_from_a_handler_in_a_thread_names_it(mp: Millpond, pool: Pool) -> None:
    """submitted_by names the task, also from a thread."""

    def parent() -> int:
        return pool.sync.submit(lambda: None).id

    with mp.sync as sync:
        outer = pool.sync.submit(parent)
        inner = sync.handle(outer.get(timeout=SOON))
        assert ("user", f"task:{outer.id}") == (outer.submitted_by, inner.submitted_by)


def test_a_handler_in_a_thread_that_waits_for_itself_raises_would_deadlock(mp: Millpond) -> None:
    """The waiting handler has the only slot: each way to wait is refused."""
    narrow = mp.pool("narrow", max_concurrent=1)
    ways: list[Callable[[SyncHandle[int]], object]] = [
        lambda handle: handle.get(),
        lambda handle: handle.wait(timeout=SOON),
        lambda handle: mp.sync.wait([handle]),
    ]

    def parent(way: Callable[[SyncHandle[int]], object]) -> str:
        inner = narrow.sync.submit(lambda: 1)
        try:
            way(inner)
        except WouldDeadlock as error:
            return f"{error.awaited == inner.id}"
        return "it waited"

    with mp.sync:
        for way in ways:
            assert "True" == narrow.sync.submit(partial(parent, way)).get(timeout=SOON)


def test_a_handler_in_a_thread_may_wait_where_there_is_room(mp: Millpond, pool: Pool) -> None:
    """Only a wait that can never end is refused."""

    never = lambda _attempt, _error: None

    def parent(depth: int) -> int:
        if not depth:
            return 0
        return 1 + pool.sync.submit(lambda: parent(depth - 1), retry=never).get()

    with mp.sync:
        assert 3 == pool.sync.submit(lambda: parent(3)).get(timeout=SOON)
        with pytest.raises(TaskFailed, match="WouldDeadlock"):
            pool.sync.submit(lambda: parent(4), retry=never).get(timeout=SOON)


# Handles and batches


def test_a_sync_handle_has_the_attributes_of_its_twin(mp: Millpond, pool: Pool) -> None:
    """A thread can read every attribute of a task."""

    @pool.task
    def double(n: int) -> int:
        return 2 * n

    with mp.sync as sync:
        handle = double.options(key="k", priority=3, labels={"a": "b"}).sync.submit(4)
        assert 8 == handle.get(timeout=SOON)
        again = sync.handle(handle.id, of=double)
        assert (8, Status.COMPLETED) == (again.result, again.refresh().status)
        shown = (again.key, again.priority, again.labels, again.pool, again.attempt, again.error)
        assert ("k", 3, {"a": "b"}, "work", 1, None) == shown
        assert ["completed", "unknown"] == sync.status([handle.id, 1])
        assert "completed" in sync.why(handle.id)


def test_many_threads_share_one_pool(mp: Millpond, pool: Pool) -> None:
    """Calls of many threads at once each get their own answer."""
    results: list[int] = []

    @pool.task
    async def square(n: int) -> int:
        await asyncio.sleep(0)
        return n * n

    def ask(start: int) -> None:
        results.extend(square.sync.submit(n).get() for n in range(start, start + 50))

    with mp.sync:
        threads = [threading.Thread(target=ask, args=(50 * n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
    assert [n * n for n in range(400)] == sorted(results)


def test_generators_are_walked_through_in_the_callers_thread(mp: Millpond, pool: Pool) -> None:
    """A generator runs in the thread of its caller: a database cursor stays in its thread."""
    walked: set[int] = set()

    @pool.task
    def double(n: int) -> int:
        return 2 * n

    def each(made: Callable[[int], Any]) -> Iterator[Any]:
        for n in range(3):
            walked.add(threading.get_ident())
            yield made(n)

    with mp.sync as sync:
        handles = pool.sync.submit_many(each(double.bind))
        sync.wait(iter(handles))
        sync.status(each(int))
        assert 3 == pool.sync.drain(each(double.bind), timeout=SOON).completed
        with pool.sync.stream(each(double.bind)) as outcomes:
            assert [0, 2, 4] == sorted(outcome.result for outcome in outcomes)
        with pool.sync.run() as run:
            run.submit_many(each(double.bind))
        assert [0, 2, 4] == pool.sync.map(double, each(int)).get()
        assert [0, 2, 4] == list(pool.sync.map(double, each(int)))
    assert {threading.get_ident()} == walked


def test_refusals_come_as_values_with_a_handle_for_threads(mp: Millpond) -> None:
    """`try_submit` gives a rejection whose handle a thread can use."""
    tiny = mp.pool("tiny", backpressure=bounded(1, on_full="drop_newest"))
    with mp.sync:
        tiny.sync.pause()
        assert tiny.sync.try_submit(lambda: 1)
        refused = tiny.sync.try_submit(lambda: 2)
        assert isinstance(refused, SubmitRejection)
        assert not refused
        assert isinstance(refused.handle, SyncHandle)
        with pytest.raises(TaskRejected):
            refused.handle.get(timeout=SOON)


def test_control_reaches_the_pool(mp: Millpond, pool: Pool) -> None:
    """Pausing, resizing, purging, cancelling and redriving work from a thread."""

    @pool.task
    def same(n: int) -> int:
        return n

    with mp.sync as sync:
        pool.sync.pause()
        handles = pool.sync.submit_many(same.each(range(4)))
        assert (4, 4) == (pool.sync.size(), len(sync.unsettled()))
        assert (True, False) == (handles[0].cancel(), handles[0].cancel())
        assert 3 == pool.sync.purge()
        assert 1 == pool.sync.redrive([handles[1]])
        assert pool.sync.resize(2) > 0
        pool.sync.resume()
        assert 1 == handles[1].refresh().get(timeout=SOON)
        assert 2 == pool.sync.snapshot().max_concurrent
        assert ["cancelled"] * 3 + ["completed"] == sorted(
            task.status for task in pool.sync.tasks()
        )


# Iterating


def test_a_map_is_lazy_and_gives_results_in_order(mp: Millpond, pool: Pool) -> None:
    """It takes items of an endless source while there is room, and none after it ends."""
    taken: list[int] = []

    def endless() -> Iterator[int]:
        for n in itertools.count():
            taken.append(n)
            yield n

    with mp.sync:
        results = iter(pool.sync.map(lambda n: n * n, endless()))
        assert [n * n for n in range(100)] == list(itertools.islice(results, 100))
        assert len(taken) < 100 + 300
        del results
        pool.sync.drain(timeout=SOON)


def test_an_error_of_the_source_ends_the_map(mp: Millpond, pool: Pool) -> None:
    """The iterable's own exception comes back to the thread that walks through it."""

    def broken() -> Iterator[int]:
        yield 1
        raise LookupError("no more pages")

    with mp.sync:
        with pytest.raises(LookupError, match="no more pages"):
            pool.sync.map(lambda n: n, broken()).get()
        with pytest.raises(LookupError, match="no more pages"):
            list(pool.sync.map(lambda n: n, broken()))
        assert 5 == pool.sync.submit(lambda: 5).get(timeout=SOON)


def test_ctrl_c_in_the_source_of_a_map_ends_the_map_and_not_the_loop(
    mp: Millpond, pool: Pool
) -> None:
    """The interrupt belongs to the thread that takes the items."""

    def source() -> Iterator[int]:
        yield 1
        raise KeyboardInterrupt

    with mp.sync:
        with pytest.raises(KeyboardInterrupt):
            pool.sync.map(lambda n: n, source()).get()
        assert 5 == pool.sync.submit(lambda: 5).get(timeout=SOON)


def test_the_first_failure_of_a_map_is_raised(mp: Millpond, pool: Pool) -> None:
    """As on the loop, a map stops at the first item that fails."""
    never = lambda _attempt, _error: None
    with mp.sync, pytest.raises(TaskFailed, match="ZeroDivisionError"):
        pool.sync.map(lambda n: 1 // n, [2, 1, 0, 3], retry=never).get()


def test_handles_come_in_the_order_in_which_they_end(mp: Millpond, pool: Pool) -> None:
    """`as_completed` gives the very handles it was given, each as often."""
    gate = threading.Event()
    with mp.sync as sync:
        slow = pool.sync.submit(lambda: gate.wait(SOON))
        fast = pool.sync.submit(lambda: 1)
        ended = sync.as_completed([slow, fast, fast])
        assert [fast, fast] == [next(ended), next(ended)]
        gate.set()
        assert [slow] == list(ended)


def test_an_item_that_an_interrupted_wait_missed_is_not_lost(mp: Millpond, pool: Pool) -> None:
    """Ctrl-C ends the wait, not the iteration: the next step returns the missed item."""
    entered, gate = threading.Event(), threading.Event()

    async def source() -> AsyncIterator[int]:
        for n in range(3):
            if n == 1:
                entered.set()
                await asyncio.to_thread(gate.wait, SOON)
            yield n

    with mp.sync:
        steps = loop_bridge.Steps(source)
        internals_of(mp).owner.bridge.start(steps.drive)
        step = partial(internals_of(mp).owner.bridge.step, steps)
        assert 0 == step()
        with interrupted(lambda: entered.wait(SOON)), pytest.raises(KeyboardInterrupt):
            step()
        gate.set()
        assert [1, 2, loop_bridge.OVER] == [step(), step(), step()]


def test_progress_is_yielded_step_by_step(mp: Millpond, pool: Pool) -> None:
    """A thread watches a handler and lets it go on, step by step."""
    steps = [threading.Event() for _ in range(3)]

    @pool.task
    def work(ctx: SyncContext) -> None:
        for n, step in enumerate(steps):
            step.wait(SOON)
            ctx.progress(n / 2, f"step {n}")

    with mp.sync:
        seen = work.sync.submit().progress()
        for n, step in enumerate(steps):
            step.set()
            assert (n / 2, f"step {n}") == next(seen)
        assert [] == list(seen)


def test_a_stream_yields_outcomes_and_ends_with_a_report(mp: Millpond, pool: Pool) -> None:
    """Follow-ups belong to the run, and the report comes when it is over."""

    @pool.task
    async def count(ctx: Context, n: int) -> int:
        if n:
            await ctx.submit(count.bind(n - 1))
        return n

    with mp.sync:
        with pool.sync.stream([count.bind(3)]) as outcomes:
            assert [3, 2, 1, 0] == [outcome.result for outcome in outcomes]
        assert outcomes.report is not None
        assert (4, True) == (outcomes.report.total, outcomes.report.ok)
        with pool.sync.run("named") as run:
            run.submit(count.bind(1))
        assert run.report is not None
        assert (2, False) == (run.report.total, run.finished_before)


def test_a_run_calls_back_when_it_is_over(mp: Millpond, pool: Pool) -> None:
    """when_all and run.on_complete are the same for threads."""
    sums: list[int] = []

    @pool.task
    def square(n: int) -> int:
        return n * n

    @pool.task
    def note(outcome: RunOutcome) -> None:
        sums.append(sum(outcome.results))

    with mp.sync:
        handles = pool.sync.when_all(square.each([1, 2, 3]), then=note.bind())
        assert [1, 4, 9] == [handle.get(SOON) for handle in handles]
        pool.sync.drain(timeout=SOON)
        with pool.sync.run() as run:
            run.on_complete(note.bind())
            run.submit(square.bind(4))
        pool.sync.drain(timeout=SOON)
    assert [14, 16] == sums


def test_leaving_a_run_with_an_error_cancels_its_waiting_tasks(mp: Millpond, pool: Pool) -> None:
    """The error comes out as it was."""
    with mp.sync as sync:
        pool.sync.pause()
        task = pool.task(name="noop")(lambda: None)
        with pytest.raises(LookupError), pool.sync.run() as run:
            handle = run.submit(task)
            raise LookupError
        assert ["cancelled"] == sync.status([handle.id])


def test_breaking_out_of_an_iteration_leaves_no_task_behind(mp: Millpond, pool: Pool) -> None:
    """Each iteration has one task on the loop, and takes it along when it goes."""
    with mp.sync as sync:
        pool.sync.submit_many([])
        for _ in range(5):
            pool.sync.submit(lambda: 1).wait(SOON)
        for _record in sync.audit():
            break

        async def left() -> int:
            for _ in range(5):
                await asyncio.sleep(0)
            return sum("_run_for" in repr(task.get_coro()) for task in asyncio.all_tasks())

        assert 1 == internals_of(mp).owner.bridge.call(left), "the one that counts"


def test_a_worker_is_entered_and_left_by_one_task(pool: Pool) -> None:
    """A lifespan may hold a resource of one asyncio task, such as a timeout."""
    mp = Millpond(work=False)
    own = mp.pool("own")
    tasks: list[Any] = []

    @contextlib.asynccontextmanager
    async def resources() -> AsyncIterator[str]:
        async with asyncio.timeout(60):
            tasks.append(asyncio.current_task())
            yield "client"
            tasks.append(asyncio.current_task())

    @own.task
    def client(ctx: SyncContext) -> str:
        return str(ctx.resources)

    with mp.sync as sync:
        handle = client.sync.submit()
        with sync.worker([own, own.sync, "own"], resources=resources) as worker:
            assert worker.serves("own")
            assert "client" == handle.get(timeout=SOON)
        with pytest.raises(LookupError), sync.worker(resources=resources):
            raise LookupError
        with pytest.raises(KeyboardInterrupt), sync.worker(resources=resources):
            raise KeyboardInterrupt
        assert (3, 0) == (len(set(tasks)), len(internals_of(mp).runtime.workers))


def test_a_sync_pool_has_the_attributes_of_its_twin(mp: Millpond) -> None:
    """Names, settings, lanes, tasks and counts are those of the pool itself."""
    pool = mp.pool("lanes", lanes=2, retry=Retry.constant(3))
    task = pool.task(key="to", name="send")(_sent)
    twin = pool.sync
    with mp.sync as sync:
        assert repr(pool) in repr(twin)
        for name in ("name", "id", "spec", "scope", "scope_id", "retry", "created_at"):
            assert getattr(pool, name) == getattr(twin, name), name
        assert [pool.name] == [one.name for one in sync.pools()]
        assert pool.name == sync.get_pool("lanes").name
        assert mp.counts is sync.counts
        assert mp.tasks == sync.tasks
        twin.pause()
        handles = [twin.submit(task.bind(to), submitted_by="me") for to in ("a", "b", "a")]
        inner: Handle[None] = Handle(internals_of(handles[2]))
        for name in (
            "pool_id",
            "lane",
            "sequence",
            "position",
            "queue_depth",
            "submitted_at",
            "submitted_by",
            "duplicate",
            "reason",
            "rejection_reason",
            "rejection_policy",
        ):
            assert getattr(inner, name) == getattr(handles[2], name), name
        assert (handles[0].lane, "me") == (handles[2].lane, handles[2].submitted_by)
        assert handles[2].sequence > handles[0].sequence
        assert 3 == sum(lane.pending for lane in twin.lanes())
        assert twin.cancel(handles[0].id)
        assert sync.cancel(handles[1].id)
        assert 1 == twin.cancel_all()
        assert ["cancelled"] * 3 == sync.status([handle.id for handle in handles])
        assert 3 == len(twin.tasks(status="cancelled"))
        twin.resume()
        twin.close()
        with pytest.raises(PoolClosed):
            twin.submit(task.bind("a"))


async def _sent(to: str) -> None: ...


def test_observers_added_through_the_twin_are_called(mp: Millpond, pool: Pool) -> None:
    """Observers, and the end of a scope, go through to the Millpond."""
    seen: list[str] = []
    with mp.sync as sync:
        stop = sync.observe(lambda happened: seen.append(str(happened.kind)))
        assert 1 == pool.sync.submit(lambda: 1).get(timeout=SOON)
        stop()
        before = len(seen)
        assert before > 0
        assert 2 == pool.sync.submit(lambda: 2).get(timeout=SOON)
        assert before == len(seen)
        with pytest.raises(NotSupported):
            sync.end_scope("tenant", "acme")
