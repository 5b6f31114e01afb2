"""How long the dashboard's requests take on a store of many tasks, beside a bare SELECT.

    make bench-server                          10,000 and 1,000,000 tasks, SQLite and PostgreSQL
    make bench-server ARGS="--tasks 5000 100000 --stores sqlite"

Two processes serve a small and a large store with uvicorn; `server_content` says what they hold.
Another process asks both in turn, one request at a time over one connection each. After that it
reads one row by its primary key twice, so that whatever else the machine does meanwhile slows all
of them down:

SELECT        by the driver, in the asking process: no HTTP at all
over HTTP     by a bare ASGI app in the serving process, with a thread like the store's: what any
              answer over HTTP from Python costs at least

Of each request it measures the time until the answer, and the processor time of the serving process
and of its connections to the server. On a busy machine a request mostly waits for a processor; its
processor time stays nearly the same.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from processes import processor_time
from server_content import POOLS, fill
from verify.servers.postgres import serve as serve_postgres

from millpond import Millpond

REQUESTS = 300
WARM_UP = 30
BARE = "/bare/"


class Reader(NamedTuple):
    """A connection of its own to a store."""

    select: Callable[[int], list[Any]]
    """Reads the row of a task by its primary key."""
    backend: int | None
    """The server's process that serves it."""
    others: Callable[[], list[int]]
    """Those of the server's processes that serve other connections to the store."""


# The process that serves


async def serve(url: str) -> None:
    """Serve the dashboard of a store, and a bare SELECT beside it."""
    import uvicorn

    from millpond.server import app

    thread = ThreadPoolExecutor(1)
    select = reader_of(url).select

    async def bare(task: int, send: Any) -> None:
        loop = asyncio.get_running_loop()
        found = msgspec.json.encode(await loop.run_in_executor(thread, select, task))
        length = str(len(found)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": found})

    mp = Millpond(url, work=False)
    dashboard = app(mp, max_rate=1_000_000)

    async def either(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path", "").startswith(BARE):
            await bare(int(scope["path"].removeprefix(BARE)), send)
        else:
            await dashboard(scope, receive, send)

    async with mp:
        config = uvicorn.Config(
            either,
            "127.0.0.1",
            0,
            log_config=None,
            access_log=False,
            lifespan="off",
            # A busy machine may rest for longer than the five seconds that uvicorn waits.
            timeout_keep_alive=3600,
        )
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0.01)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await running


def reader_of(url: str) -> Reader:
    """Return a connection to a store, past the library."""
    if url.startswith("sqlite"):
        file = sqlite3.connect(url.removeprefix("sqlite:///"), check_same_thread=False)
        sql = "SELECT id, place FROM millpond_task WHERE id = ?"
        return Reader(lambda task: list(file.execute(sql, (task,)).fetchone()), None, list)
    import psycopg

    server = psycopg.connect(url, autocommit=True)
    schema = server.execute(
        "SELECT schemaname FROM pg_tables WHERE tablename = 'millpond_task'"
    ).fetchone()
    assert schema is not None
    statement = f'SELECT id, place FROM "{schema[0]}".millpond_task WHERE id = %s'  # noqa: S608

    def select(task: int) -> list[Any]:
        found = server.execute(statement, (task,), prepare=True).fetchone()
        assert found is not None
        return list(found)

    def others() -> list[int]:
        sql = (
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND datname = current_database() AND pid <> pg_backend_pid()"
        )
        return [pid for (pid,) in server.execute(sql)]

    return Reader(select, server.info.backend_pid, others)


# The process that asks


class Cost(NamedTuple):
    """What one request took, in milliseconds."""

    waited: float
    """Until the answer was there."""
    worked: float
    """Processor time of those who answered it."""


class Costs(NamedTuple):
    """What requests of one kind took, in milliseconds."""

    median: float
    p95: float
    worked: float
    worked_p95: float


class Served(NamedTuple):
    """A store that a process serves."""

    connection: http.client.HTTPConnection
    process: int
    reader: Reader
    ids: list[int]
    """Some completed tasks."""
    waiting: int
    run: int
    """A run that has finished."""

    def some(self) -> int:
        """Return the id of a task."""
        return dice.choice(self.ids)

    def get(self, path: str) -> None:
        """Ask for a path; `{task}` in it stands for some task."""
        self.connection.request(
            "GET", path.format(task=self.some(), waiting=self.waiting, run=self.run)
        )
        answer = self.connection.getresponse()
        body = answer.read()
        assert answer.status == 200, f"{path}: {answer.status} {body[:200]!r}"

    def workers(self) -> list[int]:
        """Return the processes that answer."""
        return [self.process, *self.reader.others()]


dice = random.Random(1)


def measured(path: str, small: Served, large: Served, count: int) -> list[Costs]:
    """Return what a request costs on both stores, and the bare SELECTs that follow each."""
    of_small, of_large = small.workers(), large.workers()
    asking = [one for one in (os.getpid(), large.reader.backend) if one is not None]
    rounds = [
        (
            _cost(lambda: small.get(path), of_small),
            _cost(lambda: large.get(path), of_large),
            _cost(lambda: large.reader.select(large.some()), asking),
            _cost(lambda: large.get(BARE + "{task}"), of_large),
        )
        for _ in range(WARM_UP + count)
    ]
    return [_summary(costs) for costs in zip(*rounds[WARM_UP:], strict=True)]


def _cost(ask: Callable[[], object], workers: Sequence[int]) -> Cost:
    before, began = sum(map(processor_time, workers)), time.perf_counter()
    ask()
    took = time.perf_counter() - began
    return Cost(1000 * took, 1000 * (sum(map(processor_time, workers)) - before))


def _summary(costs: Sequence[Cost]) -> Costs:
    waited, worked = zip(*costs, strict=True)
    return Costs(*_median_and_p95(waited), *_median_and_p95(worked))


def _median_and_p95(values: Sequence[float]) -> tuple[float, float]:
    return statistics.median(values), statistics.quantiles(values, n=20)[18]


PATHS = {
    "one task": "/tasks/{task}",
    "a waiting task": "/tasks/{waiting}",
    "result": "/tasks/{task}/result",
    "pools": "/pools",
    "one pool": "/pools/pool-000",
    "history": "/pools/pool-000/history",
    "tasks": "/tasks?pool=pool-000",
    "tasks, queued": "/tasks?pool=pool-000&status=queued",
    "tasks, completed": "/tasks?pool=pool-000&status=completed",
    "tasks, failed": "/tasks?pool=pool-000&status=failed",
    "tasks, all pools": "/tasks?status=failed",
    "tasks by function": "/tasks?pool=pool-000&status=completed&function=function_3",
    "tasks by label": "/tasks?pool=pool-000&label=tenant%3Dt3",
    "tasks, none fits": "/tasks?pool=pool-000&status=completed&key=none",
    "dead letters": "/dead?pool=pool-000",
    "workers": "/workers",
    "runs": "/runs?pool=pool-000",
    "runs, finished": "/runs?pool=pool-000&status=finished",
    "one run": "/runs/{run}",
    "schedules": "/schedules",
    "events": "/events",
    "audit": "/audit",
    "audit, orders": "/audit?kind=control",
}
"""What the pages of the dashboard ask."""


HEADS = (
    ("median", "p95", "cpu", "cpu p95"),
    ("median", "p95", "cpu", "cpu p95"),
    ("p95", "cpu"),
    ("p95", "cpu", "cpu p95"),
    ("SELECT", "HTTP", "cpu/HTTP", "p95/HTTP", "small", "cpu/small"),
)


def vacuum(url: str) -> None:
    """Clean up now: autovacuum would do it a minute later, in the middle of the measurement."""
    if url.startswith("postgres"):
        import psycopg

        with psycopg.connect(url, autocommit=True) as server:
            server.execute("VACUUM ANALYZE")


@contextmanager
def filled(url: str, tasks: int) -> Iterator[Served]:
    """Fill a store, and serve it."""
    began = time.perf_counter()
    ids, waiting, run = asyncio.run(fill(url, tasks))
    vacuum(url)
    print(f"{tasks:,} tasks in {POOLS} pools, stored in {time.perf_counter() - began:.0f} s")
    with served(url, dice.sample(ids, min(len(ids), 500)), waiting, run) as found:
        yield found


@contextmanager
def served(url: str, ids: list[int], waiting: int, run: int) -> Iterator[Served]:
    """Start the process that serves a store."""
    command = [sys.executable, __file__, "--serve", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(process.stdout.readline()))
        yield Served(connection, process.pid, reader_of(url), ids, waiting, run)
        connection.close()
    finally:
        process.terminate()
        process.wait()


def report(small: Served, large: Served, count: int) -> None:
    """Ask everything, and print what it costs."""
    print("milliseconds: of the small store, the large one, a SELECT of it, a SELECT over HTTP;")
    print("then times: p95 of the large store to both SELECTs, its processor time to that of the")
    print("SELECT over HTTP (median, p95), p95 and processor time to those of the small store")
    print(" " * 18 + "  ".join("".join(f"{one:>9}" for one in heads) for heads in HEADS))
    for name, path in PATHS.items():
        print(_line(name, *measured(f"/api/v1{path}", small, large, count)), flush=True)


def _line(name: str, small: Costs, large: Costs, select: Costs, bare: Costs) -> str:
    times = (
        large.p95 / select.p95,
        large.p95 / bare.p95,
        large.worked / bare.worked,
        large.worked_p95 / bare.worked_p95,
        large.p95 / small.p95,
        large.worked / small.worked,
    )
    groups = (small, large, select[1:3], bare[1:], times)
    return f"{name:<18}" + "  ".join("".join(f"{one:9.2f}" for one in group) for group in groups)


def main() -> None:
    """Measure, or serve what is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, nargs=2, default=[10_000, 1_000_000])
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each kind")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
        return
    for store in options.stores:
        print(f"\n{store}")
        if store == "sqlite":
            with tempfile.TemporaryDirectory() as folder:
                urls = [f"sqlite:///{Path(folder) / name}" for name in ("small.db", "large.db")]
                _compare(urls, options.tasks, options.requests)
        else:
            with serve_postgres() as server, server.database() as one, server.database() as two:
                _compare([one, two], options.tasks, options.requests)


def _compare(urls: Sequence[str], tasks: Sequence[int], count: int) -> None:
    with filled(urls[0], tasks[0]) as small, filled(urls[1], tasks[1]) as large:
        report(small, large, count)


if __name__ == "__main__":
    main()
