"""Failover: the primary dies, its standby is promoted, and a URL with both hosts leads there."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.faults.conftest import OutageLog
from tests.faults.shop import Shop
from tests.waiting import eventually
from verify.servers.postgres import QUICK, USER, OwnServer

from millpond.errors import StoreNotWritable
from millpond.runtime.observe.outage import ask_until_answered
from millpond.store.postgres.connect import connect
from millpond.store.postgres.url import address_of

pytestmark = pytest.mark.real_loop


@pytest.fixture
def primary(own: OwnServer) -> Iterator[OwnServer]:
    """Give a server to be killed."""
    with OwnServer(own.programs, {**QUICK, "wal_level": "replica"}) as server:
        yield server


@pytest.fixture
def standby(primary: OwnServer) -> Iterator[OwnServer]:
    """Give a copy that follows it, and that it waits for with every commit."""
    with primary.standby() as server:
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        yield server


def both(primary: OwnServer, standby: OwnServer) -> str:
    """Return a URL with both hosts, the standby first: it must be passed over."""
    parts = urlsplit(primary.tcp_url)
    who = parts.netloc.rpartition("@")[0]
    return f"postgresql://{who}@127.0.0.1:{standby.port},127.0.0.1:{primary.port}{parts.path}"


def is_synchronous(primary: OwnServer) -> bool:
    """Whether the standby confirms what the primary commits."""
    with psycopg.connect(primary.url) as connection:
        found = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall()
    return found == [("sync",)]


@pytest.mark.rows("HN-21", "TR-05")
async def test_a_fleet_goes_on_at_the_promoted_standby(
    primary: OwnServer, standby: OwnServer, outage_log: OutageLog
) -> None:
    """All that was acknowledged is there, since the standby confirmed it; nothing is done twice."""
    await eventually(lambda: is_synchronous(primary))
    url = both(primary, standby)
    submitter, worker = Shop(url), Shop(url, work=True)
    async with submitter.mp, worker.mp:
        assert 2 == await (await submitter.job.submit(1))
        await submitter.pool.pause()
        waiting = [await submitter.job.submit(number) for number in range(10, 20)]
        await asyncio.to_thread(primary.crash)
        await eventually(lambda: outage_log.away)
        standby.execute("SELECT pg_promote()")
        submit_in_sql(standby, submitter, 30)
        async with asyncio.timeout(40):
            await ask_until_answered(submitter.pool.resume, lambda: False)
            assert [2 * number for number in range(10, 20)] == [await one for one in waiting]
            assert 42 == await (await submitter.job.submit(21))
            await eventually(lambda: 30 in worker.runs)
        assert 13 == await submitter.completed()
        await eventually(lambda: outage_log.away == outage_log.back)
    assert set(worker.runs.values()) == {1}


def restored(old: OwnServer, new: OwnServer) -> None:
    """Restore a dump of one server at another, whose transactions are numbered from the start."""
    dump = [str(old.programs / "pg_dump"), "--clean", "--if-exists", "--dbname", old.tcp_url]
    text = subprocess.run(dump, capture_output=True, check=True, timeout=120).stdout
    load = [str(old.programs / "psql"), "--quiet", "--dbname", new.tcp_url]
    subprocess.run(load, input=text, capture_output=True, check=True, timeout=120)


def use_transactions(server: OwnServer, number: int) -> None:
    """Let a server number so many transactions."""
    with psycopg.connect(server.tcp_url, autocommit=True) as connection:
        for _ in range(number):
            connection.execute("SELECT pg_current_xact_id()")


def swapped(server: OwnServer, backup: Path) -> None:
    """Put a copy of an earlier day in the place of a server's data: it begins a timeline."""
    data = server.folder / "data"
    owner = data.stat()
    data.rename(server.folder / "data.old")
    shutil.copytree(backup, data)
    (data / "recovery.signal").touch()
    with (data / "postgresql.auto.conf").open("a") as settings:
        settings.write("restore_command = 'false'\n")
    data.chmod(0o700)
    if os.geteuid() == 0:
        for one in (data, *data.rglob("*")):
            os.chown(one, owner.st_uid, owner.st_gid)


def may_be_written(server: OwnServer) -> bool:
    """Whether a server has come to the end of its recovery; until then it only reads."""
    with psycopg.connect(server.tcp_url) as connection:
        return connection.execute("SELECT pg_is_in_recovery()").fetchall() == [(False,)]


@pytest.mark.rows("TR-05")
async def test_workers_that_stay_open_go_on_when_a_backup_takes_the_servers_place(
    primary: OwnServer, tmp_path: Path
) -> None:
    """The same port, another timeline: what the backup holds is run, and what comes later, too."""
    worker = Shop(primary.tcp_url, work=True, lease=4.0)
    async with worker.mp:
        assert 2 == await (await worker.job.submit(1))
        await worker.pool.pause()
        kept = await worker.job.submit(3)
        submit_in_sql(primary, worker, 4)
        place = ["-h", str(primary.folder), "-p", str(primary.port), "-U", USER]
        copy = [str(primary.programs / "pg_basebackup"), *place, "-D", str(tmp_path / "copy")]
        await asyncio.to_thread(subprocess.run, [*copy, "-c", "fast"], check=True, timeout=120)
        await worker.pool.resume()
        await eventually(lambda: 4 in worker.runs)
        assert 6 == await kept
        use_transactions(primary, 500)
        await asyncio.to_thread(primary.stop)
        await asyncio.to_thread(swapped, primary, tmp_path / "copy")
        await asyncio.to_thread(primary.start)
        await eventually(lambda: may_be_written(primary))
        submit_in_sql(primary, worker, 5)
        async with asyncio.timeout(60):
            await ask_until_answered(worker.pool.resume, lambda: False)
            await eventually(lambda: 5 in worker.runs, 60.0)
            assert 14 == await (await worker.job.submit(7))
            # The backup knows nothing of its end: it runs again, as everything since then would.
            await eventually(lambda: 2 == worker.runs[3] == worker.runs[4], 60.0)


def submit_in_sql(server: OwnServer, shop: Shop, number: int) -> None:
    """Submit a task as any program may, in a transaction of its own."""
    call = "SELECT millpond.submit(%s, %s, jsonb_build_object('number', %s::int))"
    with psycopg.connect(server.tcp_url) as connection:
        connection.execute(call, [shop.pool.name, shop.job.name, number])


@pytest.mark.rows("TR-05")
@pytest.mark.pg_dump
@pytest.mark.parametrize("later", [0, 4000])
async def test_tasks_submitted_in_sql_after_a_restore_are_found_by_workers_that_stayed_open(
    primary: OwnServer, own: OwnServer, later: int
) -> None:
    """Another server takes over at the URL, with a restored copy: its transactions are younger.

    By the time that a client checks, they may be older again.
    """
    with OwnServer(own.programs, QUICK) as other:
        url = both(other, primary)
        use_transactions(primary, 2000)
        # Both may be written: the other one must not answer before it is the one.
        await asyncio.to_thread(other.stop)
        worker = Shop(url, work=True)
        async with worker.mp:
            assert 2 == await (await worker.job.submit(1))
            submit_in_sql(primary, worker, 3)
            await eventually(lambda: 3 in worker.runs)
            await asyncio.to_thread(other.start)
            await asyncio.to_thread(restored, primary, other)
            submit_in_sql(other, worker, 5)
            use_transactions(other, later)
            await asyncio.to_thread(primary.crash)
            await eventually(lambda: 5 in worker.runs, 60.0)


async def test_a_server_that_may_only_be_read_by_now_is_left_for_the_next_host(
    own: OwnServer, direct: str
) -> None:
    """Its sessions stay open but cannot write, so the client looks for the primary."""
    database = urlsplit(direct).path.removeprefix("/")
    shop = Shop(direct)
    async with shop.mp:
        await shop.job.submit(1)
        own.execute(f'ALTER DATABASE "{database}" SET default_transaction_read_only = on')
        own.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "  # noqa: S608 - our own
            f"WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        )
        with pytest.raises(StoreNotWritable, match="all hosts as host1,host2"):
            await shop.job.submit(2)
        own.execute(f'ALTER DATABASE "{database}" RESET default_transaction_read_only')
        await shop.job.submit(2)
        assert 2 == (await shop.pool.snapshot()).queued


@pytest.mark.parametrize("how", ["host", "hostaddr"])
def test_hosts_may_stand_among_the_options(own: OwnServer, how: str) -> None:
    """They are tried until one may be written, as those before the database are."""
    url = urlsplit(own.tcp_url)
    who = url.netloc.rpartition("@")[0]
    ports = f"port={own.port},{own.port}"
    address = address_of(f"postgresql://{who}@/postgres?{how}=127.0.0.1%2C127.0.0.1&{ports}")
    assert address.several_hosts
    with connect(address) as connection:
        connection.execute("SELECT 1")
