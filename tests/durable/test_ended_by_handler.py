"""Handlers that end the transaction that is lent to them, by ways around its connection."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millpond import Context, Millpond, Retry, SyncContext, TaskFailed

pytestmark = [pytest.mark.real_loop, pytest.mark.rows("TR-17")]

AROUND: dict[str, Callable[[Any], object]] = {
    "commit": lambda driver: driver.commit(),
    "rollback": lambda driver: driver.rollback(),
    "commit_and_begin": lambda driver: (driver.commit(), driver.execute("BEGIN")),
    "chain": lambda driver: driver.execute("COMMIT AND CHAIN"),
}
HIDDEN = {
    "several": "SELECT 1; COMMIT; BEGIN",
    "comment": "/* first */ -- then\n COMMIT",
    "block": "DO $$ BEGIN COMMIT; END $$",
    "procedure": "CALL commits()",
    "chained": "COMMIT AND CHAIN",
}


def of_psycopg(connection: Any) -> Any:
    """Return the driver's connection, as its cursors have it."""
    return connection.cursor().connection


def of_sqlite(connection: Any) -> Any:
    """Return the driver's connection, which a cursor refuses to give."""
    return sqlite3.Cursor.__dict__["connection"].__get__(connection.cursor())


async def refused(url: str, write: Callable[[Any], object], way: str) -> str:
    """Run a handler that writes so; return why it failed, having seen that no attempt completed."""
    mp = Millpond(url, work=True)
    pool = mp.pool("p", retry=Retry.never())

    @pool.task
    async def commit(ctx: Context) -> None:
        await ctx.commit(write)

    @pool.task
    async def transaction(ctx: Context) -> None:
        async with ctx.transaction() as held:
            write(held.connection)

    @pool.task
    def in_thread(ctx: SyncContext) -> None:
        with ctx.transaction() as held:
            write(held.connection)

    @pool.task
    async def fine() -> int:
        return 1

    async with mp:
        tasks: dict[str, Any] = {
            "commit": commit,
            "transaction": transaction,
            "in_thread": in_thread,
        }
        handle = await tasks[way].submit()
        with pytest.raises(TaskFailed) as failed:
            await handle
        assert "failed" == handle.status
        assert 1 == await (await fine.submit())
    return str(failed.value)


WAYS = pytest.mark.parametrize("way", ["commit", "transaction", "in_thread"])


@WAYS
@pytest.mark.parametrize("end", AROUND)
async def test_on_a_server_an_attempt_fails_whose_transaction_was_ended(
    postgres_url: str, end: str, way: str
) -> None:
    """It is not completed in another transaction than the handler wrote in."""
    with psycopg.connect(postgres_url, autocommit=True) as own:
        own.execute("CREATE TABLE ledger (n int)")

    def write(connection: Any) -> None:
        connection.execute("INSERT INTO ledger VALUES (1)")
        AROUND[end](of_psycopg(connection))

    assert "MILL-057" in await refused(postgres_url, write, way)


@WAYS
@pytest.mark.parametrize("end", ["commit", "rollback", "commit_and_begin"])
async def test_in_a_file_an_attempt_fails_whose_transaction_was_ended(
    tmp_path: Path, end: str, way: str
) -> None:
    """It is not completed in another transaction than the handler wrote in."""

    def write(connection: Any) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS ledger (n int)")
        AROUND[end](of_sqlite(connection))

    url = f"sqlite:///{tmp_path / 'work.db'}"
    assert "MILL-057" in await refused(url, write, way)


@WAYS
@pytest.mark.parametrize("statement", HIDDEN)
async def test_on_a_server_a_hidden_commit_stores_nothing(
    postgres_url: str, statement: str, way: str
) -> None:
    """In comments, behind other statements, in blocks and in procedures."""
    with psycopg.connect(postgres_url, autocommit=True) as own:
        own.execute("CREATE TABLE ledger (n int)")
        own.execute("CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$")

    def write(connection: Any) -> None:
        connection.execute("INSERT INTO public.ledger VALUES (1)")
        connection.execute(HIDDEN[statement])

    await refused(postgres_url, write, way)
    with psycopg.connect(postgres_url) as own:
        assert [] == own.execute("SELECT * FROM ledger").fetchall()


@WAYS
@pytest.mark.parametrize("statement", ["several", "comment", "chained"])
async def test_in_a_file_a_hidden_commit_stores_nothing(
    tmp_path: Path, statement: str, way: str
) -> None:
    """In comments and behind other statements."""
    path = tmp_path / "work.db"

    def write(connection: Any) -> None:
        connection.execute("CREATE TABLE ledger (n int)")
        connection.execute(HIDDEN[statement])

    await refused(f"sqlite:///{path}", write, way)
    with sqlite3.connect(path) as own:
        assert [] == own.execute("SELECT * FROM sqlite_master WHERE name = 'ledger'").fetchall()
