"""The functions of the server: short, installed by digest, several versions at once."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

from millpond.core import control as orders
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.rate import Rate
from millpond.core.settle import Settlement
from millpond.core.spec import PoolSpec, fair_round_robin, fifo, priority
from millpond.core.task import Call, NewTask
from millpond.errors import MigrationNeeded
from millpond.store.postgres import server_functions
from millpond.store.postgres.connect import Connection, connect
from millpond.store.postgres.dialect import dialect_of
from millpond.store.postgres.migrate import installed_functions, migrate
from millpond.store.postgres.pipeline import PostgresConnection
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import Address, address_of
from millpond.store.protocol import Batch
from millpond.store.sql.consistency import check_rows

LONGEST = 120
"""The most lines of a function."""

_FUNCTION = re.compile(
    r"^CREATE FUNCTION (\w+)\(.*?^(?:END\s*)?\$(?:body)?\$;", re.DOTALL | re.MULTILINE
)

NEXT = """\
import asyncio, sys
from millpond.store.postgres import server_functions

before = server_functions.sources()
server_functions.VERSION += 1
server_functions.sources = lambda: {
    name: text.replace("BEGIN\\n", "BEGIN\\n    -- Of the next release.\\n")
    for name, text in before.items()
}
from millpond.store.postgres.url import address_of
from tests.store.postgres.test_server_functions import work

asyncio.run(work(address_of(sys.argv[1]), sys.argv[2], int(sys.argv[3]), kind=sys.argv[4]))
"""
"""A program of the next release: all of its functions differ, and have the next version."""

KINDS = {
    "fifo": PoolSpec(name="p", order=fifo(), max_concurrent=7),
    "fair": PoolSpec(name="p", order=fair_round_robin(), max_concurrent=7, max_per_key=2),
    "lanes": PoolSpec(name="p", order=fifo(), max_concurrent=5, lanes=5),
    "rates": PoolSpec(
        name="p", order=priority(), max_concurrent=7, rates=(Rate(9000),), rate_per_key=Rate(900)
    ),
}


@pytest.fixture
def address(postgres_url: str) -> Address:
    """Give the address of an empty database."""
    return address_of(postgres_url)


@pytest.fixture
def connection(address: Address) -> Iterator[Connection]:
    """Give a connection to it."""
    with connect(address) as opened:
        yield opened


async def work(
    address: Address, worker: str, first: int, tasks: int = 40, kind: str = "fifo"
) -> None:
    """Submit tasks one by one and complete them, five at a time, with the server's functions."""
    store = await PostgresStore.open(address)
    seen = 0
    try:
        await store.control(orders.Declare(KINDS[kind]))
        await store.control(orders.Register(worker, 60.0))
        ask = LeaseRequest(pool="p", worker=worker, want=5)
        for number in range(tasks):
            key, again = f"k{number % 9}", f"once {first + number}" if number % 3 else None
            new = NewTask(
                id=first + number,
                pool="p",
                call=Call("work", b"x"),
                key=key,
                share=key,
                idempotency_key=again,
            )
            await store.submit([Batch(tasks=(new,))])
        leased = (await store.lease(ask)).leased
        while leased:
            ends = [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in leased]
            answer = await store.settle(ends, then=ask)
            seen += len(ends)
            assert answer.lease is not None
            leased = answer.lease.leased
        # The verbs hide an error of the server: they do the same.
        assert "error" not in {reason for _, reason in store.detour_counts()}
        assert kind != "fifo" or not store._refusals
    finally:
        await store.close()
    print(seen)  # noqa: T201 - a program that is started by a test reads it


def start_next(url: str, worker: str, first: int, kind: str = "fifo") -> subprocess.Popen[str]:
    """Start a program of the next release."""
    return subprocess.Popen(
        [sys.executable, "-c", NEXT, url, worker, str(first), kind],
        stdout=subprocess.PIPE,
        text=True,
    )


def completed(connection: Connection, address: Address) -> int:
    """Return how many tasks are completed; raise if the tables do not fit together."""
    own = PostgresConnection(connection, dialect_of(address.schema).many)
    assert [] == check_rows(own, dialect_of(address.schema))
    ((count,),) = connection.execute("SELECT count(*) FROM millpond.millpond_ended").fetchall()
    return int(count)


def test_every_function_is_short() -> None:
    """A reader sees it at once."""
    found = [
        (len(one[0].splitlines()), one[1])
        for text in server_functions.sources().values()
        for one in _FUNCTION.finditer(text)
    ]
    made = server_functions.made_names()
    assert {name for name in made if made[name] == "FUNCTION"} == {name for _, name in found}
    assert [] == [one for one in found if one[0] > LONGEST]


def test_a_released_version_is_never_changed() -> None:
    """Old workers call it; a change of a function needs a higher VERSION."""
    assert max(server_functions.RELEASED, default=0) <= server_functions.VERSION
    known = server_functions.RELEASED.get(server_functions.VERSION, server_functions.digest())
    assert known == server_functions.digest()


def test_functions_are_installed_once_and_again_where_they_differ(
    connection: Connection, address: Address
) -> None:
    """The store compares their digests."""
    migrate(connection, address)
    assert {server_functions.VERSION: server_functions.digest()} == installed_functions(
        connection, address
    )
    query = "SELECT max(oid::bigint) FROM pg_proc WHERE pronamespace = 'millpond'::regnamespace"
    first = connection.execute(query).fetchall()
    migrate(connection, address)
    assert first == connection.execute(query).fetchall()
    connection.execute("UPDATE millpond.millpond_functions SET digest = 'of another build'")
    migrate(connection, address)
    assert first < connection.execute(query).fetchall()
    assert server_functions.digest() in installed_functions(connection, address).values()


def test_a_schema_without_functions_is_refused_where_they_may_not_be_installed(
    connection: Connection, address: Address
) -> None:
    """New code on an old schema: it says what to do, and changes nothing."""
    migrate(connection, address)
    connection.execute("DELETE FROM millpond.millpond_functions")
    with pytest.raises(MigrationNeeded, match=r"lacks version 1 of .*millpond migrate"):
        migrate(connection, address, allowed=False)
    migrate(connection, address)
    migrate(connection, address, allowed=False)


def test_an_old_release_works_on_the_functions_of_a_new_one(
    connection: Connection, address: Address, postgres_url: str
) -> None:
    """Old code, opened before and after the new one was, calls its own functions."""
    asyncio.run(work(address, "old", 1))
    with start_next(postgres_url, "new", 1001) as new:
        assert "40" == new.communicate(timeout=60)[0].strip()
    installed = installed_functions(connection, address)
    assert {1, 2} == installed.keys()
    assert installed[1] == server_functions.digest()
    asyncio.run(work(address, "old again", 2001))
    assert installed == installed_functions(connection, address)
    assert 120 == completed(connection, address)


def test_the_public_functions_are_those_of_the_newest(
    connection: Connection, address: Address, postgres_url: str
) -> None:
    """An old release that is started again leaves them alone, and they keep their grants."""
    asyncio.run(work(address, "old", 1))
    connection.execute("GRANT EXECUTE ON FUNCTION millpond.status TO PUBLIC")
    with start_next(postgres_url, "new", 1001) as new:
        new.communicate(timeout=60)
    connection.execute("DELETE FROM millpond.millpond_functions WHERE version = 1")
    asyncio.run(work(address, "old", 2001))
    ((body,),) = connection.execute(
        "SELECT prosrc FROM pg_proc WHERE pronamespace = 'millpond'::regnamespace "
        "AND proname = 'submit'"
    ).fetchall()
    assert "millpond_put_2(" in body
    allowed = "SELECT has_function_privilege('public', 'millpond.{}', 'EXECUTE')"
    ((kept,),) = connection.execute(allowed.format("status(bigint)").encode()).fetchall()
    ((given,),) = connection.execute(allowed.format("millpond_enter(text)").encode()).fetchall()
    assert kept
    assert not given


@pytest.mark.parametrize("kind", KINDS)
def test_old_and_new_work_side_by_side(
    connection: Connection, address: Address, postgres_url: str, kind: str
) -> None:
    """During a rolling deploy: what one release starts the other ends, and every count fits."""
    migrate(connection, address)
    programs = [start_next(postgres_url, f"new {n}", 1000 * n, kind) for n in (1, 2)]
    asyncio.run(work(address, "old", 10_001, kind=kind))
    for program in programs:
        with program:
            program.communicate(timeout=60)
            assert 0 == program.returncode
    # A program may leave while others still submit.
    asyncio.run(work(address, "last", 20_001, tasks=0, kind=kind))
    assert 120 == completed(connection, address)
    with pytest.raises(psycopg.errors.UndefinedFunction):
        connection.execute("SELECT millpond.millpond_settle_and_lease()")
