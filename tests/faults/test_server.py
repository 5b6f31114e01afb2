"""Servers whose settings or errors end transactions: each of ours commits exactly once."""

import asyncio
import os
import subprocess
import sys
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.faults.shop import Shop
from verify.servers.postgres import OwnServer
from verify.torture.evidence import from_zero
from verify.torture.replay import Replay

from millpond import Context, Millpond
from millpond.pool.internals import internals_of
from millpond.store.postgres.connect import connect
from millpond.store.postgres.lock import to_write
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.url import address_of

pytestmark = pytest.mark.real_loop

HURRIED = {
    "statement_timeout": "400ms",
    "lock_timeout": "100ms",
    "idle_in_transaction_session_timeout": "100ms",
    "idle_session_timeout": "300ms",
}


async def kept(mp: Millpond) -> list[str]:
    """Whatever the records show that must not be."""
    replay = Replay({pool.name: pool.spec for pool in mp.pools()})
    replay.read(from_zero([record async for record in mp.audit()]))
    return [what for found in replay.broken.values() for what in found]


async def crowd_works(url: str, count: int = 120) -> None:
    """Two workers and two submitters in each other's way do all there is to do, once."""
    shops = [Shop(url, work=True), Shop(url, work=True), Shop(url)]
    async with shops[0].mp, shops[1].mp, shops[2].mp:
        async with asyncio.TaskGroup() as strands:
            for start in range(count // 4):
                for number, shop in enumerate((*shops, shops[0])):
                    strands.create_task(shop.job.submit(4 * start + number))
        async with asyncio.timeout(40):
            await shops[2].pool.drain()
        assert count == await shops[2].completed()
        assert [] == await kept(shops[2].mp)
    runs = shops[0].runs + shops[1].runs + shops[2].runs  # a process that drains works, too
    assert dict.fromkeys(range(count), 1) == dict(sorted(runs.items()))


async def test_timeouts_of_the_database_end_no_transaction_of_ours(
    own: OwnServer, direct: str
) -> None:
    """They are for clients that do not know how long their statements should take."""
    hurried = HURRIED
    with psycopg.connect(direct) as connection:
        if connection.info.server_version >= 170_000:
            hurried = {**HURRIED, "transaction_timeout": "400ms"}
    async with Shop(direct).mp:
        pass  # its tables are made without them
    for name, value in hurried.items():
        own.execute(f"ALTER DATABASE \"{urlsplit(direct).path[1:]}\" SET {name} = '{value}'")
    shop = Shop(direct)
    async with shop.mp:
        # Another session holds the lock for longer than any of these timeouts.
        with psycopg.connect(own.url_of(urlsplit(direct).path[1:])) as other:
            other.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
            if "transaction_timeout" in hurried:
                other.execute("SET transaction_timeout = 0")
            other.commit()
            other.execute(to_write("millpond").encode())
            submit = asyncio.create_task(shop.job.submit(1))
            await asyncio.sleep(0.6)  # longer than each of those timeouts
            assert not submit.done()
            other.commit()
        assert await (await submit).cancel()
    await crowd_works(direct, 40)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_transactions_do_not_use_the_isolation_level_of_the_database(
    own: OwnServer, direct: str, level: str
) -> None:
    """A snapshot from before the lock would show tasks that others ended as not done."""
    database = urlsplit(direct).path[1:]
    own.execute(f"ALTER DATABASE \"{database}\" SET default_transaction_isolation = '{level}'")
    await crowd_works(direct)
    with psycopg.connect(own.url_of(database)) as theirs, connect(address_of(direct)) as ours:
        assert (level,) == theirs.execute("SHOW transaction_isolation").fetchone()
        # A statement that is a transaction by itself would fail, and be done another way.
        assert ("read committed",) == ours.execute("SHOW transaction_isolation").fetchone()


async def test_handlers_that_lock_each_other_out_are_tried_again(direct: str) -> None:
    """The server rolls back one of the two transactions; the worker runs its handler again."""
    shop = Shop(direct, work=True)
    first = {1: asyncio.Event(), 2: asyncio.Event()}

    async def swap(ctx: Context, number: int) -> None:
        async with ctx.transaction() as connection:
            connection.execute("UPDATE public.rows SET seen = seen + 1 WHERE n = %s", [number])
            first[number].set()
            await first[3 - number].wait()
            await asyncio.to_thread(
                connection.execute,
                "UPDATE public.rows SET seen = seen + 1 WHERE n = %s",
                [3 - number],
            )

    task = shop.pool.task(swap)
    with psycopg.connect(direct, autocommit=True) as other:
        other.execute("CREATE TABLE public.rows (n int, seen int)")
        other.execute("INSERT INTO public.rows VALUES (1, 0), (2, 0)")
        async with shop.mp:
            handles = [await task.submit(number) for number in (1, 2)]
            async with asyncio.timeout(40):
                for handle in handles:
                    await handle
            assert 3 <= sum([(await handle.refresh()).attempt for handle in handles])
        found = other.execute("SELECT seen FROM public.rows").fetchall()
    assert [(2,), (2,)] == found


@pytest.mark.parametrize(
    "kind",
    [
        psycopg.errors.DiskFull,
        psycopg.errors.DeadlockDetected,
        psycopg.errors.SerializationFailure,
        psycopg.errors.QueryCanceled,
        psycopg.errors.LockNotAvailable,
        psycopg.errors.OutOfMemory,
        psycopg.errors.ReadOnlySqlTransaction,
        psycopg.errors.AdminShutdown,
        psycopg.errors.IoError,
    ],
)
async def test_a_call_that_the_server_refuses_for_a_while_succeeds_afterwards(
    direct: str, monkeypatch: pytest.MonkeyPatch, kind: type[psycopg.Error]
) -> None:
    """After any such error the worker lives, and no task is lost or done twice."""
    submitter, worker = Shop(direct), Shop(direct, work=True)
    left, refused = 12, 0

    def refusing(what: str) -> None:
        real = getattr(PostgresConnection, what)

        def maybe(connection: PostgresConnection, *given: object) -> object:
            nonlocal refused
            if refused < left and connection is not mine:
                refused += 1
                raise kind("not now")
            return real(connection, *given)

        monkeypatch.setattr(PostgresConnection, what, maybe)

    async with submitter.mp, worker.mp:
        assert 2 == await (await submitter.job.submit(1))
        mine = internals_of(submitter.mp).runtime.store._writing.connection  # type: ignore[attr-defined]
        refusing("start")
        refusing("commit")
        handles = [await submitter.job.submit(number) for number in range(10, 20)]
        async with asyncio.timeout(40):
            assert [2 * number for number in range(10, 20)] == [await one for one in handles]
        assert 11 == await submitter.completed()
        assert [] == await kept(submitter.mp)
    assert refused == left
    assert set(worker.runs.values()) == {1}


WORKER = """\
import asyncio, sys, time
real, hours = time.time, float(sys.argv[2])
time.time = lambda: real() + 3600 * hours
from tests.faults.shop import Shop

async def main():
    async with Shop(sys.argv[1], work=True, lease=3.0).mp:
        print("works", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@pytest.mark.timeout(120)  # where processes take long to start
async def test_workers_whose_clocks_are_hours_apart_agree(direct: str) -> None:
    """Time is the server's: what is due is due for all, and no lease is over early."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)}
    workers = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WORKER, direct, hours),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for hours in ("-5", "+7")
    ]
    submitter = Shop(direct)
    async with submitter.mp:
        for worker in workers:
            assert worker.stdout is not None
            assert b"works" in await worker.stdout.readline()
        handles = [await submitter.job.options(delay=0.3).submit(number) for number in range(40)]
        async with asyncio.timeout(40):
            assert [2 * number for number in range(40)] == [await one for one in handles]
        assert 40 == await submitter.completed()
        assert [] == await kept(submitter.mp)
        records = [record async for record in submitter.mp.audit() if record.task is not None]
    assert max(record.at for record in records) - min(record.at for record in records) < 60
    assert max(record.attempt for record in records) == 1
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()
        assert 0 == await worker.wait()
