"""Triggers in a fleet: processes that declare different triggers, and processes that die."""

import asyncio
from typing import Any

import pytest
from tests.pool.fleet import Cable, Fleet

from millpond import Event, Millpond
from millpond.pool.internals import internals_of

NAME = "order.placed"
VERBS = ("submit", "lease", "settle", "control")


class Member:
    """One process of a fleet: some triggers, and a task that returns which process ran it."""

    def __init__(self, fleet: Fleet, *triggers: str, work: bool = True, pool: bool = True) -> None:
        self.fleet = fleet
        self.mp: Millpond = fleet.millpond(work=work)
        self.ran: list[tuple[str, str]] = []
        if pool:
            self.mp.pool("work", max_concurrent=4)

        @self.mp.task(name="note")
        async def note(event: Event, trigger: str) -> None:
            self.ran.append((trigger, event.id))

        for name in triggers:
            self.mp.trigger(
                name,
                on=NAME,
                into="work",
                make=lambda event, name=name: note.bind(event, name),  # type: ignore[misc]
            )

    async def __aenter__(self) -> Millpond:
        return await self.mp.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        if self.mp.is_open:
            await self.mp.__aexit__(*error)  # type: ignore[arg-type]


async def test_a_trigger_receives_events_emitted_by_every_process() -> None:
    """Any process may emit or dispatch; a process that declared the trigger delivers."""
    fleet = Fleet()
    web = Member(fleet, work=False, pool=False)
    left, right = Member(fleet, "left"), Member(fleet, "right", "both")
    async with left, right, web as emitter:
        for i in range(3):
            receipts = await (await emitter.emit(NAME, event_id=f"e{i}")).receipts(timeout=600)
            assert ["both", "left", "right"] == [one.trigger for one in receipts]
            assert {"submitted"} == {one.outcome for one in receipts}
        handles = await (await emitter.emit(NAME, event_id="e0")).handles(timeout=600)
        assert [None] * 3 == [await one for one in handles]
        await left.mp.get_pool("work").drain()
    names = ("left", "right", "both")
    assert sorted((n, f"e{i}") for n in names for i in range(3)) == sorted(left.ran + right.ran)


async def test_a_trigger_without_processes_gets_its_events_when_one_is_back() -> None:
    """The stored trigger is dispatched to; its deliveries wait for a process with its code."""
    fleet = Fleet()
    async with Member(fleet, "mine"):
        pass
    async with Member(fleet, "other") as other:
        emitted = await other.emit(NAME, event_id="e1")
        with pytest.raises(TimeoutError):
            await emitted.receipts(timeout=30)
        back = Member(fleet, "mine")
        async with back:
            mine, _ = await emitted.receipts(timeout=600)
            assert ("mine", "submitted") == (mine.trigger, mine.outcome)
            await other.get_pool("work").drain()


async def test_a_trigger_declared_before_an_emit_sees_the_event() -> None:
    """Also when an older process without this trigger dispatches."""
    fleet = Fleet()
    async with Member(fleet, "old") as old:
        assert 1 == len(await (await old.emit(NAME)).receipts(timeout=600))
        async with Member(fleet, "new", work=False):
            emitted = await old.emit(NAME)
            async with Member(fleet, "new"):
                assert 2 == len(await emitted.receipts(timeout=600))
                await old.get_pool("work").drain()


async def test_a_pool_that_another_process_declared_is_submitted_to() -> None:
    """The process with the trigger needs the name of the pool, not its tasks."""
    fleet = Fleet()
    worker = Member(fleet)
    async with worker, Member(fleet, "router", pool=False) as router:
        (receipt,) = await (await router.emit(NAME, event_id="e1")).receipts(timeout=600)
        assert ("submitted", "work") == (receipt.outcome, receipt.pool)
        await worker.mp.get_pool("work").drain()
    assert [("router", "e1")] == worker.ran


class Fragile(Cable):
    """A connection to the store that breaks for good before or after one of its verbs."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.left, self.before = 0, False
        self.died = asyncio.get_running_loop().create_future()

    def __getattr__(self, verb: str) -> Any:
        send = super().__getattr__(verb)
        if verb not in VERBS:
            return send

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            dies = self.left == 0
            answer = None if dies and self.before else await send(*args, **kwargs)
            if dies:
                self.cut = True
                self.died.set_result(None)
            if self.cut:
                await asyncio.get_running_loop().create_future()
            return answer

        return counted


async def dies(fleet: Fleet, number: int, *, before: bool) -> bool:
    """Let a process die at one of its verbs: not done, or done and not answered.

    Return whether it did, and had not come to its end before.
    """
    cable = Fragile(fleet.store)
    member = Member(fleet, "a", "b")
    internals_of(member.mp).owner.make_store = lambda: cable
    fleet.cables[member.mp] = cable
    async with member as mp:
        cable.left, cable.before = number, before
        life = asyncio.ensure_future(emit_all(mp))
        await asyncio.wait({life, cable.died}, return_when=asyncio.FIRST_COMPLETED)
        if not cable.died.done():
            cable.left = 0
            return False
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await fleet.crash(mp)
        return True


async def emit_all(mp: Millpond) -> list[int]:
    """Emit three events, wait until their tasks have ended, and return those tasks."""
    emitted = [await mp.emit(NAME, event_id=f"e{i}") for i in range(3)]
    found = [one for each in emitted for one in await each.receipts(timeout=600)]
    await mp.get_pool("work").drain(timeout=600)
    return [one.task_id or 0 for one in found]


@pytest.mark.memory  # each fleet has a store of its own, and a server has not room for all
@pytest.mark.parametrize("before", [True, False])
async def test_a_crash_at_any_verb_leaves_one_task_per_event_and_trigger(
    before: bool,
) -> None:
    """A process is killed at each of its verbs in turn; another process finishes its work."""
    number = 1
    died = True
    while died:
        fleet = Fleet()
        died = await dies(fleet, number, before=before)
        async with Member(fleet, "b", "a") as mp:
            found = await emit_all(mp)
            tasks = [one.id for one in await mp.get_pool("work").tasks()]
            assert sorted(found) == sorted(tasks), number
            assert 6 == len(set(tasks)), number
        number += 1
    assert number > 8
