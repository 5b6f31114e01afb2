"""Many verbs in one transaction leave what they would have left one by one."""

import asyncio
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from millpond.core import control as orders
from millpond.core.lifecycle import Status
from millpond.errors import MillpondError
from millpond.store.memory import MemoryStore
from millpond.store.protocol import Store
from millpond.store.sql.backlog import line
from millpond.store.sql.transactions import Transactor
from millpond.store.sql.unit_of_work import SqlTables
from millpond.store.sqlite import SqliteStore
from millpond.store.sqlite.consistency import check_tables
from millpond.testing.conformance.lab import Lab, completed, failed
from millpond.testing.simulation.history import Raised, Verb, carry_out
from millpond.testing.simulation.seeded import memory_store, simulate_on

T = TypeVar("T")

HINTS = ("drained", "ended", "next_at", "wakes")


class Grouping(SqliteStore):
    """Commits on request; until then all verbs share a transaction, as in a busy writer."""

    _begun: SqlTables | None = None

    async def _do(self, job: Callable[[SqlTables], T]) -> T:
        if self._begun is None:
            self._begun = self.writing.begin()
        return job(self._begun)

    @property
    def writing(self) -> Transactor[SqlTables, sqlite3.Connection]:
        """What begins and commits."""
        assert self._inline is not None
        return self._inline

    def commit(self, *, forget: bool = False) -> None:
        """Commit the transaction; with `forget` the next verb reads all rows again."""
        unit, self._begun = self._begun, None
        if unit is not None:
            self.writing.commit(unit)
        if forget:
            self._kept = None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Grouping]:
    """Give a store on a new file; its tables must be consistent at the end."""
    made = Grouping(tmp_path / "work.db", durability="normal", inline=True)
    yield made
    made.commit()
    wrong = check_tables(made.writing.connection)
    asyncio.run(made.close())
    assert [] == wrong


async def test_a_task_that_is_redriven_and_cancelled_is_kept_as_cancelled(store: Grouping) -> None:
    lab = await Lab.around(store)
    await lab.declare()
    task = await lab.put(attempts=1)
    await lab.settle(failed(await lab.one()))
    store.commit()
    await lab.control(orders.Redrive((task,)))
    await lab.control(orders.Cancel((task,)))
    store.commit(forget=True)

    assert Status.CANCELLED == await lab.status(task)


async def test_a_task_that_fails_and_is_redriven_is_queued_again(store: Grouping) -> None:
    lab = await Lab.around(store)
    await lab.declare()
    task = await lab.put(attempts=1)
    leased = await lab.one()
    store.commit()
    await lab.settle(failed(leased))
    await lab.control(orders.Redrive((task,)))
    store.commit(forget=True)

    assert Status.QUEUED == await lab.status(task)
    assert task == (await lab.one()).fence.task


async def test_a_task_that_ends_twice_is_kept_once(store: Grouping) -> None:
    lab = await Lab.around(store)
    await lab.declare()
    task = await lab.put(attempts=1)
    leased = await lab.one()
    store.commit()
    await lab.settle(failed(leased))
    await lab.control(orders.Redrive((task,)))
    await lab.settle(completed(await lab.one()))
    store.commit(forget=True)

    assert Status.COMPLETED == await lab.status(task)


async def answered(store: Store, verb: Verb) -> Any:
    """Return the answer of a verb as plain values, without what are mere hints."""
    try:
        answer = msgspec.to_builtins(await carry_out(store, verb))
    except MillpondError as error:
        return Raised(error.code)
    for part in (answer, answer.get("lease") or {}):
        for hint in HINTS:
            part.pop(hint, None)
    return answer


@pytest.mark.parametrize("seed", [13, 24, 131, 136, 419])
async def test_grouped_or_not_the_story_is_the_same(
    store: Grouping, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seeded history, in transactions of any length, over units of work kept now and then."""
    monkeypatch.setattr(line, "TRIM_AT", 3)
    dice, alone = random.Random(seed), MemoryStore(audit_limit=None)
    history = (await simulate_on(seed, memory_store())).history
    for verb in history:
        assert await answered(alone, verb) == await answered(store, verb), verb
        if dice.random() < 0.15:
            store.commit(forget=dice.random() < 0.2)
    store.commit(forget=True)

    page = await alone.view.audit(limit=1_000_000)
    assert page.records == (await store.view.audit(limit=1_000_000)).records
    for task in {record.task for record in page.records if record.task}:
        assert await alone.view.task(task) == await store.view.task(task)
