"""Clients that use a store at the same time, each over its own connection, from its own thread."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, product

import psycopg
import pytest

from millpond import Context, Millpond, Pool, fifo
from millpond.store.postgres.lock import to_write
from millpond.store.postgres.quoting import qualified
from millpond.store.postgres.url import address_of, is_postgres

pytestmark = pytest.mark.real_loop

PATIENCE = 10.0
CLIENTS, EACH = 4, 20


def application(url: str, ran: list[int], *, work: bool) -> Millpond:
    """Return the program of one client, or of the worker."""
    mp = Millpond(url, work=work, durability="normal")
    lanes = mp.pool("hooks", lanes=2)
    mp.pool("plain", queue=fifo())

    @lanes.task(key="to")
    async def send(ctx: Context, to: str) -> None:
        ran.append(ctx.sequence)

    return mp


class Hand:
    """A connection to the tables of a store that belongs to no Millpond."""

    def __init__(self, url: str) -> None:
        # Nothing is prepared: a pooler may give the next statement to another session.
        connect = partial(psycopg.connect, autocommit=True, prepare_threshold=None)
        self._server = connect(url) if is_postgres(url) else None
        self._file = None if self._server else file_of(url)
        self._schema = address_of(url).schema if self._server else ""

    def count(self, table: str) -> int:
        """Count the rows of a table, as they are committed now."""
        statement = f"SELECT count(*) FROM {table}"  # noqa: S608 - a name of ours
        if self._server is not None:
            row = self._server.execute(qualified(statement, self._schema).encode()).fetchone()
        else:
            assert self._file is not None
            row = self._file.execute(statement).fetchone()
        assert row is not None
        return int(row[0])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep every writer waiting."""
        if self._server is not None:
            with self._server.transaction():
                self._server.execute(to_write(self._schema).encode())
                yield
        else:
            assert self._file is not None
            self._file.execute("BEGIN IMMEDIATE")
            yield
            self._file.execute("ROLLBACK")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep a transaction open that has read something."""
        if self._server is not None:
            with self._server.transaction():
                self.count("millpond_live")
                yield
        else:
            assert self._file is not None
            self._file.execute("BEGIN")
            self.count("millpond_live")
            yield
            self._file.execute("ROLLBACK")

    def close(self) -> None:
        """Hang up."""
        for connection in (self._server, self._file):
            if connection is not None:
                connection.close()


def file_of(url: str) -> sqlite3.Connection:
    """Connect to the file of a URL; threads use it one after another."""
    path = url.removeprefix("sqlite:///")
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def in_threads(count: int, work: Callable[[], None]) -> None:
    """Do the same in several threads at once, and wait for all of them."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@dataclass(frozen=True)
class Answered:
    """One submit: when it was sent and answered, and the number it got."""

    sent: float
    answered: float
    sequence: int


@pytest.mark.rows("DE-T20", "DE-03")
async def test_submits_of_many_clients_are_numbered_in_the_order_they_are_stored(url: str) -> None:
    """Each number is given once, an earlier answer has the lower one, and starts follow them."""
    answers: list[Answered] = []

    async def submits() -> None:
        async with application(url, [], work=False) as mp:
            for _ in range(EACH):
                sent = time.monotonic()
                handle = await mp.tasks["send"].submit("acme")
                answers.append(Answered(sent, time.monotonic(), handle.sequence))

    async with application(url, [], work=False):
        pass  # The tables are there before the race.
    await asyncio.to_thread(in_threads, CLIENTS, lambda: asyncio.run(submits()))
    numbers = list(range(1, CLIENTS * EACH + 1))
    assert numbers == sorted(one.sequence for one in answers)
    pairs = product(answers, answers)
    assert all(a.sequence < b.sequence for a, b in pairs if a.answered < b.sent)
    ran: list[int] = []
    async with application(url, ran, work=True) as mp:
        await mp.get_pool("hooks").drain()
    assert numbers == ran


@pytest.mark.rows("DP-07", "DP-08", "HN-01")
async def test_workers_that_claim_at_once_take_each_task_once_and_in_order(url: str) -> None:
    """Four workers want three slots, each over its own connection: the records show every claim."""
    slots = CLIENTS - 1
    all_open, all_at_work = threading.Barrier(CLIENTS), threading.Barrier(slots)

    def process() -> Millpond:
        mp = Millpond(url, work=False, durability="normal")

        @mp.pool("crowd", queue=fifo(), max_concurrent=slots).task
        async def step(number: int) -> None:
            if number < slots:
                await asyncio.to_thread(all_at_work.wait, PATIENCE)

        return mp

    async def works() -> None:
        async with process() as mp, mp.worker(concurrency=1):
            pool = mp.get_pool("crowd")
            await asyncio.to_thread(all_open.wait, PATIENCE)
            await pool.resume()
            await pool.drain()

    async with process() as mp:
        pool = mp.get_pool("crowd")
        await pool.pause()
        handles = await pool.submit_many(mp.tasks["step"].each(range(CLIENTS * EACH)))
    await asyncio.to_thread(in_threads, CLIENTS, lambda: asyncio.run(works()))
    async with process() as mp:
        records = [one async for one in mp.audit() if one.kind in ("dequeue", "settle")]
    started = [one for one in records if one.kind == "dequeue"]
    assert [one.id for one in handles] == [one.task for one in started]
    assert len({one.worker for one in started}) >= slots
    assert slots == max(accumulate(1 if one.kind == "dequeue" else -1 for one in records))


@pytest.mark.rows("DE-20")
async def test_other_connections_see_all_tasks_of_a_batch_or_none(url: str) -> None:
    """Another connection never counts a part; each handle has the task's position."""
    size = 50
    async with application(url, [], work=False) as mp:
        pool = mp.get_pool("plain")
        hand = Hand(url)
        counts = [hand.count("millpond_task")]
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                counts.append(hand.count("millpond_task"))

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            looking = group.create_task(asyncio.to_thread(look))
            first = 0
            while len(set(counts)) < 5 and not looking.done():
                handles = await pool.submit_many(mp.tasks["send"].each(["acme"] * size))
                assert list(range(first, first + size)) == [one.position for one in handles]
                first += size
            over.set()
        hand.close()
        assert first == await pool.size()
    assert {count % size for count in counts} == {0}


@pytest.mark.rows("CX-09")
async def test_a_report_waits_for_no_writer_and_no_writer_waits_for_a_report(url: str) -> None:
    """Counts are read while a writer has its turn, and written while a reader has not finished."""
    async with application(url, [], work=False) as mp:
        pool: Pool = mp.get_pool("plain")
        await pool.submit(mp.tasks["send"].bind("acme"))
        hand = Hand(url)
        with hand.writing():
            async with asyncio.timeout(PATIENCE):
                assert 1 == (await pool.snapshot()).queued
                assert 1 == await pool.size()
        with hand.reading():
            async with asyncio.timeout(PATIENCE):
                await pool.submit(mp.tasks["send"].bind("bolt"))
                assert 2 == (await pool.snapshot()).queued
        hand.close()
