"""A full queue of messages: one session listens, stays in its transaction, and never reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from verify.servers.postgres import QUICK, OwnServer, find_programs

from millpond import Millpond

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.real_loop,
    pytest.mark.small_notify_queue,
    pytest.mark.rows("TR-14"),
    pytest.mark.stores("postgres"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """Give a server with the smallest queue there is: half a megabyte."""
    programs = find_programs()
    if programs is None:
        pytest.skip("there are no programs of PostgreSQL here")
    with OwnServer(programs, {**QUICK, "max_notify_queue_pages": "64"}) as server:
        yield server


@pytest.fixture
def url(server: OwnServer) -> Iterator[str]:
    """Give an empty database on it."""
    with server.database() as url:
        yield url


def fill(url: str) -> psycopg.Connection[tuple[object, ...]]:
    """Send messages until one fails; return the session that keeps them from being read."""
    deaf = psycopg.connect(url, autocommit=True)
    deaf.execute("LISTEN anything")
    deaf.execute("BEGIN")
    deaf.execute("SELECT 1")
    with psycopg.connect(url, autocommit=True) as loud:
        for number in range(1000):
            try:
                loud.execute("SELECT pg_notify('anything', repeat('x', 7000) || %s)", [number])
            except psycopg.errors.ProgramLimitExceeded:
                return deaf
    raise AssertionError("the queue takes more and more")


async def test_a_full_queue_fails_no_commit(url: str) -> None:
    """Neither a caller's own transaction, by either door, nor what workers and clients write."""
    mp = Millpond(url, work=True)
    pool = mp.pool("p")

    @pool.task(name="work")
    async def work(n: int = 0) -> int:
        return n

    async with mp:
        await (await work.submit(1))
        with fill(url), psycopg.connect(url) as own:
            own.execute("CREATE TABLE orders (n int)")
            own.execute("INSERT INTO orders VALUES (1)")
            by_python = await pool.submit(work.bind(2), connection=own)
            own.execute("SELECT millpond.submit('p', 'work')")
            own.commit()
            assert (1,) == own.execute("SELECT n FROM orders").fetchone()
            own.commit()
            # What it submits, runs, stores and cancels is found by looking.
            assert 2 == await by_python
            assert 3 == await (await work.submit(3))
            later = await work.options(delay=3600).submit(4)
            await later.cancel()
            await pool.pause()
            await pool.resume()
            await mp.emit("nothing.happened", {})
        assert 5 == await (await work.submit(5))
