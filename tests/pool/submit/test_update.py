"""Updates: a task that waits gets other arguments, another time or another priority."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.stores import fresh_store

from millpond import Context, Millpond, NotWaiting, Retry, StaleRevision, UnknownTask
from millpond.core.spec import fair_round_robin, priority
from millpond.errors import BadPayload, ConfigError
from millpond.pool.internals import internals_of


class Shop:
    """A pool whose task notes its arguments and fails on demand."""

    def __init__(self, *, work: bool = True, **settings: Any) -> None:
        self.mp = Millpond(work=work)
        internals_of(self.mp).owner.make_store = fresh_store
        self.pool = self.mp.pool("shop", **settings)
        self.done: list[str] = []
        self.fails = False

        @self.pool.task(key="customer")
        async def send(ctx: Context, customer: str, text: str = "") -> str:
            self.done.append(f"{customer}: {text}")
            if self.fails:
                raise ConnectionError("busy")
            return f"{text} in attempt {ctx.attempt}"

        self.send = send


async def test_an_update_gives_a_waiting_task_other_arguments() -> None:
    """It keeps its id, its key and its handle, and only the last arguments run."""
    shop = Shop()
    async with shop.mp:
        handle = await shop.send.options(delay=60).submit("ada", "first")
        assert 1 == await shop.mp.update(handle.id, shop.send.bind("ada", "second"))
        assert 2 == await shop.mp.update(handle.id, {"customer": "ada", "text": "third"})
        assert "third in attempt 1" == await handle
        assert 2 == (await handle.refresh()).revision
    assert ["ada: third"] == shop.done


async def test_an_update_changes_priority_labels_and_timeout() -> None:
    """Only the given options change."""
    shop = Shop(work=False, queue=priority())
    async with shop.mp:
        first = await shop.send.options(labels={"a": "1"}).submit("ada", "x")
        await shop.mp.update(first.id, priority=5, timeout=3.0)
        await first.refresh()
        assert (5, {"a": "1"}, 1) == (first.priority, first.labels, first.revision)
        assert 3.0 == internals_of(first).new.timeout
        await shop.mp.update(first.id, labels={"b": "2"})
        assert {"b": "2"} == (await first.refresh()).labels
        assert 2 == (await shop.pool.tasks())[0].revision


async def test_reschedule_and_run_now_move_a_waiting_task() -> None:
    """It starts at its new time, and `run_now` starts it at once."""
    shop = Shop()
    async with shop.mp:
        start = asyncio.get_running_loop().time()
        late = await shop.send.options(delay=3_600).submit("ada", "late")
        await shop.mp.reschedule(late.id, delay=10)
        await late
        assert 10 <= asyncio.get_running_loop().time() - start < 15
        wall = asyncio.get_running_loop().wall_time()  # type: ignore[attr-defined]
        dated = await shop.send.options(delay=3_600).submit("bob", "dated")
        await shop.mp.reschedule(dated.id, run_at=datetime.fromtimestamp(wall + 20, UTC))
        assert dated.status == "queued"
        await shop.mp.run_now(dated.id)
        await dated
        assert asyncio.get_running_loop().time() - start < 20


async def test_run_now_ends_the_wait_for_a_retry() -> None:
    """The next attempt starts at once and counts as usual."""
    shop = Shop(retry=Retry(attempts=2, initial=3_000.0, max_delay=3_000.0))
    shop.fails = True
    async with shop.mp:
        handle = await shop.send.submit("ada", "x")
        await asyncio.sleep(5)
        shop.fails = False
        start = asyncio.get_running_loop().time()
        await shop.mp.run_now(handle.id)
        assert "x in attempt 2" == await handle
        assert asyncio.get_running_loop().time() - start < 10


async def test_only_a_task_that_waits_can_be_changed() -> None:
    """A task that ended, an unknown one and an old revision are refused by name."""
    shop = Shop()
    async with shop.mp:
        handle = await shop.send.submit("ada")
        await handle
        with pytest.raises(NotWaiting) as ended:
            await shop.mp.run_now(handle.id)
        assert (handle.id, "completed") == (ended.value.task_id, ended.value.status)
        for call in (shop.mp.run_now(77), shop.mp.update(77, {"customer": "x"})):
            with pytest.raises(UnknownTask):
                await call
        waits = await shop.send.options(delay=60).submit("ada")
        await shop.mp.update(waits.id, priority=1, revision=0)
        with pytest.raises(StaleRevision) as stale:
            await shop.mp.update(waits.id, priority=2, revision=0)
        assert (0, 1) == (stale.value.given, stale.value.current)


async def test_an_update_refuses_to_change_key_function_retries_and_idempotency_key() -> None:
    """Such an update raises, and the task keeps its revision."""
    shop = Shop(work=False)

    @shop.pool.task
    async def other() -> None:
        """Do nothing."""

    async with shop.mp:
        waits = await shop.send.submit("ada")
        for arguments in (shop.send.bind("bob"), other.bind(), shop.send, lambda: None, 7):
            with pytest.raises((ConfigError, BadPayload, TypeError)):
                await shop.mp.update(waits.id, arguments)  # type: ignore[arg-type]
        for option in ({"key": "x"}, {"retry": Retry()}, {"idempotency_key": "x"}, {"weight": 2}):
            with pytest.raises(ConfigError, match="cannot be changed"):
                await shop.mp.update(waits.id, **option)
        with pytest.raises(ConfigError, match="give one of them"):
            await shop.mp.reschedule(waits.id)
        with pytest.raises(BadPayload):
            await shop.mp.update(waits.id, {"customer": "ada", "wrong": 1})
        assert 0 == (await waits.refresh()).revision


async def test_a_key_that_the_submit_gave_stays() -> None:
    """The key of the submit stays, also when the function would derive another one."""
    shop = Shop(queue=fair_round_robin("customer"), work=False)
    async with shop.mp:

        @shop.pool.task
        async def plain(text: str) -> None:
            """Take a text."""

        waits = await shop.pool.submit(plain.bind("a"), key="acme")
        await shop.mp.update(waits.id, plain.bind("b"))
        assert "acme" == (await waits.refresh()).key


async def test_an_update_by_data_works_where_the_function_is_unknown() -> None:
    """An operator's process changes the arguments of a task whose code it does not have."""
    shop = Shop(work=False)
    async with shop.mp:
        waits = await shop.send.submit("ada", "x")
        del shop.mp._pools.functions.by_name["send"]
        await shop.mp.update(waits.id, {"customer": "ada", "text": "y"})
        payload = internals_of(await waits.refresh()).new.call.payload
    assert b'"y"' in payload
    assert b'"x"' not in payload


@pytest.mark.real_loop
def test_threads_update_too() -> None:
    """`mp.sync` has the same three calls."""
    mp = Millpond(work=False)
    pool = mp.pool("shop")

    @pool.task
    def send(to: str) -> None:
        """Send nothing."""

    with mp.sync:
        handle = pool.sync.submit(send.bind("ada"), delay=60)
        assert 1 == mp.sync.update(handle.id, send.bind("bob"))
        assert 2 == mp.sync.reschedule(handle.id, delay=30)
        assert 3 == mp.sync.run_now(handle.id)
        assert handle.refresh().revision == 3
