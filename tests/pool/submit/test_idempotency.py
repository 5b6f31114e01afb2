"""One key, one task: what a submit under a known idempotency key returns, and for how long."""

import asyncio
from typing import Any

import pytest

from millpond import Context, Handle, Keep, Millpond, Retry, bounded, fail_fast
from millpond.errors import ConfigError, IdempotencyConflict, PoolClosed, UnknownTask


class Shop:
    """A pool whose task counts its runs and fails on demand."""

    def __init__(self, *, keep: Keep | None = None, **settings: Any) -> None:
        self.mp = Millpond(keep=keep)
        self.pool = self.mp.pool("shop", retry=Retry.never(), **settings)
        self.runs = 0
        self.fails = False

        @self.pool.task
        async def charge(order: int, amount: int = 1) -> int:
            self.runs += 1
            await asyncio.sleep(1)
            if self.fails:
                raise ValueError("no money")
            return order

        self.charge = charge

    async def submit(self, order: int = 7, **options: Any) -> Handle[int]:
        given = {"idempotency_key": "k", **options}
        return await self.pool.submit(self.charge.bind(order), **given)


@pytest.mark.rows("HN-16")
async def test_a_known_key_is_answered_with_its_task() -> None:
    """The second submit returns the first one's id with duplicate=True; the handler runs once."""
    shop = Shop()
    async with shop.mp:
        first, second = await shop.submit(), await shop.submit()
        assert first.id == second.id
        assert [False, True] == [first.duplicate, second.duplicate]
        assert [7, 7] == [await first, await second]
        third = await shop.submit()
        assert ("completed", True, first.id) == (third.status, third.duplicate, third.id)
        assert 7 == await third
    assert 1 == shop.runs


@pytest.mark.rows("HN-16")
async def test_the_handle_of_a_duplicate_shows_the_known_task() -> None:
    """Its key, labels, priority, submitter and time are those of the first submit."""
    shop = Shop()
    async with shop.mp:
        await shop.pool.pause()
        first = await shop.submit(priority=5, key="acme", labels={"a": "1"}, submitted_by="ann")
        await asyncio.sleep(10)
        second = await shop.submit(priority=9, key="other", labels={"b": "2"}, submitted_by="bob")
        assert (5, "acme", {"a": "1"}, "ann", first.submitted_at, first.sequence) == (
            second.priority,
            second.key,
            second.labels,
            second.submitted_by,
            second.submitted_at,
            second.sequence,
        )


@pytest.mark.rows("HN-16")
async def test_racing_submitters_make_one_task() -> None:
    """Fifty submits of one key at once: one task, fifty handles to it."""
    shop = Shop()
    async with shop.mp:
        handles = await asyncio.gather(*(shop.submit() for _ in range(50)))
        assert 1 == len({handle.id for handle in handles})
        assert 49 == sum(handle.duplicate for handle in handles)
        assert [7] * 50 == [await handle for handle in handles]
    assert 1 == shop.runs


@pytest.mark.rows("HN-16")
async def test_a_key_twice_in_one_batch_is_one_task() -> None:
    """Submitters that share a batch share the task too."""
    shop = Shop()
    async with shop.mp:
        call = shop.charge.bind(7).options(idempotency_key="k")
        other = shop.charge.bind(8).options(idempotency_key="l")
        handles = await shop.pool.submit_many([call, other, call])
        assert [False, False, True] == [handle.duplicate for handle in handles]
        assert handles[0].id == handles[2].id
        await shop.pool.drain()
    assert 2 == shop.runs


async def test_a_key_belongs_to_its_pool() -> None:
    """The same key in another pool is another task."""
    shop = Shop()
    other = shop.mp.pool("other")
    async with shop.mp:
        first = await shop.submit()
        second = await other.submit(shop.charge.bind(7), idempotency_key="k")
        assert first.id != second.id
        assert not second.duplicate


async def test_a_closure_has_its_key_too() -> None:
    """A closure with a known key does not run again, and its first result is returned."""
    mp = Millpond()
    pool = mp.pool("closures")
    runs: list[int] = []

    async def work() -> int:
        runs.append(1)
        return len(runs)

    async with mp:
        first = await pool.submit(work, idempotency_key="k")
        assert 1 == await first
        second = await pool.submit(work, idempotency_key="k")
        assert (True, 1) == (second.duplicate, await second)


@pytest.mark.rows("HN-17")
@pytest.mark.parametrize(
    ("dedupe", "queued", "running", "completed", "failed", "cancelled"),
    [
        ("forever", True, True, True, True, True),
        ("success", True, True, True, False, False),
        ("inflight", True, True, False, False, False),
    ],
)
async def test_dedupe_decides_which_tasks_keep_their_key(
    dedupe: str, *, queued: bool, running: bool, completed: bool, failed: bool, cancelled: bool
) -> None:
    """forever: always; success: unless it failed or was cancelled; inflight: until it ends."""
    shop = Shop(max_concurrent=10)

    async def again(key: str) -> bool:
        return (await shop.submit(idempotency_key=key, dedupe=dedupe)).duplicate

    async with shop.mp:
        await shop.pool.pause()
        await shop.submit(idempotency_key="q")
        assert queued is await again("q")
        await shop.pool.resume()
        await asyncio.sleep(0.5)
        assert running is await again("q")
        await shop.pool.drain()
        assert completed is await again("q")
        await shop.pool.drain()
        shop.fails = True
        await (await shop.submit(idempotency_key="f")).wait()
        assert failed is await again("f")
        await shop.pool.drain()
        await shop.pool.pause()
        await (await shop.submit(idempotency_key="c")).cancel()
        assert cancelled is await again("c")


@pytest.mark.rows("HN-17")
async def test_a_failed_key_runs_again_by_redrive() -> None:
    """Under dedupe="forever" a failed task answers for its key, also after its redrive."""
    shop = Shop()
    shop.fails = True
    async with shop.mp:
        first = await shop.submit()
        await first.wait()
        assert ("failed", True) == ((await shop.submit()).status, (await shop.submit()).duplicate)
        shop.fails = False
        await shop.pool.redrive([first])
        again = await shop.submit()
        assert (first.id, True, 7) == (again.id, again.duplicate, await again)
    assert 2 == shop.runs


async def test_dedupe_run_counts_within_a_run() -> None:
    """The same key is one task in each run, and needs a run to mean anything."""
    shop = Shop()
    once = shop.charge.bind(1).options(idempotency_key="k", dedupe="run")
    async with shop.mp:
        for _ in range(2):
            report = await shop.pool.drain([once, once])
            assert 1 == report.total
        assert 2 == shop.runs
        with pytest.raises(ConfigError, match="needs a run"):
            await shop.pool.submit(once)


@pytest.mark.parametrize("dedupe", ["forever", "success", "inflight"])
async def test_another_call_under_the_same_key_is_a_conflict(dedupe: str) -> None:
    """The same key with other arguments or another function is refused, and names the task."""
    shop = Shop()

    @shop.pool.task
    async def refund(order: int, amount: int = 1) -> int:
        return order

    async with shop.mp:
        await shop.pool.pause()
        first = await shop.submit()
        with pytest.raises(IdempotencyConflict) as caught:
            await shop.submit(8, dedupe=dedupe)
        assert ("shop", "k", first.id) == (
            caught.value.pool,
            caught.value.key,
            caught.value.task_id,
        )
        with pytest.raises(IdempotencyConflict):
            await shop.pool.submit(refund.bind(7), idempotency_key="k")
        assert 1 == await shop.pool.size()


async def test_a_conflict_in_a_batch_names_the_key_in_conflict() -> None:
    """Nothing of the batch is stored, and the error names the key."""
    shop = Shop()
    async with shop.mp:
        await shop.pool.pause()
        await shop.submit(1, idempotency_key="known")
        with pytest.raises(IdempotencyConflict) as caught:
            await shop.pool.submit_many(
                [
                    shop.charge.bind(5).options(idempotency_key="new"),
                    shop.charge.bind(2).options(idempotency_key="known"),
                ]
            )
        assert "known" == caught.value.key
        assert 1 == await shop.pool.size()


async def test_arguments_by_name_and_by_place_are_the_same_call() -> None:
    """charge(7, 2) and charge(amount=2, order=7) mean the same, so they do not conflict."""
    shop = Shop()
    async with shop.mp:
        await shop.pool.submit(shop.charge.bind(7, 2), idempotency_key="k")
        again = await shop.pool.submit(shop.charge.bind(amount=2, order=7), idempotency_key="k")
        assert again.duplicate


async def test_the_idempotency_key_is_checked_before_closed_paused_or_full() -> None:
    """A known key is answered by a pool that would take nothing else."""
    full = Shop(backpressure=bounded(1, on_full="fail_submitter"))
    async with full.mp:
        await full.pool.pause()
        await full.submit()
        assert (await full.submit()).duplicate
        await full.pool.close()
        assert (await full.submit()).duplicate
        with pytest.raises(PoolClosed):
            await full.submit(idempotency_key="new")
    fast = Shop(backpressure=fail_fast())
    async with fast.mp:
        first = await fast.submit()
        await fast.pool.pause()
        assert (await fast.submit()).id == first.id


@pytest.mark.parametrize("on_full", ["drop_oldest", "drop_newest"])
async def test_a_rejected_task_does_not_keep_its_key(on_full: str) -> None:
    """After a drop the key is free: the next submit is a new task."""
    shop = Shop(backpressure=bounded(1, on_full=on_full))
    async with shop.mp:
        await shop.pool.pause()
        if on_full == "drop_oldest":
            dropped = await shop.submit()
            await shop.submit(idempotency_key=None)
        else:
            await shop.submit(idempotency_key=None)
            dropped = await shop.submit()
        await dropped.wait()
        assert "rejected" == dropped.status
        await shop.pool.purge()
        again = await shop.submit()
        assert ("queued", False) == (again.status, again.duplicate)
        assert dropped.id != again.id


async def test_retention_forgets_the_result_and_still_answers_for_the_key() -> None:
    """When the record is gone, the key still leads to its id and status; the result is lost."""
    shop = Shop(keep=Keep(completed=60.0, keys=86_400.0))
    async with shop.mp:
        first = await shop.submit()
        await first
        await asyncio.sleep(600)
        assert ["expired"] == await shop.mp.status([first.id])
        again = await shop.submit()
        assert (first.id, True, "completed") == (again.id, again.duplicate, again.status)
        assert again is await again.wait()
        with pytest.raises(UnknownTask, match="no longer kept"):
            await again
        assert "completed" == (await again.refresh()).status
    assert 1 == shop.runs


async def test_keys_are_forgotten_too_in_the_end() -> None:
    """After Keep(keys=...) the key is free again."""
    shop = Shop(keep=Keep(completed=60.0, keys=600.0))
    async with shop.mp:
        await (await shop.submit())
        for _ in range(3):
            await asyncio.sleep(600)
            await (await shop.submit(idempotency_key=None))
        again = await shop.submit()
        assert not again.duplicate


async def test_a_handler_that_submits_with_a_key_submits_once() -> None:
    """pool.submit inside a handler stores at once; a retry of the handler finds the same task."""
    mp = Millpond()
    pool = mp.pool("outer", retry=Retry.constant(1.0))
    inner = mp.pool("inner")
    ran: list[int] = []

    @inner.task
    async def step() -> None:
        ran.append(1)

    @pool.task
    async def outer(ctx: Context) -> None:
        await inner.submit(step.bind(), idempotency_key=f"{ctx.task_id}/step")
        if not ctx.is_retry:
            raise ValueError

    async with mp:
        await (await outer.submit())
        await inner.drain()
    assert [1] == ran


@pytest.mark.parametrize("key", ["", "x" * 1025, "a\0b"])
async def test_a_key_that_no_store_could_keep_is_refused(key: str) -> None:
    """An idempotency key has 1 to 1,024 bytes, none of them NUL."""
    shop = Shop()
    async with shop.mp:
        with pytest.raises(ConfigError, match="idempotency_key"):
            await shop.submit(idempotency_key=key)
