"""A write that must touch so many rows notices if it touched others, and is never passed over."""

import logging
from pathlib import Path
from typing import Any

import pytest
from verify.servers.schemas import InlinePostgresStore, Schema
from verify.servers.sqlite_files import InlineStore

from millpond.core.control import Declare
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, NewTask
from millpond.errors import Miscounted
from millpond.store.protocol import Batch
from millpond.store.sql.store import SqlStore
from millpond.store.sql.unit_of_work import SqlTables

pytestmark = [pytest.mark.real_loop, pytest.mark.rows("TR-01")]

Store = SqlStore[Any, Any]


async def opened(place: Path | Schema) -> Store:
    """Open a store in which one task waits."""
    store = InlinePostgresStore(place) if isinstance(place, Schema) else InlineStore(place)
    await store.control(Declare(PoolSpec(name="p")))
    await store.submit((Batch(tasks=(NewTask(id=1, pool="p", call=Call("work")),)),))
    return store


async def test_a_write_that_misses_its_row_undoes_its_transaction_and_is_done_again(
    place: Path | Schema, caplog: pytest.LogCaptureFixture
) -> None:
    """The store recounts its tables before the retry; the caller gets the second error."""
    store, done = await opened(place), []

    def job(tables: SqlTables) -> None:
        done.append(tables)
        tables.ask("drop_worker", ("unknown",))
        tables.change("drop_live", (tables.listed([99]),), 1)
        tables.ask("meta").fetchone()

    with caplog.at_level(logging.ERROR, "millpond"), pytest.raises(Miscounted, match="drop_live"):
        await store._do(job)
    assert 2 == len(done)
    assert "recounting" in caplog.text
    assert ("queued",) == await store.view.status((1,))
    await store.close()


async def test_a_statement_for_each_row_notices_a_row_that_is_not_there(
    place: Path | Schema,
) -> None:
    """Whether the rows are sent one by one or all at once."""
    store = await opened(place)

    def job(tables: SqlTables) -> None:
        tables.send("drop_ended", [(98,), (99,)])
        tables.ask("meta").fetchone()

    with pytest.raises(Miscounted, match="drop_ended"):
        await store._do(job)
    await store.close()


async def test_a_miscount_that_the_commit_reports_is_repaired_at_once(
    place: Path | Schema, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server answers the last writes with the commit: the store logs it and recounts the rows."""
    store, mended = await opened(place), []
    mend = store.repair

    async def noted() -> tuple[str, ...]:
        mended.append(True)
        return await mend()

    def job(tables: SqlTables) -> None:
        tables.record_command(
            "p", "look", 1.0
        )  # a record of the audit, so that there is surely something
        tables.send("drop_ended", [(99,)])

    monkeypatch.setattr(store, "repair", noted)
    with caplog.at_level(logging.ERROR, "millpond"):
        try:
            await store._do(job)
        except Miscounted:
            assert not isinstance(place, Schema)  # a file answers at once
    assert [True] == mended
    assert "drop_ended" in caplog.text
    await store.close()
