"""Recounting finds whatever does not fit, and a store that was only used has nothing to find."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection

import pytest

from millpond.core import control as orders
from millpond.core.rate import Rate
from millpond.core.run import NewRun
from millpond.core.spec import fair_round_robin
from millpond.core.task import Call
from millpond.store.sqlite import SqliteStore
from millpond.store.sqlite.connect import connect
from millpond.store.sqlite.consistency import check_tables
from millpond.testing.conformance.lab import Lab, completed

DAMAGES = {
    "a task more": "UPDATE millpond_pool SET live = live + 1",
    "one running less": "UPDATE millpond_pool SET running = running - 1 WHERE running > 0",
    "one claimed less": "UPDATE millpond_pool SET claimed = claimed - 1 WHERE claimed > 0",
    "fresh": "UPDATE millpond_pool SET fresh = fresh + 1",
    "ready": "UPDATE millpond_pool SET ready = ready + 1",
    "later": "UPDATE millpond_pool SET later = later + 1",
    "parked": "UPDATE millpond_pool SET parked = parked + 1",
    "parked apart": "UPDATE millpond_pool SET parked_apart = parked_apart + 1",
    "kept": "UPDATE millpond_pool SET kept = kept + 1",
    "resting": "UPDATE millpond_pool SET resting = resting + 1",
    "timers": "UPDATE millpond_pool SET unit_timers = unit_timers + 1",
    "fading": "UPDATE millpond_pool SET fading = fading + 1",
    "holding": """UPDATE millpond_pool SET holding = '{"unknown": 1}'""",
    "settings": "UPDATE millpond_pool SET spec = replace(spec, '4', '5')",
    "places": "UPDATE millpond_pool SET next_seq = 1",
    "another pool": "UPDATE millpond_live SET pool = pool + 1",
    "no queue": "UPDATE millpond_live SET grp = NULL WHERE grp = 0",
    "no body": "DELETE FROM millpond_task WHERE place IN (SELECT place FROM millpond_live)",
    "a body alone": "INSERT INTO millpond_task SELECT max(place) + 1, 7, body FROM millpond_task",
    "ended without a body": "DELETE FROM millpond_task "
    "WHERE place IN (SELECT place FROM millpond_ended)",
    "live and ended": "UPDATE millpond_ended SET place = (SELECT max(place) FROM millpond_live) "
    "WHERE place = (SELECT min(place) FROM millpond_ended)",
    "removed": "INSERT INTO millpond_removed SELECT 1, min(id) FROM millpond_task",
    "listed": "UPDATE millpond_live SET listed = 1 WHERE fresh = 0",
    "another line": "UPDATE millpond_live SET grp = 77 WHERE grp > 0 AND owner IS NULL",
    "groups": "UPDATE millpond_group SET tasks = tasks + 1",
    "no group": "DELETE FROM millpond_group",
    "a group of others": "UPDATE millpond_group SET owner = 'x' || owner",
    "heads": "UPDATE millpond_group SET seq = seq + 1",
    "units": "UPDATE millpond_unit SET running = running + 1",
    "no units": "DELETE FROM millpond_unit",
    "groups of units": "UPDATE millpond_unit SET groups = groups + 1",
    "paused and ready": "UPDATE millpond_unit SET paused = 1",
    "no seats": "DELETE FROM millpond_seat",
    "seats for nothing": "UPDATE millpond_group SET ready = 0",
    "no lanes": "DELETE FROM millpond_lane",
    "no workers": "DELETE FROM millpond_worker",
    "ahead": "UPDATE millpond_worker SET ahead = ahead + 1",
    "keys": "UPDATE millpond_key SET task = 1",
    "keys too early": "UPDATE millpond_key SET status = 'completed'",
    "no runs": "DELETE FROM millpond_run",
    "runs over": "UPDATE millpond_run SET finished_at = 1.0",
    "tasks of runs": "UPDATE millpond_live SET run = NULL",
    "numbers of groups": "UPDATE millpond_meta SET next_group = 1",
    "numbers of claims": "UPDATE millpond_meta SET next_claim = 1",
    "numbers of workers": "UPDATE millpond_meta SET joined = 0",
    "time": "UPDATE millpond_meta SET latest = 1.0",
    "records": "UPDATE millpond_meta SET records = records + 1",
    "a gap": "DELETE FROM millpond_audit WHERE position = "
    "(SELECT position FROM millpond_audit ORDER BY position LIMIT 1 OFFSET 3)",
    "no meta": "DELETE FROM millpond_meta",
}


async def make_some_of_everything(path: Path) -> None:
    """Leave a store with a row in every table."""
    store = SqliteStore(path, durability="normal", inline=True)
    lab = await Lab.around(store)
    await lab.join("mine", owner="me")
    await lab.declare("plain", prefetch=2)
    await lab.declare("fair", order=fair_round_robin(), max_per_key=2)
    await lab.declare("lanes", lanes=2)
    await lab.declare("slow", rate_per_key=Rate(1, per=60))
    for pool in ("plain", "fair", "lanes", "slow"):
        run = NewRun(id=lab.serial(), pool=pool, holder="me")
        done = Call("done")
        tasks = [
            lab.new(pool=pool, key=key, share=key, run=run.id, on_complete=done) for key in "aabc"
        ]
        await lab.submit(*tasks, run=run)
        await lab.put(pool=pool, key="d", share="d", delay=60.0, idempotency_key="once")
        if pool != "lanes":
            await lab.put(pool=pool, key="e", share="e", owner="me")
        first, *_ = await lab.lease(2, pool=pool)
        await lab.settle(completed(first))
        await lab.put(pool=pool, key="f", share="f")
    await lab.claims(2, pool="plain")
    await lab.control(orders.Pause("fair", "b"))
    await store.close()


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store that was used."""
    path = tmp_path_factory.mktemp("used") / "work.db"
    asyncio.run(make_some_of_everything(path))
    return path


@pytest.fixture
def connection(used: Path) -> Iterator[Connection]:
    """A connection whose changes are taken back."""
    connection = connect(used)
    connection.execute("BEGIN")
    yield connection
    connection.execute("ROLLBACK")
    connection.close()


def test_a_store_that_was_used_fits_together(connection: Connection) -> None:
    """All is well."""
    assert [] == check_tables(connection)


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_inconsistency_is_found(connection: Connection, damage: str) -> None:
    """A test changes one thing behind the store's back."""
    connection.execute("PRAGMA ignore_check_constraints=ON")
    assert connection.execute(DAMAGES[damage]).rowcount > 0
    assert check_tables(connection)


async def test_a_closure_is_found_although_its_line_was_empty_at_the_first_read(
    tmp_path: Path,
) -> None:
    """The store knows the line before its group in the file: it must read both."""
    store = SqliteStore(tmp_path / "work.db", durability="normal", inline=True)
    lab = await Lab.around(store)
    await lab.declare()
    await lab.join("w1", owner="me")
    assert [] == await lab.lease(worker="w1")
    closure = await lab.put(owner="me")
    other = SqliteStore(tmp_path / "work.db", durability="normal", inline=True)
    assert [] == other._reader.ask(check_tables)
    seen = Lab(other, now=lab.now)
    assert [closure] == [one.fence.task for one in await seen.lease(worker="w1")]
    await other.close()
    await store.close()
