"""A role that can connect to the database and has no right on the store: it stops nothing."""

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.waiting import eventually
from verify.servers.postgres import OwnServer

from millpond import Millpond
from millpond.cli.doctor import check_server
from millpond.core.control import Declare
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.store.postgres.connect import Patience, connect
from millpond.store.postgres.lock import to_migrate, to_write
from millpond.store.postgres.migrate import known_migrations, migrate
from millpond.store.postgres.notify import channel_of
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import address_of
from millpond.store.protocol import Batch

pytestmark = [pytest.mark.real_loop, pytest.mark.session]

STRANGER = f"a stranger {os.getpid()}"


@pytest.fixture(scope="module")
def role(own: OwnServer) -> Iterator[str]:
    """Give the name of a role that may connect, and nothing else."""
    own.execute(f'CREATE ROLE "{STRANGER}" LOGIN')
    yield STRANGER
    own.execute(f'DROP ROLE "{STRANGER}"')


@pytest.fixture
def stranger(role: str, own_url: str) -> Iterator[psycopg.Connection]:
    """Give a stranger's connection to the database."""
    url = own_url.replace("millpond@", f"{role.replace(' ', '%20')}@")
    with psycopg.connect(address_of(url).conninfo, autocommit=True) as connection:
        yield connection


def task(number: int) -> Batch:
    """Return a submit of one task."""
    return Batch(tasks=(NewTask(id=number, pool="p", call=Call("f", b"")),))


def lock(connection: psycopg.Connection[Any], statement: str) -> None:
    """Take a lock in a transaction, and end that."""
    connection.execute("BEGIN")
    try:
        connection.execute(statement.encode())
    finally:
        connection.execute("ROLLBACK")


def take_numbers(stranger: psycopg.Connection, schema: str) -> None:
    """Take every advisory lock that can be read off the server or worked out from names."""
    seen = stranger.execute(
        "SELECT classid::bigint << 32 | objid::bigint FROM pg_locks WHERE locktype = 'advisory'"
    ).fetchall()
    names = (f"millpond writes {schema}", f"millpond migrates {schema}", schema)
    hashed = [
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
        for name in names
    ]
    for number in [*(number for (number,) in seen), *hashed]:
        stranger.execute("SELECT pg_try_advisory_lock(%s)", [number])


@pytest.mark.rows("TR-15")
async def test_a_stranger_cannot_take_the_writers_lock(
    own_url: str, stranger: psycopg.Connection
) -> None:
    """It needs a right on the store: submits and workers go on."""
    address = address_of(own_url)
    store = PostgresStore(address, patience=Patience(lock=1.0))
    try:
        await store.control(Declare(PoolSpec(name="p")))
        with connect(address) as writer:
            writer.execute("BEGIN")
            writer.execute(to_write(address.schema).encode())
            take_numbers(stranger, address.schema)
            writer.execute("ROLLBACK")
        take_numbers(stranger, address.schema)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            lock(stranger, to_write(address.schema))
        await store.submit([task(1)])
        assert ("queued",) == await store.view.status([1])
    finally:
        await store.close()


@pytest.mark.rows("TR-15")
def test_a_stranger_cannot_keep_a_store_from_being_migrated(
    own_url: str, stranger: psycopg.Connection
) -> None:
    """Neither the first process that opens it nor a later release."""
    address = address_of(own_url)
    take_numbers(stranger, address.schema)
    with connect(address) as owner:
        assert known_migrations()[-1].version == migrate(owner, address, patience=1.0)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        lock(stranger, to_migrate(address.schema))


@pytest.mark.rows("TR-15")
async def test_a_role_that_may_only_use_the_schema_cannot_take_the_lock(
    own: OwnServer, own_url: str, stranger: psycopg.Connection, role: str
) -> None:
    """A submitter and a reader have no right to change a table, and the lock needs one."""
    address = address_of(own_url)
    with connect(address) as owner:
        migrate(owner, address)
        owner.execute(f'GRANT USAGE ON SCHEMA millpond TO "{role}"'.encode())
        owner.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA millpond TO "{role}"'.encode())
        try:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                lock(stranger, to_write(address.schema))
            # What a reader may take keeps no writer waiting.
            stranger.execute("BEGIN; LOCK TABLE millpond.millpond_lock IN ACCESS SHARE MODE")
            owner.execute("SET lock_timeout = 1000")
            lock(owner, to_write(address.schema))
        finally:
            stranger.execute("ROLLBACK")
            owner.execute(f'DROP OWNED BY "{role}"'.encode())


@pytest.mark.rows("TR-15")
async def test_doctor_says_who_holds_the_writers_lock(own_url: str) -> None:
    """Which session, whose, since when, what it does, and how many wait for it."""
    address = address_of(own_url)
    store = PostgresStore(address)
    try:
        await store.control(Declare(PoolSpec(name="p")))
        with connect(address, name="nightly report") as holder:
            holder.execute("BEGIN")
            holder.execute(to_write(address.schema).encode())
            waiting = asyncio.create_task(store.submit([task(1)]))
            found = None
            async with asyncio.timeout(30):
                while not found or not found.facts["lock"]["waiting"]:
                    await asyncio.sleep(0.01)  # the server gives no event
                    found = await asyncio.to_thread(check_server, own_url, address)
            pid = holder.info.backend_pid
            assert pid == found.facts["lock"]["pid"]
            (said,) = (line for line in found.notes if "writers' lock" in line)
            assert f"session {pid} (" in said
            assert "nightly report" in said
            assert "idle in transaction" in said
            assert "1 session(s) wait for it" in said
            holder.execute("ROLLBACK")
        await waiting
        found = await asyncio.to_thread(check_server, own_url, address)
        assert found.facts["lock"] is None
    finally:
        await store.close()


@pytest.mark.rows("TR-14")
async def test_a_forged_notification_changes_no_task(
    own_url: str, stranger: psycopg.Connection
) -> None:
    """It may know every id: a forged cancel stops nothing, a forged end ends no closure."""
    mp = Millpond(own_url, work=True)
    pool = mp.pool("p", max_concurrent=4)
    begun, go = asyncio.Event(), asyncio.Event()

    async def closure() -> str:
        begun.set()
        await go.wait()
        return "done"

    async with mp:
        running = await pool.submit(closure)
        await begun.wait()
        await pool.pause()
        waiting = await pool.submit(closure)
        wait = asyncio.create_task(waiting.wait(timeout=60))
        heard = len(internals_of(mp).runtime.hint_listener._wakes)
        ids = [running.id, waiting.id]
        forged = json.dumps(
            {"cancelled": ids, "interrupted": ids, "ended": ids, "finished_runs": ids}
        )
        marker = json.dumps({"wakes": [{"pool": "p", "at": 0.0}]})
        async with asyncio.timeout(30):
            while len(internals_of(mp).runtime.hint_listener._wakes) == heard:
                for said in (forged, marker):
                    stranger.execute(
                        "SELECT pg_notify(%s, %s)", [channel_of("millpond"), f"- {said}"]
                    )
                await asyncio.sleep(0.05)  # it leaves out hints that come too often
        await eventually(lambda: internals_of(mp).runtime.hint_listener._checking is None)
        job = internals_of(mp).runtime.job_of(running.id)
        assert job is not None
        assert not job.cancel_asked
        assert waiting.id in internals_of(mp).runtime.closures
        go.set()
        await pool.resume()
        assert "done" == (await running.wait(timeout=60)).result
        assert "done" == (await wait).result
