"""Rows edited by hand: the store sets them aside, counts and logs them, and frees their slots."""

import asyncio
import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from tests.pool.fleet import Fleet, until
from tests.store.sqlite.test_consistency import DAMAGES, make_some_of_everything
from verify.servers.schemas import Schema
from verify.servers.sqlite_files import InlineStore

from millpond import Context, Millpond, Pool, Retry, TaskFailed, fair_round_robin
from millpond.store.postgres.quoting import qualified
from millpond.store.sql.repair import find_damage
from millpond.store.sqlite import SqliteStore
from millpond.store.sqlite.dialect import SQLITE

OF_NO_WORK = {"keys", "keys too early", "settings", "records", "a gap", "time", "no runs"}
"""Damage to rows that no claim or settlement reads; only a check finds it."""


def edit(place: Path | Schema, statement: str) -> int:
    """Edit rows by hand; return how many."""
    if isinstance(place, Schema):
        return edit_on_a_server(place, statement)
    with closing(sqlite3.connect(place, isolation_level=None)) as file:
        file.execute("PRAGMA ignore_check_constraints=ON")
        return file.execute(statement).rowcount


def edit_on_a_server(schema: Schema, statement: str) -> int:
    """Edit rows there; a task that runs may be in the row of its lease, and gets its own first."""
    connection = schema.connection()
    execute = connection.driver.execute
    execute(qualified("SELECT millpond_unfold(NULL)", schema.address.schema).encode())
    count = execute(qualified(statement, schema.address.schema).encode()).rowcount
    newer = "UPDATE millpond_meta SET version = version + 1"
    execute(qualified(newer, schema.address.schema).encode())
    connection.close()
    return count


@pytest.mark.parametrize("name", [name for name in DAMAGES if name not in OF_NO_WORK])
async def test_a_repair_makes_damaged_tables_consistent(tmp_path: Path, name: str) -> None:
    """The first repair finds the damage and corrects it; a second one finds nothing."""
    path = tmp_path / "work.db"
    await make_some_of_everything(path)
    edit(path, DAMAGES[name])
    store = InlineStore(path)
    await store.view.pool("jobs")
    assert await store.repair() or name == "no meta"
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        assert [] == find_damage(file, SQLITE)
    assert () == await store.repair()
    await store.close()


async def test_a_repair_of_consistent_tables_changes_nothing(tmp_path: Path) -> None:
    """It delays no other client, and writes nothing."""
    path = tmp_path / "work.db"
    await make_some_of_everything(path)
    before = path.read_bytes()
    store = InlineStore(path)
    assert () == await store.repair()
    await store.close()
    assert before == path.read_bytes()


class App:
    """One process after another on a store, and what ran there."""

    def __init__(self, place: Path | Schema, **options: object) -> None:
        self.place = place
        self.fleet = Fleet(place)
        self.ran: list[tuple[int, int]] = []
        self._options = options

    def process(self, *, work: bool = True) -> Millpond:
        """One more process."""
        mp = self.fleet.millpond(work=work)
        pool: Pool = mp.pool("jobs", retry=Retry.constant(0.0), **self._options)  # type: ignore[arg-type]

        @pool.task(key=lambda number: f"k{number % 2}")
        async def job(ctx: Context, number: int) -> int:
            self.ran.append((number, ctx.attempt))
            await asyncio.sleep(1 if ctx.attempt > 1 or number < 10 else 3600)
            return number

        return mp


POOLS: list[dict[str, object]] = [
    {},
    {"max_per_key": 1, "max_concurrent": 3},
    {"lanes": 2},
    {"ordered": True, "max_concurrent": 2},
    {"queue": fair_round_robin("key"), "max_concurrent": 2},
]

# A server costs more time, and has one way for plain pools and one for all others.
ON_EACH = pytest.mark.parametrize(
    ("place", "options"),
    [*(("sqlite", pool) for pool in POOLS), *(("postgres", pool) for pool in POOLS[:2])],
    indirect=["place"],
    ids=str,
)


@pytest.mark.rows("CX-T87", "DE-08")
@ON_EACH
@pytest.mark.parametrize("broken", ["", "c1", "NULL"])
async def test_a_queue_entry_that_cannot_be_read_is_set_aside(
    place: Path | Schema,
    options: dict[str, object],
    broken: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its body is gone or gibberish: it ends failed: corrupt, and the others run in their order."""
    app = App(place, **options)
    async with app.process(work=False) as mp:
        handles = await mp.get_pool("jobs").submit_many(mp.tasks["job"].each(range(6)))
    lost = handles[2].id
    body = f"'\\x{broken}'" if isinstance(place, Schema) else f"x'{broken}'"
    statement = f"UPDATE millpond_task SET body = {body} WHERE id = {lost}"  # noqa: S608
    if broken == "NULL":
        statement = f"DELETE FROM millpond_task WHERE id = {lost}"  # noqa: S608
    assert 1 == edit(app.place, statement)
    with caplog.at_level(logging.ERROR):
        async with app.process() as mp:
            pool = mp.get_pool("jobs")
            await until(lambda: drained(pool), within=60)
            (info,) = await pool.tasks(status="failed")
            assert (lost, "corrupt") == (info.id, info.reason)
            snapshot = await pool.snapshot()
            assert (5, 1, 0) == (snapshot.completed, snapshot.failed, snapshot.running)
            with pytest.raises(TaskFailed, match="corrupt"):
                await (await mp.handle(lost))
    assert str(lost) in caplog.text
    assert [0, 1, 3, 4, 5] == sorted(number for number, _ in app.ran)


async def drained(pool: Pool) -> bool:
    """Return whether nothing waits or runs."""
    return 0 == await pool.size()


@pytest.mark.rows("CX-T64", "CX-T86")
@ON_EACH
async def test_a_lease_whose_task_is_gone_frees_its_slot(
    place: Path | Schema, options: dict[str, object]
) -> None:
    """The row of a running task was deleted: its slot and its key are free for the next."""
    app = App(place, **options)
    first = app.process()
    await first.__aenter__()
    await first.tasks["job"].submit(10)
    await asyncio.sleep(1)
    assert [(10, 1)] == app.ran
    await app.fleet.crash(first, found_dead=False)
    assert 1 == edit(app.place, "DELETE FROM millpond_live")
    async with app.process() as mp:
        pool = mp.get_pool("jobs")
        handles = await pool.submit_many(mp.tasks["job"].each([0, 1, 2]))
        assert [0, 1, 2] == [await handle for handle in handles]
        await until(lambda: drained(pool), within=60)
        (info,) = await pool.tasks(status="failed")
        assert "corrupt" == info.reason
        assert mp.counts.mended
    assert (10, 2) not in app.ran


@pytest.mark.rows("CX-T64")
@ON_EACH
async def test_a_lease_whose_worker_is_gone_is_lost(
    place: Path | Schema, options: dict[str, object]
) -> None:
    """No worker renews it and no worker row leads to it: maintenance finds it anyway."""
    app = App(place, **options)
    first = app.process()
    await first.__aenter__()
    handle = await first.tasks["job"].submit(11)
    await asyncio.sleep(1)
    await app.fleet.crash(first, found_dead=False)
    assert 1 == edit(app.place, "DELETE FROM millpond_worker")
    async with app.process() as mp:
        async with asyncio.timeout(60):
            assert 11 == await (await mp.handle(handle.id))
    assert [(11, 1), (11, 2)] == app.ran


@pytest.mark.rows("CX-T30")
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM millpond_meta",
        "DELETE FROM millpond_unit",
        "DELETE FROM millpond_group",
        "DELETE FROM millpond_seat",
        "DELETE FROM millpond_lane",
        "UPDATE millpond_live SET grp = NULL",
        "UPDATE millpond_pool SET live = 99, running = 7, claimed = 3, ready = 0, later = 5",
        """UPDATE millpond_pool SET holding = '{"unknown/1": 9}', running = 9, live = 9""",
    ],
)
@pytest.mark.parametrize(
    ("place", "options"),
    [*(("sqlite", pool) for pool in POOLS[1:3] + POOLS[4:]), ("postgres", POOLS[1])],
    indirect=["place"],
    ids=str,
)
async def test_missing_state_is_made_again(
    place: Path | Schema, options: dict[str, object], statement: str
) -> None:
    """Whatever can be counted or found again is: every task runs once, and the pool goes on."""
    app = App(place, **options)
    async with app.process(work=False) as mp:
        calls = [mp.tasks["job"].bind(number) for number in range(6)]
        calls[3] = calls[3].options(delay=20.0)
        handles = await mp.get_pool("jobs").submit_many(calls)
    edit(app.place, statement)
    async with app.process() as mp:
        pool = mp.get_pool("jobs")
        await until(lambda: drained(pool), within=120)
        assert ["completed"] * 6 == await mp.status([handle.id for handle in handles])
        assert 7 == await (await mp.tasks["job"].submit(7))
    assert [(number, 1) for number in (0, 1, 2, 3, 4, 5, 7)] == sorted(app.ran)


def test_a_process_that_ends_does_not_wait_for_a_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair may read a large file or wait for a lock; the process ends meanwhile."""
    begun, over = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> list[str]:
        begun.set()
        over.wait()
        return []

    monkeypatch.setattr("millpond.store.sql.store.find_damage", slow)

    async def leave() -> None:
        store = await SqliteStore.open(tmp_path / "work.db")
        mending = asyncio.create_task(store.repair())
        assert await asyncio.to_thread(begun.wait, 30)
        mending.cancel()
        await asyncio.gather(mending, return_exceptions=True)
        await store.close()

    asyncio.run(leave())
    assert not over.is_set()
    over.set()
