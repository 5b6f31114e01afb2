"""Tasks stored under the first schema run under this release."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from tests.pool.fleet import until
from tests.store.sqlite.make_schema_1 import application

from millpond.store.sqlite.consistency import check_tables

SAVED = Path(__file__).with_name("schema-1.sql")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database as the first schema left it."""
    path = tmp_path / "work.db"
    with sqlite3.connect(path) as file:
        file.executescript(SAVED.read_text("utf-8"))
    file.close()
    return path


@pytest.mark.rows("CX-T58")
async def test_tasks_stored_under_the_first_schema_run(path: Path) -> None:
    """Calls, retries, delays, lanes, keys and callbacks go on; what had ended can be read."""
    notes: list[str] = []
    mp = application(path, notes)
    async with mp:
        plain, hooks, calls = (mp.get_pool(name) for name in ("plain", "hooks", "calls"))
        assert (2, 3, 3) == (
            (await plain.snapshot()).kept,
            await hooks.size(),
            await calls.size(),
        )
        again = await mp.tasks["job"].options(idempotency_key="order-1").submit("done")
        assert (True, "done") == (again.duplicate, await again)
        (failed,) = await plain.tasks(status="failed")
        assert "bad" in str(failed.error)
        async with mp.worker():
            await asyncio.sleep(30)
            assert 1 == await calls.size()
            await calls.resume(key="b")
            await asyncio.sleep(4000)
            assert [0, 0, 0] == [await pool.size() for pool in (plain, hooks, calls)]
            assert (3, (await plain.snapshot()).revision) == (
                (await plain.snapshot()).max_concurrent,
                2,
            )
            await until(lambda: callback_ran(notes))
    assert ["call 1"] * 3 == [word for word in notes if word.startswith("call")]
    lanes = [word for word in notes if word in ("one 1", "two 1", "three 1")]
    assert {"one 1", "two 1", "three 1"} == set(lanes)
    assert lanes.index("one 1") < lanes.index("three 1")
    assert {"flaky 2", "later 1", "waiting 1", "outcome completed"} <= set(notes)


async def callback_ran(notes: list[str]) -> bool:
    """Return whether the callback of the task that waited has run."""
    return "outcome completed" in notes


def test_the_first_schema_fits_together(path: Path) -> None:
    """The saved tables are consistent."""
    with sqlite3.connect(path) as file:
        assert [] == check_tables(file)
    file.close()
