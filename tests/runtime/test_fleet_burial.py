"""Dead workers: a process that sees a free lock file declares its workers dead at once."""

import time
from typing import Any

import pytest
from tests.runtime.durable import Cluster, Locks, kill, revive
from tests.waiting import eventually, never_ends

from millpond import Millpond, TaskFailed
from millpond.core.control import DeclareDead, Register
from millpond.pool.internals import internals_of
from millpond.runtime.fleet.dead_workers import AGAIN_AFTER

pytestmark = pytest.mark.real_loop


def process(cluster: Cluster, *, work: bool | None = True) -> Millpond:
    """A process with one pool and one task; the first attempt never ends, the next ones do."""
    mp = cluster.millpond(work=work, lease=30.0)
    pool = mp.pool("work", max_concurrent=5)

    @pool.task(name="job")
    async def job() -> str:
        if not cluster.log or "ran" not in cluster.log:
            cluster.log.append("ran")
            await never_ends()
        return internals_of(mp).runtime.owner

    return mp


async def test_another_process_reruns_the_task_of_a_killed_process_at_once() -> None:
    """The lease has half a minute left; the free lock alone is proof of death."""
    cluster = Cluster()
    dead, alive, client = process(cluster), process(cluster), process(cluster, work=False)
    async with client, dead:
        handle = await client.tasks["job"].submit()
        await eventually(lambda: "ran" in cluster.log)
        owner = internals_of(dead).runtime.owner
        async with alive:
            began = time.monotonic()
            kill(cluster, dead)
            assert internals_of(alive).runtime.owner == await handle
            assert time.monotonic() - began < 1.0
            await eventually(lambda: f"forget {owner}" in cluster.log)
            assert 2 == (await handle.refresh()).attempt
            store: Any = internals_of(alive).runtime.store
            assert [f"{owner}/1"] == [order.worker for order in store.orders_of(DeclareDead)]
            assert [] == [
                name for name in await internals_of(alive).runtime.view.workers() if owner in name
            ]
        revive(dead)


async def test_a_process_locks_before_its_first_worker_registers_and_until_it_closes() -> None:
    """So a free lock always means that its process is dead."""
    cluster = Cluster()
    mp = cluster.millpond()
    mp.pool("work")
    async with mp:
        assert [] == cluster.log
        store, owner = internals_of(mp).runtime.store, internals_of(mp).runtime.owner

        def note(_verb: str, command: Any) -> None:
            if isinstance(command, Register):
                cluster.log.append("join")

        store.before = note  # type: ignore[attr-defined]
        async with mp.worker():
            assert [f"appear {owner}", "join"] == cluster.log
        async with mp.worker():
            assert [f"appear {owner}", "join", "join"] == cluster.log
    assert f"leave {owner}" == cluster.log[-1]


async def test_a_closure_of_a_dead_process_fails_as_stale_and_never_runs_again() -> None:
    """Its code died with the process: the task fails, and a handle elsewhere sees that."""
    cluster = Cluster()
    dead, alive = process(cluster, work=None), process(cluster)

    async def closure() -> None:
        await never_ends()

    async with dead, alive:
        handle = await dead.get_pool("work").submit(closure)
        await eventually(lambda: internals_of(dead).runtime.job_of(handle.id))
        kill(cluster, dead)
        seen = await alive.handle(handle.id)
        with pytest.raises(TaskFailed, match="stale"):
            await seen
        revive(dead)


async def test_declaring_dead_is_tried_again_after_a_store_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The lock file stays until its workers are declared dead. The log says it once."""
    cluster = Cluster()
    dead, alive = process(cluster), process(cluster)
    failures: list[Any] = []
    async with dead, alive:
        store: Any = internals_of(alive).runtime.store
        owner = internals_of(dead).runtime.owner

        def fail_twice(_verb: str, command: Any) -> None:
            if isinstance(command, DeclareDead) and len(failures) < 2:
                failures.append(time.monotonic())
                raise ConnectionError("away")

        store.before = fail_twice
        kill(cluster, dead)
        await eventually(lambda: f"forget {owner}" in cluster.log)
        assert failures[1] - failures[0] >= AGAIN_AFTER
        messages = [one.message for one in caplog.records if "away" in one.message]
        assert ["cannot free the tasks of dead processes (away); trying again"] == messages
        revive(dead)


async def test_an_error_from_reading_lock_files_does_not_stop_the_renewals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error does not end the thread that renews the leases."""
    cluster = Cluster()
    mp = cluster.millpond(work=True, lease=0.9)
    mp.pool("work")
    looks: list[float] = []

    def broken(_: Locks) -> tuple[str, ...]:
        looks.append(time.monotonic())
        raise ValueError("no such lock")

    monkeypatch.setattr(Locks, "gone", broken)
    async with mp:
        store: Any = internals_of(mp).runtime.store
        await eventually(lambda: store.calls["renew"] > 3)
        assert len(looks) > 2
    assert 1 == sum("no such lock" in one.message for one in caplog.records)


async def test_reading_the_lock_files_calls_the_store_only_when_a_process_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading lock files, four times a second, costs the store nothing."""
    cluster = Cluster()
    mp = process(cluster)
    looks: list[float] = []
    gone = Locks.gone

    def counted(locks: Locks) -> tuple[str, ...]:
        looks.append(time.monotonic())
        return gone(locks)

    monkeypatch.setattr(Locks, "gone", counted)
    async with mp:
        store: Any = internals_of(mp).runtime.store
        await eventually(lambda: len(looks) >= 2)
        before = store.calls.copy()
        await eventually(lambda: len(looks) >= 8)
        calls = store.calls - before
        assert {"changed"} == set(calls)
        assert calls["changed"] <= 2
