"""Events and triggers: one event makes one task per trigger, however often it is emitted."""

import asyncio
from typing import Any

import pytest
from tests.pool.trigger_fixtures import NAME, Hook, House

from millpond import (
    Event,
    Keep,
    Retry,
    bounded,
    fail_fast,
    priority,
)
from millpond.errors import (
    IdempotencyConflict,
    UnknownEvent,
)
from millpond.pool.internals import internals_of


@pytest.mark.rows("HN-22", "HN-23", "HN-27")
async def test_an_event_becomes_one_task_and_its_receipt_has_its_id() -> None:
    """The trigger submits the task once; its handle works like any other."""
    house = House()
    house.trigger()
    async with house.mp:
        emitted = await house.mp.emit(NAME, Hook("acme"), event_id="e1")
        (receipt,) = await emitted.receipts(timeout=60)
        assert ("router", NAME, "e1", "submitted", "work") == (
            receipt.trigger,
            receipt.event,
            receipt.event_id,
            receipt.outcome,
            receipt.pool,
        )
        (handle,) = await emitted.handles()
        assert receipt.task_id == handle.id
        assert ["acme"] == [await one for one in await house.mp.wait([handle])]
        assert "trigger:router" == handle.submitted_by
    assert [Hook("acme")] == house.got


@pytest.mark.rows("HN-22")
async def test_eight_events_keep_within_the_limit_of_the_pool() -> None:
    """Triggers share the budget of the pool: eight events, three at a time."""
    house = House(max_concurrent=3)
    house.trigger()
    async with house.mp:
        emitted = [await house.mp.emit(NAME, Hook(str(i))) for i in range(8)]
        handles = [handle for one in emitted for handle in await one.handles()]
        await house.mp.wait(handles)
    assert (8, 3) == (len({handle.id for handle in handles}), house.peak)


@pytest.mark.rows("HN-22")
async def test_priority_and_key_are_read_from_the_event() -> None:
    """ "7" is read as 7, and a path without a value gives the default."""
    house = House(queue=priority())
    house.trigger(priority_from="payload.urgency", key_from="payload.source")
    house.trigger("bare", priority_from="payload.none", key_from="payload.source.name")
    house.trigger(
        "given", priority_from="nowhere", key_from="nowhere", priority=5, key="k", weight_from="id"
    )
    async with house.mp:
        emitted = await house.mp.emit(NAME, Hook("acme", "7"), event_id="3")
        bare, given, found = await emitted.handles(timeout=60)
        assert (7, "acme") == (found.priority, found.key)
        assert (0, None) == (bare.priority, bare.key)
        assert (5, "k") == (given.priority, given.key)
        record = await internals_of(house.mp).runtime.view.task(given.id)
        assert record is not None
        assert 3 == record.new.weight


@pytest.mark.rows("HN-22")
async def test_each_trigger_for_an_event_makes_its_own_task() -> None:
    """Several triggers, several tasks; one for another event makes none."""
    house = House()
    house.trigger("first")
    house.trigger("second", on=["other", NAME])
    house.trigger("third", on="other")
    async with house.mp:
        receipts = await house.emit_and_wait()
        assert ["first", "second"] == [one.trigger for one in receipts]
        assert 2 == len({one.task_id for one in receipts})
        assert [] == await (await house.mp.emit("without.trigger")).receipts(timeout=60)


@pytest.mark.rows("HN-22")
async def test_an_event_emitted_twice_is_stored_once() -> None:
    """Fifty emits of one id make one event and one task, and each emit returns it."""
    house = House()
    house.trigger()
    async with house.mp:
        emitted = await asyncio.gather(
            *(house.mp.emit(NAME, Hook("acme"), event_id="e1") for _ in range(50))
        )
        assert 49 == sum(one.duplicate for one in emitted)
        found = {one.task_id for each in emitted for one in await each.receipts(timeout=60)}
        assert 1 == len(found)
        with pytest.raises(IdempotencyConflict, match="other arguments"):
            await house.mp.emit(NAME, Hook("bolt"), event_id="e1")
        other = await house.mp.emit("other", Hook("bolt"), event_id="e1")
        assert not other.duplicate
        await house.pool.drain()
    assert 1 == len(house.got)


@pytest.mark.rows("HN-22")
async def test_a_replay_finds_the_same_task() -> None:
    """Also when it has ended, or only its key is kept; a new trigger gets the event too."""
    house = House(keep=Keep(completed=10, events=3600, keys=3600))
    house.trigger()
    async with house.mp:
        (first,) = await house.emit_and_wait("e1")
        (running,) = await (await house.mp.replay(NAME, "e1")).receipts(timeout=60)
        await house.pool.drain()
        (ended,) = await (await house.mp.replay(NAME, "e1")).receipts(timeout=60)
        await asyncio.sleep(120)
        assert ["expired"] == await house.mp.status([first.task_id or 0])
        house.trigger("late")
        late, known = await (await house.mp.replay(NAME, "e1")).receipts(timeout=60)
        assert 3 * ["duplicate"] == [one.outcome for one in (running, ended, known)]
        assert {first.task_id} == {one.task_id for one in (running, ended, known)}
        assert ("late", "submitted") == (late.trigger, late.outcome)
        events = await house.mp.events(NAME)
        assert ["e1"] * 4 == [one.id for one in events]
        assert [False, True, True, True] == [one.replay for one in events]
        await house.pool.drain()
    assert 2 == len(house.got)


async def test_an_event_that_is_too_old_cannot_be_replayed() -> None:
    """Its key could expire before the replay; an unknown event cannot be replayed either."""
    house = House(keep=Keep(events=100, keys=200))
    house.trigger()
    async with house.mp:
        await house.emit_and_wait("e1")
        await asyncio.sleep(99)
        assert 1 == len(await (await house.mp.replay(NAME, "e1")).receipts(timeout=0.5))
        await asyncio.sleep(2)
        for unknown in ("e1", "e2"):
            with pytest.raises(UnknownEvent, match="no event"):
                await house.mp.replay(NAME, unknown)


@pytest.mark.rows("HN-22")
async def test_an_event_for_a_missing_pool_is_a_dead_letter_until_the_pool_is_declared() -> None:
    """The delivery is not retried; a redrive submits the task after the pool is declared."""
    house = House()
    trigger = house.trigger(into="nowhere")
    async with house.mp:
        (receipt,) = await house.emit_and_wait("e1")
        assert ("failed", None) == (receipt.outcome, receipt.task_id)
        assert "MILL-070" in (receipt.reason or "")
        assert "has no pool 'nowhere'" in (receipt.reason or "")
        (dead,) = await trigger.dead_letters()
        assert (receipt, 1) == (dead, (await trigger.deliveries.tasks())[0].attempt)
        house.mp.pool("nowhere")
        assert 1 == await trigger.redrive([dead.delivery_id])
        await trigger.deliveries.drain()
        assert ([], 0) == (await trigger.dead_letters(), await trigger.redrive())
        (again,) = await (await house.mp.replay(NAME, "e1")).receipts(timeout=60)
        assert ("duplicate", "nowhere") == (again.outcome, again.pool)
        await house.mp.get_pool("nowhere").drain()
    assert 1 == len(house.got)


async def test_all_dead_letters_are_redriven_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is more than one page of them."""
    monkeypatch.setattr("millpond.pool.events.trigger.PAGE", 3)
    house = House(max_concurrent=50)
    trigger = house.trigger(into="nowhere")
    async with house.mp:
        emitted = [await house.mp.emit(NAME, Hook("acme")) for _ in range(8)]
        for one in emitted:
            await one.receipts(timeout=60)
        assert [5, 3] == [len(await trigger.dead_letters(limit=n)) for n in (5, 3)]
        house.mp.pool("nowhere", max_concurrent=50)
        assert 8 == await trigger.redrive()
        await trigger.deliveries.drain()
        await house.mp.get_pool("nowhere").drain()
    assert 8 == len(house.got)


@pytest.mark.rows("HN-23")
async def test_a_task_that_is_dropped_counts_as_dispatched() -> None:
    """drop_newest: receipt and audit say so; the delivery is not retried."""
    house = House(max_concurrent=1, backpressure=bounded(1, "drop_newest"))
    trigger = house.trigger()
    async with house.mp:
        await house.pool.pause()
        (kept,) = await house.emit_and_wait("e1")
        (dropped,) = await house.emit_and_wait("e2")
        assert ("submitted", "rejected") == (kept.outcome, dropped.outcome)
        assert "drop_newest_queue_full" == dropped.reason
        records = [one async for one in house.mp.audit("work") if one.kind == "drop"]
        assert [dropped.task_id] == [one.task for one in records]
        assert [] == await trigger.dead_letters()
        assert 0 == await trigger.deliveries.size()


@pytest.mark.rows("HN-23")
@pytest.mark.parametrize("policy", [bounded(1, "fail_submitter"), fail_fast()])
async def test_an_event_that_the_pool_refuses_is_rejected(policy: Any) -> None:
    """The delivery is not retried."""
    house = House(max_concurrent=1, backpressure=policy)
    house.trigger()
    async with house.mp:
        receipts = [(await house.emit_and_wait(f"e{i}"))[0] for i in range(3)]
        assert "rejected" == receipts[-1].outcome
        assert "pool 'work'" in (receipts[-1].reason or "")


async def test_events_wait_for_a_full_pool_that_blocks_submitters() -> None:
    """The waits cost no attempts and hold up no other events; all are delivered."""
    house = House(max_concurrent=2, backpressure=bounded(2))
    trigger = house.trigger()
    async with house.mp:
        emitted = [await house.mp.emit(NAME, Hook(str(i))) for i in range(8)]
        for one in emitted:
            (receipt,) = await one.receipts(timeout=600)
            assert "submitted" == receipt.outcome
        await house.pool.drain()
        assert {1} == {one.attempt for one in await trigger.deliveries.tasks()}
    assert 8 == len(house.got)


async def test_a_make_that_fails_is_tried_again_and_then_a_dead_letter() -> None:
    """delivery_retry says how often; other triggers still deliver."""
    house = House()
    dead: list[str] = []

    def broken(event: Event) -> None:
        raise LookupError("no such thing")

    house.trigger("good")
    bad = house.trigger(
        "bad",
        make=broken,
        delivery_retry=Retry(attempts=2),
        on_dead_letter=lambda letter: dead.append(letter.pool),
    )
    async with house.mp:
        failed, good = await house.emit_and_wait("e1")
        assert ("failed", "submitted") == (failed.outcome, good.outcome)
        assert "no such thing" in (failed.reason or "")
        assert 2 == (await bad.deliveries.tasks())[0].attempt
    assert ["~trigger/bad"] == dead


async def test_a_paused_trigger_keeps_its_events() -> None:
    """They wait in its own pool, and are delivered when it resumes."""
    house = House()
    trigger = house.trigger()
    house.trigger("other")
    async with house.mp:
        await trigger.pause()
        emitted = await house.mp.emit(NAME, Hook("acme"))
        with pytest.raises(TimeoutError):
            await emitted.receipts(timeout=10)
        await house.pool.drain()
        assert (1, 1) == (len(house.got), await trigger.deliveries.size())
        assert ["~trigger/router"] == [one.pool for one in await house.mp.unsettled()]
        await trigger.resume()
        assert 2 == len(await emitted.receipts(timeout=60))
        await house.pool.drain()
    assert 2 == len(house.got)


async def test_a_removed_trigger_takes_no_more_events() -> None:
    """Events it already had are still submitted."""
    house = House()
    trigger = house.trigger()
    async with house.mp:
        await trigger.pause()
        emitted = await house.mp.emit(NAME, Hook("acme"))
        with pytest.raises(TimeoutError):
            await emitted.receipts(timeout=10)
        assert 1 == await trigger.deliveries.size()
        await trigger.remove()
        assert [] == await house.emit_and_wait("after")
        await trigger.resume()
        assert 1 == len(await emitted.receipts(timeout=60))


async def test_events_are_listed_by_name_in_pages() -> None:
    """Oldest first, with status, submitter and triggers."""
    house = House()
    house.trigger()
    async with house.mp:
        for i in range(5):
            await house.emit_and_wait(f"e{i}")
            await house.mp.emit("other", {"i": i})
        first = await house.mp.events(NAME, limit=3)
        rest = await house.mp.events(NAME, after=first[-1].seq)
        assert [f"e{i}" for i in range(5)] == [one.id for one in [*first, *rest]]
        assert ("completed", "user", {"router"}) == (
            first[0].status,
            first[0].emitted_by,
            set(first[0].deliveries),
        )
        assert 10 == len(await house.mp.events())
