"""The dead are buried at once: whoever sees a free lock file gives their work to others."""

import time
from typing import Any

import pytest
from tests.runtime.durable import Harbour, Locks, kill, revive
from tests.waiting import eventually, never_ends

from millpond import Millpond, TaskFailed
from millpond.core.control import DeclareDead, Register
from millpond.pool.internals import internals_of
from millpond.runtime.fleet.dead_workers import AGAIN_AFTER

pytestmark = pytest.mark.real_loop


def process(harbour: Harbour, *, work: bool | None = True) -> Millpond:
    """A process with one pool and one task, which the first to run it never ends."""
    mp = harbour.millpond(work=work, lease=30.0)
    pool = mp.pool("work", max_concurrent=5)

    @pool.task(name="job")
    async def job() -> str:
        if not harbour.log or "ran" not in harbour.log:
            harbour.log.append("ran")
            await never_ends()
        return internals_of(mp).runtime.owner

    return mp


async def test_what_a_killed_process_ran_is_run_by_another_at_once() -> None:
    """Its lease has half a minute to go: the free lock is proof enough."""
    harbour = Harbour()
    dead, alive, client = process(harbour), process(harbour), process(harbour, work=False)
    async with client, dead:
        handle = await client.tasks["job"].submit()
        await eventually(lambda: "ran" in harbour.log)
        owner = internals_of(dead).runtime.owner
        async with alive:
            began = time.monotonic()
            kill(harbour, dead)
            assert internals_of(alive).runtime.owner == await handle
            assert time.monotonic() - began < 1.0
            await eventually(lambda: f"forget {owner}" in harbour.log)
            assert 2 == (await handle.refresh()).attempt
            ship: Any = internals_of(alive).runtime.store
            assert [f"{owner}/1"] == [order.worker for order in ship.told(DeclareDead)]
            assert [] == [
                name for name in await internals_of(alive).runtime.view.workers() if owner in name
            ]
        revive(dead)


async def test_a_process_appears_before_its_first_worker_joins_and_leaves_at_the_end() -> None:
    """So a lock that nobody holds always means that its process is dead."""
    harbour = Harbour()
    mp = harbour.millpond()
    mp.pool("work")
    async with mp:
        assert [] == harbour.log
        ship, owner = internals_of(mp).runtime.store, internals_of(mp).runtime.owner

        def note(_verb: str, asked: Any) -> None:
            if isinstance(asked, Register):
                harbour.log.append("join")

        ship.before = note  # type: ignore[attr-defined]
        async with mp.worker():
            assert [f"appear {owner}", "join"] == harbour.log
        async with mp.worker():
            assert [f"appear {owner}", "join", "join"] == harbour.log
    assert f"leave {owner}" == harbour.log[-1]


async def test_a_closure_of_a_dead_process_is_found_failed_and_never_run_again() -> None:
    """Its code is gone with it: stale, not lost from sight."""
    harbour = Harbour()
    dead, alive = process(harbour, work=None), process(harbour)

    async def closure() -> None:
        await never_ends()

    async with dead, alive:
        handle = await dead.get_pool("work").submit(closure)
        await eventually(lambda: internals_of(dead).runtime.job_of(handle.id))
        kill(harbour, dead)
        seen = await alive.handle(handle.id)
        with pytest.raises(TaskFailed, match="stale"):
            await seen
        revive(dead)


async def test_who_could_not_be_buried_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """The store was away: the lock file stays until its workers are buried. It is said once."""
    harbour = Harbour()
    dead, alive = process(harbour), process(harbour)
    failures: list[Any] = []
    async with dead, alive:
        ship: Any = internals_of(alive).runtime.store
        owner = internals_of(dead).runtime.owner

        def fail_twice(_verb: str, asked: Any) -> None:
            if isinstance(asked, DeclareDead) and len(failures) < 2:
                failures.append(time.monotonic())
                raise ConnectionError("away")

        ship.before = fail_twice
        kill(harbour, dead)
        await eventually(lambda: f"forget {owner}" in harbour.log)
        assert failures[1] - failures[0] >= AGAIN_AFTER
        told = [one.message for one in caplog.records if "away" in one.message]
        assert ["cannot free the tasks of dead processes (away); trying again"] == told
        revive(dead)


async def test_whoever_cannot_look_goes_on_renewing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody thought of must not end the thread that leases depend on."""
    harbour = Harbour()
    mp = harbour.millpond(work=True, lease=0.9)
    mp.pool("work")
    looks: list[float] = []

    def broken(_: Locks) -> tuple[str, ...]:
        looks.append(time.monotonic())
        raise ValueError("no such lock")

    monkeypatch.setattr(Locks, "gone", broken)
    async with mp:
        ship: Any = internals_of(mp).runtime.store
        await eventually(lambda: ship.asked["renew"] > 3)
        assert len(looks) > 2
    assert 1 == sum("no such lock" in one.message for one in caplog.records)


async def test_with_nobody_gone_the_store_is_asked_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looking at lock files, four times a second, costs the store nothing."""
    harbour = Harbour()
    mp = process(harbour)
    looks: list[float] = []
    gone = Locks.gone

    def counted(locks: Locks) -> tuple[str, ...]:
        looks.append(time.monotonic())
        return gone(locks)

    monkeypatch.setattr(Locks, "gone", counted)
    async with mp:
        ship: Any = internals_of(mp).runtime.store
        await eventually(lambda: len(looks) >= 2)
        before = ship.asked.copy()
        await eventually(lambda: len(looks) >= 8)
        asked = ship.asked - before
        assert {"changed"} == set(asked)
        assert asked["changed"] <= 2
