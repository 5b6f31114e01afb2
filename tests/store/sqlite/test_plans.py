"""No statement walks through a table, and what a claim costs does not grow with what waits."""

from pathlib import Path

import pytest

from millpond.core.control import Declare, Register
from millpond.core.lease import Leased, LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, fair_round_robin, fifo, priority
from millpond.core.task import Call, NewTask
from millpond.store.protocol import Batch
from millpond.store.sql.load_queries import load_statements
from millpond.store.sqlite import SqliteStore
from millpond.store.sqlite.connect import Connection, connect
from millpond.store.sqlite.dialect import SQLITE
from millpond.store.sqlite.migrate import migrate

SQL = SQLITE.sql
LOOK_AT_EVERYTHING = {
    *load_statements("millpond.store.sql", "consistency.sql", "repair.sql"),
    *("check_holding", "check_dead", "mend_1_bodies"),
}
"""What recounts the tables, or puts them right, looks at every row, and says so."""

MAY_SCAN = {
    "all_paused_units": "an index of those that are paused",
    "due_of_later": "counts what an index found, up to a limit",
    "audit_before": "one row of settings, and the halves that it makes itself",
    "meta": "there is one row",
    "save_meta": "there is one row",
    "pools": "asks for all of them",
    "queued_pools": "one look at all of them takes the place of an ask of each",
    "budgets": "asks for all of them",
    "workers": "asks for all of them",
    "worker_names": "asks for all of them",
    "open_runs": "asks for all of them; they have an index of their own",
    "drop_audit": "looks at the first rows, as many as it says",
    "owns_something": "the scan is of one constant",
    "holds_something": "the scan is of one constant",
    "any_unit": "the scan is of one constant",
    "holding_of_pool": "only where the pool's own count is damaged",
    "check_kinds": "looks at all of them, where one was met that is damaged",
    "mend_0_kinds": "looks at all of them, where one was found that is damaged",
}
MAY_SORT = {
    "parked_of_pool": "only a few: where more are parked, the queue is searched",
    "workers": "there are few",
    "held_units": "only those held back until the same moment",
    "held_in_pool": "as many as run",
    "held_ahead_by": "as many as one worker holds",
    "asked_to_stop": "as many as one worker holds",
    "held_per_unit": "as many as are held, once, when keys begin to matter",
    "lanes_with_work": "a question of people: as many as there are lanes",
    "holding_of_pool": "only where the pool's own count is damaged",
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Connection:
    """An empty database with every table."""
    path = tmp_path_factory.mktemp("plans") / "work.db"
    connection = connect(path)
    migrate(connection, path, allowed=True)
    return connection


def plan(file: Connection, statement: str) -> list[str]:
    """The steps SQLite would take."""
    values = (None,) * statement.count("?")
    return [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


STATEMENTS = [name for name in SQL if name not in LOOK_AT_EVERYTHING]


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_walks_through_a_table(name: str, file: Connection) -> None:
    """Every row is found by an index; the exceptions are few, and each has its reason."""
    steps = plan(file, SQL[name])
    scans = [step for step in steps if step.startswith("SCAN") and "VIRTUAL TABLE" not in step]
    sorts = [step for step in steps if "TEMP B-TREE" in step]
    assert not scans or name in MAY_SCAN, steps
    assert not sorts or name in MAY_SORT, steps


def test_the_exceptions_are_statements() -> None:
    """A statement that is gone takes its exception with it."""
    assert {*MAY_SCAN, *MAY_SORT} <= SQL.keys()


SPECS = {
    "plain": PoolSpec(name="p", max_concurrent=20, order=fifo()),
    "fair": PoolSpec(name="p", max_concurrent=20, order=fair_round_robin(), max_per_key=2),
    "limited": PoolSpec(name="p", max_concurrent=20, order=priority(), max_per_key=2),
    "lanes": PoolSpec(name="p", max_concurrent=20, order=fifo(), lanes=20),
}


async def with_a_queue(path: Path, spec: PoolSpec, length: int) -> SqliteStore:
    """A store with one pool in which so many tasks wait, of many keys."""
    store = SqliteStore(path, durability="normal", inline=True)
    await store.control(Declare(spec), now=0.0)
    await store.control(Register("w", 1e6, owner="me"), now=0.0)
    for start in range(1, length, 1000):
        tasks = [
            NewTask(id=n, pool="p", call=Call("f"), key=f"k{n % 500}", share=f"k{n % 500}")
            for n in range(start, start + 1000)
        ]
        await store.submit([Batch(tasks=tuple(tasks))], now=1.0)
    await store.close()
    return SqliteStore(path, durability="normal", inline=True)


class Cost:
    """How much work the database does, in its own steps, and how many statements it is asked."""

    def __init__(self, store: SqliteStore) -> None:
        self.steps = self.statements = 0
        assert store._inline is not None
        connection = store._inline.connection
        connection.set_progress_handler(self._step, 20)
        connection.set_trace_callback(self._statement)

    def _step(self) -> int:
        self.steps += 20
        return 0

    def _statement(self, _text: str) -> None:
        self.statements += 1


async def cost_of_ten_rounds(store: SqliteStore) -> Cost:
    """What it costs to settle twenty tasks and to claim the next, ten times."""
    ask = LeaseRequest(pool="p", worker="w", want=20)
    leased: tuple[Leased, ...] = (await store.lease(ask, now=2.0)).leased
    cost = Cost(store)
    for moment in range(10):
        ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in leased]
        answer = await store.settle(ends, then=ask, now=3.0 + moment)
        assert answer.lease is not None
        leased = answer.lease.leased
        assert len(leased) == 20
    return cost


async def cost_of_twenty_submits(store: SqliteStore) -> Cost:
    """What it costs to submit a task, twenty times."""
    await store.submit([Batch(tasks=(NewTask(id=1 << 40, pool="p", call=Call("f"), key="k0"),))])
    cost = Cost(store)
    for number in range(1, 21):
        new = NewTask(id=(1 << 40) + number, pool="p", call=Call("f"), key=f"k{number}")
        await store.submit([Batch(tasks=(new,))], now=2.0)
    return cost


async def cost_of_twenty_reports(store: SqliteStore) -> Cost:
    """What it costs to count a pool, as snapshots and the report of each minute do."""
    assert await store.view.pool("p", now=2.0) is not None
    cost = Cost(store)
    for _ in range(20):
        view = await store.view.pool("p", now=2.0)
        assert view is not None
        assert view.queued > 900
    return cost


@pytest.mark.rows("DE-03", "CX-09", "CX-T107")
@pytest.mark.parametrize("kind", SPECS)
async def test_a_claim_a_submit_and_a_report_cost_the_same_however_many_wait(
    kind: str, tmp_path: Path
) -> None:
    """The database does as much with thirty times as many tasks in the queue, or in a lane."""
    few = await with_a_queue(tmp_path / "few.db", SPECS[kind], 1_000)
    many = await with_a_queue(tmp_path / "many.db", SPECS[kind], 30_000)
    for cost_of in (cost_of_twenty_reports, cost_of_twenty_submits, cost_of_ten_rounds):
        small, large = await cost_of(few), await cost_of(many)
        assert large.statements <= small.statements * 1.25
        assert large.steps <= small.steps * 1.25 + 100
    await few.close()
    await many.close()


@pytest.mark.parametrize("kind", SPECS)
async def test_a_claim_is_a_few_statements_however_many_it_takes(kind: str, tmp_path: Path) -> None:
    """Reading and starting are done for all at once: not a statement for each task."""
    store = await with_a_queue(tmp_path / "work.db", SPECS[kind], 2_000)
    await store.lease(LeaseRequest(pool="p", worker="w", want=1), now=1.5)
    cost = Cost(store)
    leased = (await store.lease(LeaseRequest(pool="p", worker="w", want=19), now=2.0)).leased
    assert len(leased) == 19
    written_one_by_one = 0 if kind == "plain" else 3 * len(leased)
    assert cost.statements <= 20 + written_one_by_one
    await store.close()
