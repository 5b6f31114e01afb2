"""Verbs that share a transaction do what they would have done in one each."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from millpond.core.control import Cancel, Declare, Redrive, Register
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Status
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, NewTask
from millpond.errors import MillpondError
from millpond.store.protocol import Batch, Store
from millpond.store.sql.transactions import Transactor
from millpond.store.sql.unit_of_work import SqlTables
from millpond.store.sqlite import SqliteStore
from millpond.store.sqlite.consistency import check_tables
from millpond.testing.simulation.history import Raised, Verb, carry_out, trace
from millpond.testing.simulation.seeded import memory_store, simulate_on
from millpond.testing.simulation.trace_model import Step

T = TypeVar("T")


class Together(SqliteStore):
    """Commits after every few verbs, as a writer does that many wait for."""

    def __init__(self, path: Path, *, verbs_each: int) -> None:
        super().__init__(path, durability="normal", inline=True)
        self._verbs_each = verbs_each
        self._done = 0
        self._working_on: SqlTables | None = None

    async def _do(self, job: Callable[[SqlTables], T]) -> T:
        if self._working_on is None:
            self._working_on = self.writing.begin()
        try:
            return job(self._working_on)
        finally:
            self._done += 1
            if self._done % self._verbs_each == 0:
                self.commit()

    @property
    def writing(self) -> Transactor[SqlTables, sqlite3.Connection]:
        """What begins and commits."""
        assert self._inline is not None
        return self._inline

    def commit(self) -> list[str]:
        """Commit the transaction; return the inconsistencies between the tables."""
        unit, self._working_on = self._working_on, None
        if unit is not None:
            self.writing.commit(unit)
        return check_tables(self.writing.connection)


async def answers(store: Store, history: list[Verb]) -> list[Step]:
    """What a store answers to each verb of a history."""
    steps = []
    for verb in history:
        try:
            answer = await carry_out(store, verb)
        except MillpondError as error:
            answer = Raised(error.code)
        steps.append(
            Step(verb=verb.name, asked=verb.asked, answer=answer, records=(), now=verb.now)
        )
    return steps


@pytest.mark.parametrize("seed", range(20, 30))
@pytest.mark.parametrize("verbs_each", [2, 7])
async def test_verbs_in_one_transaction_do_what_they_do_in_many(
    seed: int, verbs_each: int, tmp_path: Path
) -> None:
    """Answers, audit and tables are the same, whenever it is committed."""
    lived = await simulate_on(seed, memory_store(), steps=120)
    memory, store = memory_store(), Together(tmp_path / "work.db", verbs_each=verbs_each)
    try:
        expected = trace(await answers(memory, lived.history))
        assert trace(await answers(store, lived.history)) == expected
        assert store.commit() == []
        page = await memory.view.audit(after=0, limit=1_000_000)
        assert (await store.view.audit(after=0, limit=1_000_000)).records == page.records
    finally:
        await store.close()


async def ended_task(store: Together) -> None:
    """Let a pool have one task, which was cancelled, and everything be committed."""
    await store.control(Declare(PoolSpec(name="p", max_concurrent=9)), now=0.0)
    await store.control(Register("w", 1e6, owner="me"), now=0.0)
    await store.submit([Batch(tasks=(NewTask(id=1, pool="p", call=Call("f")),))], now=1.0)
    await store.control(Cancel((1,)), now=1.0)
    store.commit()
    await store.control(Redrive((1,)), now=2.0)


async def test_redriven_and_started_in_one_transaction(tmp_path: Path) -> None:
    """A task that came back from the ended and started at once is live, and only that."""
    store = Together(tmp_path / "work.db", verbs_each=100)
    await ended_task(store)
    assert (await store.lease(LeaseRequest(pool="p", worker="w", want=1), now=3.0)).leased
    assert store.commit() == []
    task = await store.view.task(1)
    assert task is not None
    assert (task.status, task.seq) == (Status.RUNNING, 2)
    await store.close()


async def test_redriven_and_ended_in_one_transaction(tmp_path: Path) -> None:
    """A task that was redriven and ended again is stored with its last end."""
    store = Together(tmp_path / "work.db", verbs_each=100)
    await ended_task(store)
    await store.control(Cancel((1,)), now=3.0)
    assert store.commit() == []
    task = await store.view.task(1)
    assert task is not None
    assert (task.status, task.seq, task.finished_at) == (Status.CANCELLED, 2, 3.0)
    await store.close()
