"""Scenes of attempts that do not complete, and of tasks that are tried again."""

from typing import Any

from tests.store.postgres.test_fast_path import Two

from millpond.core import control as orders
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.run import NewRun, OnError
from millpond.core.settle import Settlement
from millpond.core.task import Call, Fence, NewTask
from millpond.store.protocol import Batch

COMPLETE, FAIL = Transition.COMPLETE, Transition.FAIL
RETRY, RELEASE = Transition.RETRY, Transition.RELEASE


def batch(first: int, *keys: str | None, **options: Any) -> tuple[Batch, ...]:
    """A batch with a task for each of these keys, which are their shares, too."""
    new = [
        NewTask(id=first + n, pool="p", call=Call("work", b"x"), key=key, share=key, **options)
        for n, key in enumerate(keys)
    ]
    return (Batch(tasks=tuple(new)),)


def ask(want: int = 7, ahead: int = 0) -> LeaseRequest:
    """Ask for some tasks."""
    return LeaseRequest(pool="p", worker="one", want=want, ahead=ahead)


def end(leased: Leased, event: Transition = COMPLETE, **options: Any) -> Settlement:
    """End an attempt."""
    error = None if event is COMPLETE else b"e"
    return Settlement(fence=leased.fence, event=event, error=error, **options)


async def leased(two: Two, want: int = 7) -> list[Leased]:
    """Lease some tasks."""
    return list((await two.do("lease", ask(want))).leased)


async def outcomes(two: Two) -> None:
    """Attempts end in every way at once; what goes back comes again, and in its order."""
    await two.do("submit", batch(1, *"abcabcd", None, None, attempts=9))
    one, other, third, *more = await leased(two, 5)
    ends = [end(one, RETRY, delay=2.0), end(other, FAIL, reason="because"), end(third)]
    ends += [end(each, RELEASE, spend=False, begun=False) for each in more[:1]]
    await two.do("settle", (tuple(ends), None))
    ends = [end(each, RETRY, spend=False) for each in more[1:]]
    again = list((await two.do("settle", (tuple(ends), ask(2)))).lease.leased)
    for seconds in (0.5, 2.0, 4.0):
        two.now += seconds
        again += await leased(two, 3)
        last = again.pop()
        ends = [end(last, RETRY, delay=seconds), *(end(each) for each in again[:2])]
        again = again[2:]
        answer = await two.do("settle", (tuple(ends), ask(2)))
        again += answer.lease.leased
    await two.do("settle", (tuple(end(each) for each in again), ask()))


async def alone(two: Two) -> None:
    """The only task goes back: now, later, and while the pool is paused; each wakes or does not."""
    await two.do("submit", batch(1, "a", attempts=9))
    for delay in (0.0, 1.0):
        (one,) = await leased(two)
        await two.do("settle", ((end(one, RETRY, delay=delay),), None))
        two.now += delay
    (one,) = await leased(two)
    await two.do("control", orders.Pause("p"))
    await two.do("settle", ((end(one, RETRY, delay=1.0),), None))


async def above(two: Two) -> None:
    """More run than may: what goes back finds no room."""
    await two.do("submit", batch(1, *"abcde"))
    one, other, *_ = await leased(two)
    await two.do("control", orders.Resize("p", 1))
    await two.do("control", orders.Pause("p"))
    await two.do("settle", ((end(one, RETRY, delay=1.0),), None))
    await two.do("settle", ((end(other, RETRY),), None))


async def last_attempts(two: Two) -> None:
    """A retry of the last attempt fails, and so does an only attempt that began."""
    await two.do("submit", batch(1, *"abcd", attempts=1))
    one, other, third, fourth = await leased(two)
    await two.do("settle", ((end(one, RETRY),), None))
    await two.do("settle", ((end(other, RELEASE, spend=False),), None))
    await two.do("settle", ((end(third, RELEASE, spend=False, begun=False),), None))
    await two.do("settle", ((end(fourth, RETRY, spend=False),), ask()))


async def cancelled(two: Two) -> None:
    """A task that is to be cancelled is not tried again."""
    await two.do("submit", batch(1, *"abc"))
    running = await leased(two)
    await two.do("control", orders.Cancel(tuple(one.fence.task for one in running)))
    for one, event in zip(running, (RETRY, FAIL, COMPLETE), strict=True):
        await two.do("settle", ((end(one, event),), None))


async def stale_rows(two: Two) -> None:
    """Old fences of tasks that are tried again change nothing, and neither does a second end."""
    await two.do("submit", batch(1, "a", "b", attempts=9))
    before = await leased(two)
    await two.do("settle", (tuple(end(one, RETRY) for one in before), None))
    now = await leased(two)
    for old, new in zip(before, now, strict=True):
        task, attempt, token = new.fence.task, new.fence.attempt, new.fence.token
        for wrong in (old.fence, Fence(task, attempt, token ^ 1), Fence(task, 1, token)):
            await two.do("settle", ((Settlement(fence=wrong, event=COMPLETE),), None))
    twice = end(now[0], RETRY, delay=1.0)
    await two.do("settle", ((twice, twice), None))


async def expires(two: Two) -> None:
    """What is not too late starts, and ends; what is too late fails."""
    await two.do("submit", batch(1, "a", "b", expires_in=3.0))
    await two.do("submit", batch(11, "c"))
    running = await leased(two, 1)
    two.now += 1.0
    running += await leased(two, 2)
    await two.do("settle", (tuple(end(one) for one in running[:2]), None))
    await two.do("submit", batch(21, "d", expires_in=3.0))
    two.now += 3.0
    await two.do("settle", (tuple(end(one) for one in running[2:]), ask()))


async def expiring(two: Two) -> None:
    """What will expire has a row of its own when it starts, and ends like any other."""
    await two.do("submit", batch(1, "a", "b", expires_in=3.0))
    running = await leased(two)
    await two.do("settle", (tuple(end(one) for one in running), ask()))


async def run_stops(two: Two) -> None:
    """The first failure stops a run: what waits is cancelled, and what goes back is, too."""
    for number, on_error in enumerate((OnError.FAIL, OnError.SKIP), 1):
        run = NewRun(id=900 + number, pool="p", on_error=on_error)
        (new,) = batch(100 * number, *"abcd", run=run.id)
        await two.do("submit", (Batch(tasks=new.tasks, run=run),))
        first, second, third = await leased(two, 3)
        await two.do("settle", ((end(first, FAIL),), None))
        await two.do("settle", ((end(second, RETRY),), None))
        await two.do("settle", ((end(third, FAIL),), ask()))
        for store in two.stores:
            assert await two.stores[0].view.run(run.id) == await store.view.run(run.id)


async def slots_go_on(two: Two) -> None:
    """Prefetched tasks start in the slots of attempts that fail, and may end at once."""
    await two.do("submit", batch(1, *"abcdefgh"))
    answer = await two.do("lease", ask(2, 4))
    (one, other), (first, second, third, fourth) = answer.leased, answer.claimed
    ends = (
        end(one, RETRY, delay=1.0, successor=first.fence),
        end(other, successor=second.fence),
        end(first, FAIL, successor=third.fence),
    )
    await two.do("settle", (ends, None))
    await two.do("control", orders.Cancel((fourth.fence.task,)))
    await two.do("settle", ((end(second, RETRY, successor=fourth.fence),), None))
    await two.do("settle", ((end(third, RELEASE, spend=False, begun=False),), None))
    two.now += 2.0
    await two.do("lease", ask(0, 6))


async def in_turn(two: Two) -> None:
    """What goes back, and what its key held back, take turns in the order of the ends."""
    await two.do("submit", batch(1, *"abcabc"))
    held = await leased(two, 3)
    ends = tuple(end(one, RETRY, delay=0.0) for one in reversed(held[1:]))
    await two.do("settle", (ends, None))
    await two.do("settle", ((end(held[0], RETRY, delay=1.0),), ask(1)))
    await two.do("submit", batch(11, *"ddaa"))
    two.now += 1.0
    for _ in range(3):
        running = await leased(two, 2)
        await two.do("settle", (tuple(end(one) for one in running), ask(1)))


async def back_in_order(two: Two) -> None:
    """Shares that come back take turns in that order, though one had an end before."""
    await two.do("submit", batch(1, *"abca", attempts=9))
    first, b, _, again = await leased(two, 4)
    await two.do(
        "settle", ((end(first), end(b, RETRY, delay=0.0), end(again, RETRY, delay=0.0)), None)
    )
    for _ in range(2):
        await leased(two, 1)


async def due_in_order(two: Two) -> None:
    """Shares begin to take turns as their tasks become due, not as they were submitted."""
    for number, (key, delay) in enumerate((("a", 3.0), ("b", 1.0), ("c", 2.0), ("a", 4.0))):
        await two.do("submit", batch(number + 1, key, delay=delay))
    two.now += 5.0
    for _ in range(4):
        await leased(two, 1)


async def closure_of_a_freed_key(two: Two) -> None:
    """A key comes free for a closure: its process gets it, and no other."""
    await two.do("control", orders.Register("theirs", 1e6, owner="them"))
    await two.do("submit", batch(1, "a"))
    running = await leased(two)
    await two.do("submit", batch(2, "a", owner="them"))
    # Without a lease: that is refused as long as a closure takes turns.
    await two.do("settle", (tuple(end(one) for one in running), None))
    await two.do("lease", LeaseRequest(pool="p", worker="theirs", want=1))


async def lane_waits_for_its_head(two: Two) -> None:
    """The first task of a lane is not due, or backs off: none behind it starts."""
    await two.do("submit", batch(1, "a", "b"))
    first, second = await leased(two)
    await two.do("submit", batch(3, "a", "b"))
    ends = [end(first, RETRY, delay=2.0), end(second)]
    await two.do("settle", (tuple(ends), ask()))
    two.now += 1.0
    assert not await leased(two)
    await two.do("submit", batch(5, "c", delay=2.0))
    await two.do("submit", batch(6, "c"))
    assert not await leased(two)
    two.now += 3.0
    await leased(two)
