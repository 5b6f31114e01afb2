"""Faults where several share one transaction, where a file is opened, and where it is only read."""

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from tests.store.sqlite.scenes import NOW, Stage, rows_of
from tests.store.sqlite.test_fault_loops import WAYS
from tests.store.sqlite.test_fault_loops import stage as stage
from verify.servers.sqlite_faults import Plan
from verify.servers.sqlite_files import fresh_file

from millpond.errors import OutcomeUnknown, StoreError, StoreFailing
from millpond.store.sqlite import SqliteStore
from millpond.store.sqlite.connect import begin, connect, dispose
from millpond.store.sqlite.consistency import check_tables
from millpond.testing.conformance.lab import WORKER, Lab

FOR_LONG = [(how, name) for how, name in WAYS if name != "SQLITE_BUSY"]
POOLS = ("plain", "fair", "lanes", "slow")


def stored(path: Path) -> set[int]:
    """The ids of all tasks in the file, which must fit together."""
    connection = connect(path)
    try:
        assert [] == check_tables(connection)
        return {task for _, task, _ in rows_of(connection)["millpond_task"]}
    finally:
        connection.close()


def clear(error: StoreError) -> None:
    """Object to an error that says no more than that something went wrong."""
    assert error.code != StoreError.code, repr(error)


@pytest.mark.rows("HN-21")
@pytest.mark.parametrize("lasts", [1, 4])
@pytest.mark.real_loop
async def test_each_job_of_a_group_gets_its_own_answer(stage: Stage, lasts: int) -> None:
    """A task with an answer is stored, one with an error is not; all may be submitted again."""
    ways = itertools.cycle(WAYS)
    unheard = 0
    for number in itertools.count(1, 3):
        path, plan = stage.fresh(), Plan()
        store = SqliteStore(path, durability="normal", factory=plan.factory)
        lab = stage.lab(store)
        tasks = [lab.new(pool=pool, key="k", share="k") for pool in POOLS for _ in range(2)]
        how, name = next(ways)
        plan.arm(number, how=how, name=name, times=lasts)
        answers = await asyncio.gather(*map(lab.submit, tasks), return_exceptions=True)
        failed = plan.failed
        plan.disarm()
        found = stored(path)
        about = f"{number} {how} {name} {failed} {answers}"
        for task, answer in zip(tasks, answers, strict=True):
            if isinstance(answer, OutcomeUnknown):
                unheard += 1
            elif isinstance(answer, StoreError):
                assert task.id not in found, about
                unheard += 1
            else:
                assert not isinstance(answer, BaseException), about
                assert task.id in found, about
        await asyncio.gather(*map(lab.submit, tasks))
        await store.close()
        assert {task.id for task in tasks} <= stored(path), about
        if not failed:
            break
    assert unheard, "not one of the faults was heard of"


@pytest.mark.rows("TRAP-10")
def test_an_opening_that_fails_can_be_done_again() -> None:
    """A file that is made, and its tables, are there or not; nothing is in between."""
    ways = itertools.cycle(itertools.product(FOR_LONG, (1, 1000)))
    for number in itertools.count(1):
        (how, name), lasts = next(ways)
        with fresh_file() as path:
            plan = Plan()
            plan.arm(number, how=how, name=name, times=lasts)
            try:
                store = SqliteStore(path, inline=True, factory=plan.factory)
                asyncio.run(store.close())
            except StoreError as error:
                clear(error)
            failed = plan.failed
            again = SqliteStore(path, inline=True)
            assert [] == again._reader.ask(check_tables)
            asyncio.run(again.close())
        if not failed:
            break


async def test_a_question_that_fails_is_answered_or_an_error(stage: Stage) -> None:
    """Never with half of what there is; and the next one is answered."""
    store = SqliteStore(stage.fresh(), inline=True, factory=(plan := Plan()).factory)
    task, view = stage.world.plain[0].fence.task, store.view
    questions: list[Any] = [
        lambda: view.task(task),
        lambda: view.tasks("fair"),
        lambda: view.pool("fair", now=NOW),
        lambda: view.lanes("lanes"),
        lambda: view.status([task, 1]),
        lambda: view.run(stage.world.run),
        view.workers,
        lambda: view.due(now=NOW),
        lambda: view.why(task, now=NOW),
        view.audit,
    ]
    ways = itertools.cycle(itertools.product(FOR_LONG, (1, 1000)))
    for ask in questions:
        right = await ask()
        for number in itertools.count(1):
            (how, name), lasts = next(ways)
            plan.arm(number, how=how, name=name, times=lasts)
            try:
                assert right == await ask()
            except StoreError as error:
                clear(error)
            failed = plan.failed
            plan.disarm()
            if not failed:
                break
    await store.close()


def test_a_renewal_is_tried_again(stage: Stage) -> None:
    """With a new connection: a lease is worth it."""
    plan = Plan()
    store = SqliteStore(stage.fresh(), durability="normal", inline=True, factory=plan.factory)
    renewer = store.renewer()
    for number in itertools.count(1):
        plan.arm(number)
        try:
            assert renewer.renew(WORKER, 30.0).alive
        except OutcomeUnknown:
            assert ["COMMIT"] == plan.failed
        if not plan.failed:
            break
    plan.arm(1, times=1000)
    with pytest.raises(StoreFailing):
        renewer.renew(WORKER, 30.0)
    plan.disarm()
    assert renewer.renew(WORKER, 30.0).alive
    renewer.close()
    asyncio.run(store.close())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.real_loop
async def test_a_storm_of_faults_loses_nothing(seed: int) -> None:
    """Many verbs at once, any of which may fail in any way, and be asked again."""
    dice = random.Random(seed)
    with fresh_file() as path:
        store = SqliteStore(path, durability="normal", factory=(plan := Plan()).factory)
        lab = await Lab.around(store)
        await lab.declare("pool", max_concurrent=50, max_per_key=9)
        plan.arm_at_random(0.03, seed)
        new = [lab.new(key=dice.choice("abc")) for _ in range(150)]
        answers = await asyncio.gather(*map(lab.submit, new), return_exceptions=True)
        plan.disarm()
        assert all(isinstance(one, StoreError) for one in answers if isinstance(one, BaseException))
        acknowledged = {
            task.id
            for task, one in zip(new, answers, strict=True)
            if not isinstance(one, BaseException)
        }
        unknown = {
            task.id
            for task, one in zip(new, answers, strict=True)
            if isinstance(one, OutcomeUnknown)
        }
        assert acknowledged <= stored(path) <= acknowledged | unknown
        await store.close()


def test_a_broken_connection_does_not_block_other_writers(stage: Stage) -> None:
    """Though a cursor of it lives on, as it does in the traceback of the call that failed."""
    path = stage.fresh()
    broken, other = connect(path), connect(path)
    broken.execute("BEGIN IMMEDIATE")
    broken.execute("UPDATE millpond_meta SET latest = 9e9")
    cursor = broken.execute("SELECT * FROM millpond_task")
    cursor.fetchone()
    dispose(broken, path)
    begin(other, path, patience=0.5)
    (latest,) = other.execute("SELECT latest FROM millpond_meta").fetchone()
    assert latest < 9e9
    other.close()
