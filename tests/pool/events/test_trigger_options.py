"""The options of a trigger, and the tasks that it makes of an event."""

import asyncio
from typing import Any

import pytest
from tests.pool.trigger_fixtures import NAME, Hook, House

from millpond import (
    BoundCall,
    Event,
    Keep,
    Millpond,
    bounded,
    fair_round_robin,
)
from millpond.core.event import EVENTS, integer_at, text_at, value_at
from millpond.errors import (
    BadPayload,
    ConfigError,
    DuplicateName,
    UnknownTrigger,
)
from millpond.pool.internals import internals_of


def test_a_path_reads_a_value_of_the_event() -> None:
    """It reads dicts and lists, and numbers in any notation; no value that is not an option."""
    event = Event(
        "a", "e", {"n": {"x": [1, {"y": "2.0"}]}, "t": True, "big": 1e300, "s": "", "f": 2.5}
    )
    assert "2.0" == value_at(event, "payload.n.x.1.y") == value_at(event, "n.x.1.y")
    assert [None] * 4 == [value_at(event, p) for p in ("n.x.7", "n.x.y", "n.x.-1", "payload.n.z.q")]
    assert (2, 1) == (integer_at(event, "n.x.1.y"), integer_at(event, "n.x.0"))
    assert [None] * 5 == [integer_at(event, p) for p in ("t", "big", "s", "n", "name")]
    assert integer_at(event, "n.x.0", least=2) is None
    assert ("e", "a", "1", "2.5") == tuple(text_at(event, p) for p in ("id", "name", "n.x.0", "f"))
    assert [None] * 4 == [text_at(event, p) for p in ("t", "s", "n", "q")]


async def test_key_from_is_the_fairness_key_of_the_task() -> None:
    """Sources take turns in a pool that is fair to them."""
    house = House(max_concurrent=1, queue=fair_round_robin("source"))
    house.trigger(key_from="source", max_concurrent=1)
    async with house.mp:
        await house.pool.pause()
        for source in "aaab":
            await house.emit_and_wait(source=source)
        await house.pool.resume()
        await house.pool.drain()
    assert ["a", "b", "a", "a"] == [hook.source for hook in house.got]


def test_events_are_not_kept_for_longer_than_keys() -> None:
    """A replay after the key is gone would make a second task: so Keep refuses or shortens it."""
    with pytest.raises(ConfigError, match="must not exceed"):
        Keep(events=11, keys=10)
    assert (10, 7 * 86_400) == (Keep(keys=10).events, Keep().events)


async def test_one_full_key_does_not_hold_up_other_keys() -> None:
    """With a bound per key, only the events of the full key wait."""
    house = House(max_concurrent=1, backpressure=bounded(9, per_key=1))
    house.trigger(key_from="source")
    async with house.mp:
        await house.pool.pause()
        await house.emit_and_wait(source="a")
        full = await house.mp.emit(NAME, Hook("a"))
        (other,) = await house.emit_and_wait(source="b")
        assert "submitted" == other.outcome
        with pytest.raises(TimeoutError):
            await full.receipts(timeout=5)
        await house.pool.resume()
        (receipt,) = await full.receipts(timeout=60)
        assert "submitted" == receipt.outcome


async def test_make_returns_a_call_a_function_or_none() -> None:
    """The call keeps its options, but its idempotency key is that of the event."""
    house = House()
    seen: list[str] = []

    def make(event: Event) -> Any:
        if event.payload["source"] == "skip":
            return None
        if event.payload["source"] == "closure":
            return lambda: seen.append(event.id)
        return house.handle.bind(Hook("made")).options(priority=9, idempotency_key="mine")

    house.trigger(make=make)

    async def later(event: Event) -> BoundCall[str]:
        await asyncio.sleep(1)
        return house.handle.bind(Hook(event.id))

    house.trigger("later", make=later)
    async with house.mp:
        made_later, made = await house.emit_and_wait("e1")
        handle = await house.mp.handle(made.task_id or 0)
        assert (9, "trigger:router") == (handle.priority, handle.submitted_by)
        record = await internals_of(house.mp).runtime.view.task(handle.id)
        assert record is not None
        assert f"router#{NAME}#e1" == record.new.idempotency_key
        assert "submitted" == made_later.outcome
        _, skipped = await house.emit_and_wait("e2", source="skip")
        assert ("skipped", None) == (skipped.outcome, skipped.task_id)
        _, closure = await house.emit_and_wait("e3", source="closure")
        assert "submitted" == closure.outcome
        await house.pool.drain()
    assert ["e3"] == seen
    assert {"made", "e1", "e2", "e3"} == {hook.source for hook in house.got}


async def test_a_task_gets_the_event_if_it_takes_one() -> None:
    """The annotation decides; a task without parameters gets nothing."""
    house = House()
    seen: list[Any] = []

    @house.mp.task
    async def note(event: Event, more: int = 1) -> None:
        seen.append((event.name, event.id, event.payload, more))

    @house.mp.task
    async def bare() -> None:
        seen.append("bare")

    house.trigger("a", task=note)
    house.trigger("b", task=bare)
    async with house.mp:
        await house.emit_and_wait("e1")
        await house.pool.drain()
    assert (NAME, "e1", {"source": "acme", "urgency": "0"}, 1) in seen
    assert "bare" in seen


async def test_a_payload_that_does_not_fit_becomes_a_dead_letter() -> None:
    """At once, and the reason names the parameter."""
    house = House()
    trigger = house.trigger()
    async with house.mp:
        emitted = await house.mp.emit(NAME, {"source": 7})
        (receipt,) = await emitted.receipts(timeout=60)
        assert "failed" == receipt.outcome
        assert "is not what task 'handle' takes as 'hook'" in (receipt.reason or "")
        assert 1 == (await trigger.deliveries.tasks())[0].attempt
        with pytest.raises(BadPayload, match="cannot be stored"):
            await house.mp.emit(NAME, object())


async def test_system_pools_are_not_listed_and_their_names_are_reserved() -> None:
    """A user's pool cannot have such a name."""
    house = House()
    house.trigger()
    async with house.mp:
        await house.emit_and_wait()
        assert ["work"] == [pool.name for pool in house.mp.pools()]
        for name in (EVENTS, "~trigger/x", "~"):
            with pytest.raises(ConfigError, match="letter or digit first"):
                house.mp.pool(name)


async def test_a_worker_of_some_pools_also_runs_triggers() -> None:
    """Deliveries need no slot: a worker whose slots are all taken still delivers."""
    mp = Millpond(work=False)
    pool, other = mp.pool("work"), mp.pool("other")
    gate = asyncio.Event()

    @pool.task
    async def wait() -> None:
        await gate.wait()

    @other.task
    async def note(payload: int) -> int:
        return payload

    mp.trigger("router", on=NAME, task=note)
    async with mp, mp.worker([pool], concurrency=1):
        await wait.submit()
        emitted = await mp.emit(NAME, 7)
        (receipt,) = await emitted.receipts(timeout=60)
        assert "submitted" == receipt.outcome
        assert ["queued"] == await mp.status([receipt.task_id or 0])
        gate.set()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"on": ()}, "must name an event"),
        ({"on": "a b"}, "may hold only"),
        ({"task": None}, "must be given"),
        ({"make": print, "task": "both"}, "and not both"),
        ({"priority_from": "payload..x"}, "must be a path"),
        ({"idempotency_key": "k"}, "is set by the trigger"),
        ({"into": None, "task": None, "make": print}, "which pool"),
        ({"weight": 0}, "at least 1"),
        ({"into": Millpond().pool("work")}, "another Millpond"),
    ],
)
def test_a_bad_trigger_is_refused_where_it_is_declared(wrong: dict[str, Any], words: str) -> None:
    """The error names the option, and no trigger is declared."""
    house = House()
    given: dict[str, Any] = {"on": NAME, "into": house.pool, "task": house.handle, **wrong}
    with pytest.raises(ConfigError, match=words):
        house.mp.trigger("t", **given)
    assert [] == house.mp.triggers()


def test_a_trigger_name_is_unique_and_short_and_get_trigger_finds_it() -> None:
    """A second trigger of the name is refused."""
    house = House()
    trigger = house.trigger()
    assert trigger is house.mp.get_trigger("router")
    assert [trigger] == house.mp.triggers()
    with pytest.raises(DuplicateName, match="get_trigger"):
        house.trigger()
    with pytest.raises(UnknownTrigger, match="there are: router"):
        house.mp.get_trigger("other")
    with pytest.raises(ConfigError, match="at most"):
        house.trigger("x" * 125)


@pytest.mark.parametrize("event_id", ["", "x" * 513, "\u65e5" * 171, "\ud800", "a\0b", 7])
async def test_a_bad_event_id_is_refused(event_id: Any) -> None:
    """It is refused before anything is stored."""
    house = House()
    async with house.mp:
        with pytest.raises(ConfigError, match="event_id"):
            await house.mp.emit(NAME, event_id=event_id)


async def test_the_largest_event_that_can_be_emitted_is_delivered() -> None:
    """The limit of a delivery leaves room for its envelope."""
    mp = Millpond(max_payload=2000)
    pool = mp.pool("work")

    @pool.task
    async def note(text: str) -> int:
        return len(text)

    mp.trigger("router", on=NAME, task=note)
    async with mp:
        emitted = await mp.emit(NAME, "x" * 1900, event_id="e")
        (handle,) = await emitted.handles(timeout=60)
        assert 1900 == await handle


@pytest.mark.real_loop
async def test_threads_emit_and_wait() -> None:
    """mp.sync has receipts, handles and control."""
    house = House()
    house.trigger()
    async with house.mp:

        def work() -> list[str]:
            sync = house.mp.sync
            emitted = sync.emit(NAME, Hook("acme"), event_id="e1")
            (handle,) = emitted.handles(timeout=30)
            assert sync.emit(NAME, Hook("acme"), event_id="e1").duplicate
            (again,) = sync.replay(NAME, "e1").receipts(timeout=30)
            assert handle.id == again.task_id
            trigger = sync.get_trigger("router")
            trigger.pause()
            trigger.resume()
            assert ([], 0) == (trigger.dead_letters(), trigger.redrive())
            assert ["e1", "e1"] == [one.id for one in sync.events(NAME)]
            return [handle.get(timeout=30)]

        assert ["acme"] == await asyncio.to_thread(work)
