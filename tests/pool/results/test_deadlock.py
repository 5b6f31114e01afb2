"""Waiting in a handler: allowed where a slot can come free, refused where none can."""

import asyncio

import pytest
from tests.pool.moments import result_of

from millpond import Context, Handle, Millpond, Retry, TaskFailed, WouldDeadlock
from millpond.errors import MillpondError


def failed_with(error: TaskFailed, kind: type[MillpondError]) -> bool:
    return isinstance(error.__cause__, kind)


@pytest.mark.rows("HN-25")
async def test_a_handler_may_submit_to_its_own_pool_and_wait_where_there_is_room() -> None:
    """With two slots a handler submits to its own pool and has the result."""
    mp = Millpond()
    pool = mp.pool("nested", max_concurrent=2)

    @pool.task
    async def inner(n: int) -> int:
        await asyncio.sleep(1)
        return n * 2

    @pool.task
    async def outer(n: int) -> int:
        return 1 + await (await inner.submit(n))

    async with mp:
        assert 7 == await (await outer.submit(3))


@pytest.mark.rows("HN-25")
async def test_a_handler_that_waits_for_its_own_full_pool_is_refused() -> None:
    """With one slot the wait can never end, so it raises WouldDeadlock, which names both tasks."""
    mp = Millpond()
    pool = mp.pool("single", max_concurrent=1, retry=Retry.never())
    handles: list[Handle[None]] = []
    errors: list[WouldDeadlock] = []

    @pool.task
    async def inner() -> None: ...

    @pool.task
    async def outer() -> str:
        handles.append(await inner.submit())
        with pytest.raises(WouldDeadlock) as caught:
            await handles[0]
        errors.append(caught.value)
        return "went on"

    async with mp:
        waits = await outer.submit()
        assert "went on" == await waits
        # The task that it waited for still runs.
        await handles[0]
    (error,) = errors
    assert ("MILL-034", "single") == (error.code, error.pool)
    assert (waits.id, handles[0].id) == (error.task_id, error.awaited)


async def test_an_uncaught_would_deadlock_fails_the_task() -> None:
    """WouldDeadlock is the cause of the failure."""
    mp = Millpond()
    pool = mp.pool("single", retry=Retry.never())

    @pool.task
    async def inner() -> None: ...

    @pool.task
    async def outer() -> None:
        await (await inner.submit())

    async with mp:
        with pytest.raises(TaskFailed) as caught:
            await (await outer.submit())
        assert failed_with(caught.value, WouldDeadlock)


async def test_wait_and_as_completed_are_waits_too() -> None:
    """handle.wait, mp.wait and mp.as_completed are refused like awaiting the handle."""
    mp = Millpond()
    pool = mp.pool("single", retry=Retry.never())
    refused: list[str] = []

    @pool.task
    async def inner() -> None: ...

    @pool.task
    async def outer() -> None:
        handle = await inner.submit()
        try:
            await handle.wait()
        except WouldDeadlock:
            refused.append("handle.wait")
        try:
            await mp.wait([handle])
        except WouldDeadlock:
            refused.append("mp.wait")
        try:
            async for _ in mp.as_completed([handle]):
                pass
        except WouldDeadlock:
            refused.append("mp.as_completed")

    async with mp:
        await (await outer.submit())
    assert ["handle.wait", "mp.wait", "mp.as_completed"] == refused


async def test_only_the_wait_that_closes_the_cycle_is_refused() -> None:
    """Of two handlers that fill the pool, the first to wait may; the second is refused."""
    mp = Millpond()
    pool = mp.pool("double", max_concurrent=2, retry=Retry.never())
    refused: list[str] = []

    @pool.task
    async def inner() -> None: ...

    @pool.task
    async def outer(name: str, after: float) -> None:
        await asyncio.sleep(after)
        handle = await inner.submit()
        try:
            await handle
        except WouldDeadlock:
            refused.append(name)

    async with mp:
        handles = [await outer.submit("first", 1.0), await outer.submit("second", 2.0)]
        await asyncio.gather(*handles)
    assert ["second"] == refused


async def test_a_wait_is_allowed_while_another_task_can_finish() -> None:
    """While another running task does not wait, its slot will come free: no cycle."""
    mp = Millpond()
    pool = mp.pool("double", max_concurrent=2, retry=Retry.never())

    @pool.task
    async def inner() -> str:
        return "done"

    @pool.task
    async def busy() -> None:
        await asyncio.sleep(100)

    @pool.task
    async def outer() -> str:
        return await (await inner.submit())

    async with mp:
        await busy.submit()
        assert "done" == await (await outer.submit())


async def test_a_task_that_waits_for_itself_is_refused() -> None:
    """Awaiting one's own handle can never end, however many slots there are."""
    mp = Millpond()
    pool = mp.pool("many", max_concurrent=10, retry=Retry.never())

    @pool.task
    async def narcissus(ctx: Context) -> None:
        await (await mp.handle(ctx.task_id))

    async with mp:
        with pytest.raises(TaskFailed) as caught:
            await asyncio.wait_for((await narcissus.submit()).wait(), 10)
            await (await narcissus.submit())
        assert failed_with(caught.value, WouldDeadlock)


async def test_two_running_tasks_that_wait_for_each_other_are_a_cycle() -> None:
    """Both run, so no limit is in the way, and still neither can end."""
    mp = Millpond()
    pool = mp.pool("many", max_concurrent=10, retry=Retry.never())
    handles: dict[str, Handle[str]] = {}

    @pool.task
    async def work(name: str, other: str) -> str:
        await asyncio.sleep(1 if name == "a" else 2)
        try:
            await handles[other]
        except WouldDeadlock:
            return "refused"
        return "waited"

    async with mp:
        handles["a"] = await work.submit("a", "b")
        handles["b"] = await work.submit("b", "a")
        assert ["waited", "refused"] == [await handles["a"], await handles["b"]]


async def test_three_handlers_in_a_cycle_are_refused() -> None:
    """A waits for B, B for C, and C for a task that needs the slot of one of them."""
    mp = Millpond()
    pool = mp.pool("three", max_concurrent=3, retry=Retry.never())
    handles: dict[str, Handle[str]] = {}

    @pool.task
    async def inner() -> str:
        return "inner"

    @pool.task
    async def work(name: str, other: str | None, after: float) -> str:
        await asyncio.sleep(after)
        awaited = await inner.submit() if other is None else handles[other]
        try:
            return f"{name} after {await awaited}"
        except WouldDeadlock:
            return f"{name} refused"

    async with mp:
        handles["a"] = await work.submit("a", "b", 1.0)
        handles["b"] = await work.submit("b", "c", 2.0)
        handles["c"] = await work.submit("c", None, 3.0)
        assert "a after b after c refused" == await asyncio.wait_for(result_of(handles["a"]), 60)


async def test_a_cycle_through_a_key_is_refused() -> None:
    """With max_per_key=1 a handler that waits for a task of its own key is refused."""
    mp = Millpond()
    pool = mp.pool("keys", max_concurrent=10, max_per_key=1, retry=Retry.never())

    @pool.task
    async def inner() -> str:
        return "done"

    @pool.task
    async def outer(key: str | None) -> str:
        options = inner if key is None else inner.options(key=key)
        try:
            return await (await options.submit())
        except WouldDeadlock:
            return "refused"

    async with mp:
        mine = await outer.options(key="acme").submit("acme")
        other = await outer.options(key="acme2").submit("other")
        none = await outer.options(key="acme3").submit(None)
        assert ["refused", "done", "done"] == [await mine, await other, await none]


async def test_a_cycle_through_a_lane_is_refused() -> None:
    """In a pool with lanes a handler that waits for a later task of its own lane is refused."""
    mp = Millpond()
    pool = mp.pool("lanes", lanes=4, retry=Retry.never())

    @pool.task
    async def inner() -> str:
        return "done"

    @pool.task
    async def outer(ctx: Context) -> str:
        try:
            return await (await inner.options(key=ctx.key or "").submit())
        except WouldDeadlock as error:
            return f"refused in {error.pool}"

    async with mp:
        assert "refused in lanes" == await (await outer.options(key="acme").submit())


async def test_a_cycle_through_two_pools_is_refused() -> None:
    """A of one pool waits for B of another, which waits for a task of the first."""
    mp = Millpond()
    left, right = mp.pool("left", retry=Retry.never()), mp.pool("right", retry=Retry.never())

    @left.task
    async def last() -> str:
        return "last"

    @right.task
    async def middle() -> str:
        try:
            return await (await last.submit())
        except WouldDeadlock as error:
            return f"refused in {error.pool}"

    @left.task
    async def first() -> str:
        return await (await middle.submit())

    async with mp:
        assert "refused in left" == await asyncio.wait_for(result_of(await first.submit()), 60)


async def test_waiting_for_another_pool_with_room_is_allowed() -> None:
    """Also when every task of the handler's own pool waits."""
    mp = Millpond()
    outer_pool, inner_pool = mp.pool("outer", max_concurrent=3), mp.pool("inner")

    @inner_pool.task
    async def inner(n: int) -> int:
        await asyncio.sleep(1)
        return n

    @outer_pool.task
    async def outer(n: int) -> int:
        return await (await inner.submit(n))

    async with mp:
        handles = [await outer.submit(n) for n in range(3)]
        assert [0, 1, 2] == [await handle for handle in handles]


async def test_waiting_for_a_paused_pool_is_allowed() -> None:
    """A pool that was resized to 0 or paused may be resumed, so the wait goes on."""
    mp = Millpond()
    outer_pool, inner_pool = mp.pool("outer"), mp.pool("inner")

    @inner_pool.task
    async def inner() -> str:
        return "done"

    @outer_pool.task
    async def outer() -> str:
        return await (await inner.submit())

    async with mp:
        await inner_pool.resize(0)
        waits = await outer.submit()
        await asyncio.sleep(5)
        await inner_pool.pause()
        await inner_pool.resize(1)
        await asyncio.sleep(5)
        assert ["running"] == await mp.status([waits.id])
        await inner_pool.resume()
        assert "done" == await waits


async def test_outside_a_handler_nothing_is_refused() -> None:
    """A wait from outside holds no slot: a full pool is only slow."""
    mp = Millpond()
    pool = mp.pool("single")

    @pool.task
    async def work(n: int) -> int:
        await asyncio.sleep(1)
        return n

    async with mp:
        handles = [await work.submit(n) for n in range(5)]
        assert list(range(5)) == [handle.result for handle in await mp.wait(handles)]
