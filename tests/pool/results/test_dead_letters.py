"""Dead letters: failed tasks are kept, reported, listed and redriven."""

import asyncio
import json
from dataclasses import dataclass
from datetime import date

import msgspec
import pytest
from tests.pool.fleet import Fleet
from tests.pool.moments import clock

from millpond import (
    Context,
    DeadLetter,
    GiveUp,
    Keep,
    Millpond,
    Outcome,
    Retry,
    TaskFailed,
    fifo,
)
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.store.protocol import Batch

ONCE = Retry.never()


@pytest.mark.rows("DE-12", "DE-T12")
async def test_on_dead_letter_is_called_after_the_last_attempt_and_not_before() -> None:
    """Once per exhausted task, at the moment of its end, with payload, error and place."""
    letters: list[tuple[DeadLetter, float]] = []
    mp = Millpond()
    pool = mp.pool(
        "webhooks",
        lanes=1,
        retry=Retry.constant(10, attempts=3, jitter=0),
        on_dead_letter=lambda letter: letters.append((letter, clock())),
    )

    @pool.task(key="to")
    async def send(to: str, body: str) -> None:
        if body == "bad":
            raise ConnectionError(f"{to} is down")

    async with mp:
        await send.submit("acme", "good")
        bad = await send.options(labels={"of": "test"}).submit("acme", "bad")
        await asyncio.sleep(19)
        assert [] == letters
        await pool.drain()
        await asyncio.sleep(100)

    ((letter, moment),) = letters
    assert moment == pytest.approx(20, abs=1e-2)
    assert (bad.id, "webhooks", "send", 3, "acme", {"of": "test"}) == (
        letter.task_id,
        letter.pool,
        letter.function,
        letter.attempts,
        letter.key,
        letter.labels,
    )
    assert letter.error is not None
    assert ("ConnectionError", "acme is down") == (letter.error.type, letter.error.message)
    assert ("0", 2) == (letter.lane, letter.sequence)
    assert b"acme" in letter.payload
    assert b"bad" in letter.payload
    assert (0.0, 20.0) == (round(letter.submitted_at, 2), round(letter.failed_at, 2))


@dataclass
class Address:
    street: str


@pytest.mark.rows("TR-20", "DE-12")
async def test_a_dead_letter_has_its_arguments_in_their_types() -> None:
    """As the function got them; as plain values, by name, where the function is not known."""
    letters: list[DeadLetter] = []
    mp = Millpond()
    pool = mp.pool("parcels", max_concurrent=2, retry=ONCE, on_dead_letter=letters.append)

    @pool.task
    async def send(to: Address, *, day: date, count: int = 2) -> None:
        raise ConnectionError

    @pool.batch_task(size=2, linger=0.1)
    async def post(items: list[Address]) -> list[None]:
        raise ConnectionError

    async with mp:
        await send.submit(Address("High Street"), day=date(2026, 11, 18))
        await pool.drain()
        await post.submit(Address("Low Street"))
        await pool.drain()
        gone = NewTask(
            id=7, pool="parcels", call=Call("gone", b'{"to":{"street":"x"}}'), expires_in=5.0
        )
        internals_of(mp).runtime.answers.apply(
            await internals_of(mp).runtime.store.submit((Batch(tasks=(gone,)),))
        )
        internals_of(mp).runtime.maintenance.nudge()
        await asyncio.sleep(60)

    first, second, third = letters
    assert ((Address("High Street"),), {"day": date(2026, 11, 18), "count": 2}) == (
        first.args,
        first.kwargs,
    )
    assert ((Address("Low Street"),), {}) == (second.args, second.kwargs)
    assert ((), {"to": {"street": "x"}}) == (third.args, third.kwargs)


@pytest.mark.rows("DE-12", "DE-13", "DE-T13")
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_hook_that_fails_is_counted_and_the_lane_goes_on(how: str) -> None:
    """If on_dead_letter fails, the failure is counted and the next task runs."""
    mp = Millpond()

    def broken(_: DeadLetter) -> None:
        raise ZeroDivisionError("in the hook")

    async def broken_too(_: DeadLetter) -> None:
        await asyncio.sleep(1)
        raise ZeroDivisionError("in the hook")

    hook = broken if how == "sync" else broken_too
    pool = mp.pool("webhooks", lanes=1, retry=ONCE, on_dead_letter=hook)
    ran = []

    @pool.task
    async def send(n: int) -> None:
        ran.append(n)
        if n < 2:
            raise OSError("down")

    async with mp:
        await pool.submit_many(send.each(range(4)))
        await pool.drain()
        await asyncio.sleep(10)
        assert 2 == internals_of(mp).runtime.counts.hook_errors

    assert [0, 1, 2, 3] == ran


async def test_cancelled_and_completed_tasks_are_no_dead_letters() -> None:
    """Only failed tasks are: not cancelled or purged ones, nor one whose last attempt completed."""
    letters: list[int] = []
    mp = Millpond()
    pool = mp.pool(
        "items",
        retry=Retry.constant(0, attempts=2),
        on_dead_letter=lambda letter: letters.append(letter.task_id),
    )

    @pool.task
    async def item(ctx: Context) -> None:
        if not ctx.is_retry:
            raise OSError("once")

    async with mp:
        await (await item.submit())
        later = await item.options(delay=100).submit()
        await later.cancel()
        await item.options(delay=100).submit()
        await pool.purge()
        await asyncio.sleep(10)

    assert [] == letters


async def test_on_dead_letter_is_called_for_failures_without_a_handler() -> None:
    """A task that expired in the queue is a dead letter with its reason."""
    letters: list[DeadLetter] = []
    mp = Millpond()
    pool = mp.pool("items", on_dead_letter=letters.append)

    @pool.task
    async def item() -> None: ...

    async with mp:
        await pool.pause()
        handle = await item.options(expires_in=10).submit()
        with pytest.raises(TaskFailed, match="expired"):
            await handle
        await asyncio.sleep(1)

    (letter,) = letters
    assert (handle.id, "expired", 0) == (letter.task_id, letter.reason, letter.attempts)


@pytest.mark.rows("DP-13", "DE-11")
async def test_an_exhausted_task_stays_failed_with_everything_about_it() -> None:
    """It can be listed and inspected, with error and history, until it is redriven or pruned."""
    mp = Millpond(keep=Keep(failed=1000))
    pool = mp.pool("items", retry=Retry.constant(1, attempts=3, jitter=0))

    @pool.task
    async def item(n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd")
        return n

    async with mp:
        await pool.drain(item.each(range(6)))
        await asyncio.sleep(900)
        dead = await pool.tasks(status="failed")
        assert [3, 3, 3] == [task.attempt for task in dead]
        assert [3, 3, 3] == [task.runs for task in dead]
        errors = [task.error for task in dead]
        assert ["1 is odd", "3 is odd", "5 is odd"] == [e.message for e in errors if e]
        assert all("is odd" in e.traceback for e in errors if e)
        history = [record async for record in mp.audit("items") if record.task == dead[0].id]
        kinds = [str(record.kind) for record in history]
        assert ["submit", "dequeue", "retry", "dequeue", "retry", "dequeue", "settle"] == kinds
        await asyncio.sleep(200)
        assert [] == await pool.tasks(status="failed")


async def test_a_list_of_dead_letters_can_be_redriven() -> None:
    """redrive takes ids or handles, returns how many, and gives each a new budget at the tail."""
    mp = Millpond()
    pool = mp.pool("items", max_concurrent=1, queue=fifo(), retry=ONCE)
    broken = True
    ran: list[int] = []

    @pool.task
    async def item(ctx: Context, n: int) -> int:
        ran.append(n)
        assert 1 == ctx.attempt
        if broken and n < 3:
            raise OSError("down")
        return n

    async with mp:
        handles = await pool.submit_many(item.each(range(5)))
        await pool.drain()
        dead = await pool.tasks(status="failed")
        assert [handle.id for handle in handles[:3]] == [task.id for task in dead]
        broken = False
        ran.clear()
        assert 3 == await pool.redrive(task.id for task in dead)
        assert 0 == await pool.redrive(handles)
        await pool.drain()
        assert [0, 1, 2] == [await (await mp.handle(task.id, of=item)) for task in dead]
        assert [] == await pool.tasks(status="failed")
        snapshot = await pool.snapshot()

    assert [0, 1, 2] == ran
    assert (5, 3) == (snapshot.completed, snapshot.failed)


async def test_on_dead_letter_is_called_again_when_a_redriven_task_fails() -> None:
    """Each exhausted budget is one dead letter."""
    letters: list[int] = []
    mp = Millpond()
    pool = mp.pool(
        "items", retry=ONCE, on_dead_letter=lambda letter: letters.append(letter.task_id)
    )

    @pool.task
    async def item() -> None:
        raise OSError("down")

    async with mp:
        handle = await item.submit()
        await handle.wait()
        await pool.redrive([handle])
        await pool.drain()

    assert [handle.id] * 2 == letters


async def test_closures_are_dead_letters_that_cannot_be_redriven() -> None:
    """Their code may be gone: redrive does not count them."""
    mp = Millpond()
    pool = mp.pool("items", retry=ONCE)

    async def closure() -> None:
        raise OSError("down")

    async with mp:
        handle = await pool.submit(closure)
        await handle.wait()
        assert 0 == await pool.redrive([handle])
        assert "failed" == (await handle.refresh()).status


async def test_give_up_makes_a_dead_letter_of_the_first_attempt() -> None:
    """raise GiveUp ends it with one attempt of ten used."""
    letters: list[DeadLetter] = []
    mp = Millpond()
    pool = mp.pool("items", retry=Retry(attempts=10), on_dead_letter=letters.append)

    @pool.task
    async def item() -> None:
        raise GiveUp("hopeless")

    async with mp:
        await (await item.submit()).wait()

    assert [1] == [letter.attempts for letter in letters]


async def test_a_dead_letter_still_calls_back() -> None:
    """on_complete is given the failure: status, error, attempts."""
    mp = Millpond()
    pool = mp.pool("items", retry=Retry.constant(0, attempts=2))
    outcomes: list[Outcome] = []

    @pool.task
    async def item() -> None:
        raise OSError("down")

    @mp.task
    async def notify(outcome: Outcome) -> None:
        outcomes.append(outcome)

    async with mp:
        await item.options(on_complete=notify.bind()).submit()
        await pool.drain()

    (outcome,) = outcomes
    assert outcome.error is not None
    assert ("failed", 2, "down", False) == (
        outcome.status,
        outcome.attempts,
        outcome.error.message,
        outcome.ok,
    )


@pytest.mark.rows("DE-08")
async def test_a_record_that_cannot_be_read_is_set_aside_and_its_lane_goes_on() -> None:
    """A payload that does not decode ends failed: corrupt, counted; the next task runs."""
    letters: list[DeadLetter] = []
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=1, on_dead_letter=letters.append)
    ran = []

    @pool.task
    async def send(n: int) -> None:
        ran.append(n)

    async with mp:
        await pool.pause()
        first = await send.submit(1)
        runtime = internals_of(mp).runtime
        bad = NewTask(id=99, pool="webhooks", call=Call("send", b"\x00not json"))
        await runtime.store.submit([Batch(tasks=(bad,))])
        await send.submit(2)
        await pool.resume()
        await pool.drain()
        record = next(task for task in await pool.tasks() if task.id == 99)
        await asyncio.sleep(1)
        assert 1 == runtime.counts.corrupt
        assert "completed" == (await first.refresh()).status

    assert [1, 2] == ran
    assert ("failed", "corrupt") == (record.status, record.reason)
    assert [99] == [letter.task_id for letter in letters]


@pytest.mark.rows("DE-05", "DE-04")
async def test_a_task_leaves_the_queue_only_when_its_outcome_is_stored() -> None:
    """Until then every other process sees it: queued, running, then its outcome."""
    fleet = Fleet()
    first, other = fleet.millpond(), fleet.millpond(work=False)
    pool = first.pool("items")
    mirror = other.pool("items")

    @pool.task
    async def item() -> str:
        await asyncio.sleep(10)
        return "done"

    @mirror.task(name="item")
    async def item_too() -> str:
        raise AssertionError("no worker here")

    async with first, other:
        await pool.pause()
        handle = await item.submit()
        assert ["queued"] == await other.status([handle.id])
        await pool.resume()
        await asyncio.sleep(5)
        assert ["running"] == await other.status([handle.id])
        assert 1 == await mirror.size()
        await handle
        assert ["completed"] == await other.status([handle.id])
        assert "done" == await (await other.handle(handle.id, of=item_too))


@pytest.mark.rows("DE-24")
async def test_sequences_are_never_reused() -> None:
    """Purged, pruned or redriven: a number that was given out is gone for good."""
    mp = Millpond(keep=Keep(completed=1, failed=1, keys=1))
    pool = mp.pool("webhooks", lanes=1)

    @pool.task
    async def send() -> None: ...

    async with mp:
        seen = [(await send.submit()).sequence for _ in range(3)]
        await pool.drain()
        await asyncio.sleep(3600)
        assert [] == await pool.tasks()
        await pool.pause()
        seen += [(await send.submit()).sequence for _ in range(3)]
        await pool.purge()
        again = await send.submit()
        seen.append(again.sequence)
        await again.cancel()
        await pool.redrive([again])
        seen.append((await again.refresh()).sequence)
        seen.append((await send.submit()).sequence)

    assert list(range(1, 10)) == seen


@pytest.mark.rows("DE-R03")
async def test_a_key_is_forgotten_after_keep_and_may_then_be_used_afresh() -> None:
    """Until Keep(keys=...) has passed it answers with the old id; then it makes a new task."""
    mp = Millpond(keep=Keep(completed=60, failed=60, keys=3600))
    pool = mp.pool("items")

    @pool.task
    async def item() -> None: ...

    async with mp:
        first = await pool.submit(item.bind(), idempotency_key="once")
        await first
        await asyncio.sleep(600)
        again = await pool.submit(item.bind(), idempotency_key="once")
        assert (first.id, True) == (again.id, again.duplicate)
        await asyncio.sleep(3600 + 120)
        fresh = await pool.submit(item.bind(), idempotency_key="once")
        assert not fresh.duplicate
        assert first.id != fresh.id


@pytest.mark.rows("HN-18", "DE-15", "DP-18")
async def test_the_first_submit_needs_no_set_up_and_memory_forgets_when_it_closes() -> None:
    """Opening makes the tables; in memory all tasks are gone when the Millpond closes."""
    mp = Millpond()
    pool = mp.pool("items")

    @pool.task
    async def item(n: int) -> int:
        return n

    async with mp:
        first = await item.submit(1)
        assert 1 == await first
    async with mp:
        assert ["unknown"] == await mp.status([first.id])
        assert 0 == (await pool.snapshot()).total
        assert 2 == await (await item.submit(2))


@pytest.mark.rows("DE-T02", "DE-06")
async def test_a_submit_to_an_empty_lane_wakes_a_worker_at_once() -> None:
    """However long the pool was idle, the task starts in the moment it is submitted."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=4)

    @pool.task
    async def send() -> float:
        return clock()

    async with mp:
        for idle in (0, 1, 3600, 86_400):
            await asyncio.sleep(idle)
            start = clock()
            assert start == await (await send.submit())


@pytest.mark.rows("DE-06")
async def test_an_idle_or_paused_pool_does_not_poll_the_store() -> None:
    """With nothing to do, and with work that is paused, a worker does not turn."""
    mp = Millpond()
    pool = mp.pool("webhooks", lanes=2)

    @pool.task
    async def send() -> None: ...

    async with mp:
        await (await send.submit())
        worker = internals_of(mp).runtime.workers[0]
        await asyncio.sleep(1)
        before = worker.turns
        await asyncio.sleep(3600)
        assert before == worker.turns
        await pool.pause()
        await send.submit()
        await asyncio.sleep(1)
        before = worker.turns
        await asyncio.sleep(3600)
        assert before == worker.turns
        await pool.resume()
        await pool.drain()


@pytest.mark.rows("DE-12")
def test_a_hook_must_be_a_function() -> None:
    """mp.pool() refuses anything else, and the error names the option."""
    mp = Millpond()
    with pytest.raises(Exception, match="on_dead_letter"):
        mp.pool("items", on_dead_letter="call me")  # type: ignore[arg-type]


def test_a_dead_letter_is_plain_data() -> None:
    """It can be written as JSON, to keep it elsewhere."""
    letter = DeadLetter(
        task_id=1,
        pool="items",
        function="item",
        payload=b"[1]",
        error=None,
        reason="expired",
        attempts=0,
        key=None,
        labels={},
        lane=None,
        sequence=1,
        submitted_at=0.0,
        failed_at=1.0,
    )
    assert "items" == json.loads(msgspec.json.encode(letter))["pool"]
