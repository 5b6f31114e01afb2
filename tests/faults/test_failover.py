"""Failover: the primary dies, its standby is promoted, and a URL with both hosts leads there."""

import asyncio
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.faults.conftest import Told, until
from tests.faults.shop import Shop

from millpond.core.errors import StoreNotWritable
from millpond.runtime.outage import insisted
from millpond.store.postgres.connect import connect
from millpond.store.postgres.url import address_of
from millpond.testing.postgres import QUICK, OwnServer

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


@pytest.mark.rows("HN-21")
async def test_a_fleet_goes_on_at_the_promoted_standby(
    primary: OwnServer, standby: OwnServer, told: Told
) -> None:
    """All that was acknowledged is there, since the standby confirmed it; nothing is done twice."""
    await until(lambda: is_synchronous(primary))
    url = both(primary, standby)
    submitter, worker = Shop(url), Shop(url, work=True)
    async with submitter.mp, worker.mp:
        assert 2 == await (await submitter.job.submit(1))
        await submitter.pool.pause()
        waiting = [await submitter.job.submit(number) for number in range(10, 20)]
        await asyncio.to_thread(primary.crash)
        await until(lambda: told.away)
        standby.execute("SELECT pg_promote()")
        async with asyncio.timeout(40):
            await insisted(submitter.pool.resume, lambda: False)
            assert [2 * number for number in range(10, 20)] == [await one for one in waiting]
            assert 42 == await (await submitter.job.submit(21))
        assert 12 == await submitter.completed()
        await until(lambda: told.away == told.back)
    assert set(worker.runs.values()) == {1}


async def test_a_server_that_may_only_be_read_by_now_is_left_for_the_next_host(
    own: OwnServer, direct: str
) -> None:
    """Its sessions stand, but it writes no more: that is a reason to look for the primary."""
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
