"""The peers of bench/postgres.py that are written in Python, each as its manual shows it.

The floor beside them is what any queue on PostgreSQL must pay that claims by the batch and does
not lose a task: one statement that deletes the next tasks and returns them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from acting import (
    CHUNK,
    FEEDING,
    GAP,
    PATIENCE,
    Answer,
    Meter,
    Stage,
    Tally,
    begin,
    owed,
    streamed,
)

Handler = Callable[[int], None]


class Peer(ABC):
    """A queue of another library; every task carries when it was sent."""

    pause = 0.0
    """Seconds that a handler takes."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    async def install(self) -> None:
        """Make the tables; before `open`."""

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def submit(self, sent: int) -> None:
        """Store a task."""

    @abstractmethod
    async def submit_many(self, sent: list[int]) -> None:
        """Store tasks with one call."""

    @abstractmethod
    async def start(self, concurrency: int, handler: Handler) -> None:
        """Begin to run what is queued."""

    @abstractmethod
    async def left(self) -> int:
        """Return how many tasks have not ended."""


class Counted(Peer):
    """A peer whose tasks can be counted with a statement."""

    remaining: str
    _watching: Any = None

    async def left(self) -> int:
        import psycopg

        if self._watching is None:
            self._watching = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        row = await (await self._watching.execute(self.remaining)).fetchone()
        return int(row[0])


class PgQueuer(Counted):
    """pgqueuer over asyncpg, claiming by half of what may run at once."""

    remaining = "SELECT count(*) FROM pgqueuer"

    async def _queries(self) -> Any:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        return Queries(AsyncpgDriver(await asyncpg.connect(self.url)))

    async def install(self) -> None:
        await (await self._queries()).install()

    async def open(self) -> None:
        self.queries = await self._queries()

    async def submit(self, sent: int) -> None:
        await self.queries.enqueue("noop", str(sent).encode(), 0)

    async def submit_many(self, sent: list[int]) -> None:
        payloads = [str(one).encode() for one in sent]
        await self.queries.enqueue(["noop"] * len(sent), payloads, [0] * len(sent))

    async def start(self, concurrency: int, handler: Handler) -> None:
        import asyncpg
        from pgqueuer import PgQueuer as Application
        from pgqueuer.db import AsyncpgDriver

        application = Application(AsyncpgDriver(await asyncpg.connect(self.url)))

        async def noop(job: Any) -> None:
            handler(int(job.payload))
            if self.pause:
                await asyncio.sleep(self.pause)

        application.entrypoint("noop")(noop)
        self.running = asyncio.create_task(
            application.run(batch_size=max(1, concurrency // 2), max_concurrent_tasks=concurrency)
        )


class Procrastinate(Counted):
    """procrastinate over psycopg."""

    remaining = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"

    def __init__(self, url: str) -> None:
        import procrastinate

        super().__init__(url)
        self.app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
        self.handler: Handler = lambda _sent: None
        self.task = self.app.task(name="noop", queue="default")(self._noop)

    async def _noop(self, sent: int) -> None:
        self.handler(sent)

    async def install(self) -> None:
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await self.app.open_async()

    async def submit(self, sent: int) -> None:
        await self.task.defer_async(sent=sent)

    async def submit_many(self, sent: list[int]) -> None:
        await self.task.batch_defer_async(*[{"sent": one} for one in sent])

    async def start(self, concurrency: int, handler: Handler) -> None:
        self.handler = handler
        self.running = asyncio.create_task(
            self.app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)
        )


class Awa(Peer):
    """awa with its queue storage, filled by COPY."""

    def __init__(self, url: str) -> None:
        from awa import AsyncClient

        super().__init__(url)
        self.client = AsyncClient(url)

    async def install(self) -> None:
        await self.client.migrate()
        await self.client.install_queue_storage()

    async def open(self) -> None:
        pass

    async def submit(self, sent: int) -> None:
        await self.client.insert(Noop(sent))

    async def submit_many(self, sent: list[int]) -> None:
        await self.client.enqueue_many_copy([Noop(one) for one in sent])

    async def start(self, concurrency: int, handler: Handler) -> None:
        async def noop(job: Any) -> None:
            handler(job.args.sent)

        self.client.task(Noop, queue="default")(noop)
        await self.client.start([("default", concurrency)])

    async def left(self) -> int:
        stats = await self.client.queue_stats()
        return sum(one.available + one.running + one.retryable for one in stats)


@dataclass
class Noop:
    """What a task of awa carries."""

    sent: int


class Raw(Counted):
    """No queue at all: a table, and statements that insert into it and delete from it."""

    remaining = "SELECT count(*) FROM raw"

    async def _connected(self) -> Any:
        import asyncpg

        return await asyncpg.connect(self.url)

    async def install(self) -> None:
        connection = await self._connected()
        await connection.execute(
            "CREATE TABLE raw (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, sent bigint)"
        )

    async def open(self) -> None:
        self.connection = await self._connected()

    async def submit(self, sent: int) -> None:
        await self.connection.fetchval("INSERT INTO raw (sent) VALUES ($1) RETURNING id", sent)

    async def submit_many(self, sent: list[int]) -> None:
        await self.connection.execute(
            "INSERT INTO raw (sent) SELECT * FROM unnest($1::bigint[])", sent
        )

    async def start(self, concurrency: int, handler: Handler) -> None:
        self.running = asyncio.create_task(self._loop(concurrency, handler))

    async def _loop(self, batch: int, handler: Handler) -> None:
        claim = await self.connection.prepare(
            "DELETE FROM raw WHERE id = ANY(ARRAY("
            "SELECT id FROM raw ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING sent"
        )
        while True:
            rows = await claim.fetch(batch)
            for (sent,) in rows:
                handler(sent)
            if not rows:
                await asyncio.sleep(0.005)


def oban(url: str) -> Peer:
    """Return a peer whose library is in an environment of its own."""
    from postgres_oban import Oban

    return Oban(url)


KINDS: dict[str, Callable[[str], Peer]] = {
    "pgqueuer": PgQueuer,
    "procrastinate": Procrastinate,
    "oban": oban,
    "awa": Awa,
    "raw": Raw,
}


async def beginning() -> None:
    """Wait for the sign to begin; the loop goes on meanwhile."""
    await asyncio.to_thread(begin)


# Acts


async def fill(peer: Peer, stage: Stage) -> Answer:
    """Make the tables, and store tasks that are not measured."""
    await peer.install()
    await peer.open()
    await beginning()
    await store(peer, stage.count)
    return {"stored": await peer.left()}


async def submit(peer: Peer, stage: Stage) -> Answer:
    """Store tasks one after another."""
    await peer.open()
    await beginning()
    start = time.monotonic_ns()
    for _ in range(stage.count):
        await peer.submit(time.monotonic_ns())
    seconds = (time.monotonic_ns() - start) / 1e9
    return {"seconds": seconds, "stored": await peer.left()}


async def stream(peer: Peer, stage: Stage) -> Answer:
    """Store tasks one after another for some seconds."""
    await peer.open()
    await beginning()
    return await streamed(stage.get("seconds"), peer.submit)


async def bulk(peer: Peer, stage: Stage) -> Answer:
    """Store tasks in chunks."""
    await peer.open()
    await beginning()
    start = time.monotonic_ns()
    await store(peer, stage.count)
    seconds = (time.monotonic_ns() - start) / 1e9
    return {"seconds": seconds, "stored": await peer.left()}


async def store(peer: Peer, count: int) -> None:
    """Store tasks, many with one call."""
    for at in range(0, count, CHUNK):
        await peer.submit_many([time.monotonic_ns() for _ in range(min(CHUNK, count - at))])


async def beat(peer: Peer, stage: Stage) -> Answer:
    """Store a task every now and then."""
    await peer.open()
    await beginning()
    for _ in range(stage.count):
        await peer.submit(time.monotonic_ns())
        await asyncio.sleep(random.uniform(*GAP))
    return {}


async def work(peer: Peer, stage: Stage) -> Answer:
    """Be a worker."""
    loop, full = asyncio.get_running_loop(), asyncio.Event()
    meter = Meter(stage.count, lambda: loop.call_soon_threadsafe(full.set))
    await peer.open()
    await beginning()
    deadline = time.monotonic() + stage.get("seconds")
    await peer.start(stage.get("concurrency"), meter.hit)
    empty = await watch(peer, meter, full, deadline, stay=stage.get("stay", False))
    return meter.answer(empty, lags=stage.get("lags", False))


async def watch(
    peer: Peer, meter: Meter, full: asyncio.Event, deadline: float, *, stay: bool
) -> int | None:
    """Wait until enough have started or nothing is left; return when the queue was empty."""
    seen = -1
    while not full.is_set():
        try:
            await asyncio.wait_for(full.wait(), PATIENCE)
        except TimeoutError:
            if time.monotonic() >= deadline:
                return None
            started = len(meter.starts)
            if not stay and started and seen == started and not await peer.left():
                return time.monotonic_ns()
            seen = started
    while await peer.left():
        if time.monotonic() >= deadline:
            return None
        await asyncio.sleep(0.002)
    return time.monotonic_ns()


async def feed(peer: Peer, stage: Stage) -> Answer:
    """Store tasks at a steady pace; what comes late is made up for."""
    given = 0
    await peer.open()
    await beginning()
    since = time.monotonic()
    while time.monotonic() < since + stage.get("seconds"):
        count = owed(stage.get("load"), since, given)
        await store(peer, count)
        given += count
        await asyncio.sleep(FEEDING)
    return {"stored": given}


async def sustain(peer: Peer, stage: Stage) -> Answer:
    """Be a worker for some seconds, and return the starts of each."""
    await peer.open()
    await beginning()
    tally = Tally(stage.get("seconds"))
    peer.pause = stage.get("pause", 0.0)
    await peer.start(stage.get("concurrency"), tally.hit)
    await asyncio.sleep(stage.get("seconds"))
    return tally.answer()


async def idle(peer: Peer, stage: Stage) -> Answer:
    """Be a worker with nothing to do."""
    await peer.open()
    await peer.start(stage.get("concurrency"), lambda _sent: None)
    await beginning()
    await asyncio.to_thread(sys.stdin.read)
    return {}


ACTS: dict[str, Callable[[Peer, Stage], Awaitable[Answer]]] = {
    one.__name__: one for one in (fill, submit, stream, bulk, beat, work, feed, sustain, idle)
}


def play(stage: Stage, act: str) -> Answer:
    """Do an act; what a peer has running in the background is not waited for."""
    logging.disable(logging.CRITICAL)

    async def total() -> Answer:
        answer = await ACTS[act](KINDS[stage.contender.kind](stage.url), stage)
        print(json.dumps(answer), flush=True)
        os._exit(0)

    return asyncio.run(total())
