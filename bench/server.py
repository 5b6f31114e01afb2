"""How long the dashboard's requests take on a store of many tasks, beside a bare SELECT.

    make bench-server                          10,000 and 1,000,000 tasks, SQLite and PostgreSQL
    make bench-server ARGS="--tasks 1000 100000 --stores sqlite"

Two processes serve a small and a large store with uvicorn. Another process asks both in turn, one
request at a time over one connection each. After that it reads one row by its primary key twice,
so that whatever else the machine does meanwhile slows all of them down:

SELECT        by the driver, in the asking process: no HTTP at all
over HTTP     by a bare ASGI app in the serving process, with a thread like the store's: what any
              answer over HTTP from Python costs at least
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
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
from verify.servers.postgres import serve as serve_postgres

from millpond import Millpond
from millpond.core.control import Register
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settlement
from millpond.core.task import Call, NewTask
from millpond.pool.internals import internals_of
from millpond.store.protocol import Batch

POOLS = 100
FAILS = 50
"""One task in so many fails."""

WAITS = 10
"""One task in so many is left in the queue."""

BATCH = 1000
REQUESTS = 300
WARM_UP = 30
BARE = "/bare/"


Select = Callable[[int], list[Any]]
"""Reads the row of a task by its primary key."""


# A store of many tasks


async def fill(url: str, tasks: int) -> list[int]:
    """Store tasks: most completed, some failed, some waiting; return the ids of some."""
    mp = Millpond(url, work=False)
    names = [f"pool-{number:03}" for number in range(POOLS)]
    for name in names:
        mp.pool(name, max_concurrent=BATCH, max_per_key=BATCH)
    some: list[int] = []
    async with mp:
        store = internals_of(mp).runtime.store
        await store.control(Register("filler", 3600.0, "filler-1-00000000", None))
        # Half of the tasks are in one pool: a page of it must not be slower than others.
        for first in range(0, tasks, BATCH):
            pool = names[0] if first // BATCH % 2 else names[first // BATCH % POOLS]
            count = min(BATCH, tasks - first)
            stored = await _store_batch(store, mp, pool, count)
            some += [*stored[:4], stored[-1]]
    return some


async def _store_batch(store: Any, mp: Millpond, pool: str, count: int) -> list[int]:
    new = [
        NewTask(
            id=internals_of(mp).runtime.new_id(),
            pool=pool,
            call=Call(f"function_{number % 7}", b'{"order":12345,"customer":"somebody"}'),
            key=f"customer-{number % 50}",
            labels={"tenant": f"t{number % 5}"},
            attempts=1,
        )
        for number in range(count)
    ]
    await store.submit([Batch(tasks=tuple(new))])
    run = count - count // WAITS
    answer = await store.lease(LeaseRequest(pool=pool, worker="filler", want=run))
    error = msgspec.msgpack.encode({"type": "ValueError", "message": "no such order 17"})
    await store.settle(
        [
            Settlement(fence=one.fence, event=Transition.FAIL, error=error)
            if number % FAILS == 0
            else Settlement(fence=one.fence, event=Transition.COMPLETE, result=b"true")
            for number, one in enumerate(answer.leased)
        ]
    )
    return [one.id for one in new]


# The process that serves


async def serve(url: str) -> None:
    """Serve the dashboard of a store, and a bare SELECT beside it."""
    import uvicorn

    from millpond.server import app

    thread = ThreadPoolExecutor(1)
    select = _bare(url)

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
            either, "127.0.0.1", 0, log_config=None, access_log=False, lifespan="off"
        )
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0.01)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await running


def _bare(url: str) -> Select:
    """Return what reads the row of a task by its primary key."""
    if url.startswith("sqlite"):
        file = url.removeprefix("sqlite:///")
        connection = sqlite3.connect(file, check_same_thread=False)
        sql = "SELECT id, place FROM millpond_task WHERE id = ?"

        def read(task: int) -> list[Any]:
            return list(connection.execute(sql, (task,)).fetchone())

        return read
    import psycopg

    server = psycopg.connect(url, autocommit=True)
    schema = server.execute(
        "SELECT schemaname FROM pg_tables WHERE tablename = 'millpond_task'"
    ).fetchone()
    assert schema is not None
    statement = f'SELECT id, place FROM "{schema[0]}".millpond_task WHERE id = %s'  # noqa: S608

    def ask(task: int) -> list[Any]:
        found = server.execute(statement, (task,), prepare=True).fetchone()
        assert found is not None
        return list(found)

    return ask


# The process that asks


Times = tuple[float, float]
"""The median and the 95th percentile, in milliseconds."""


class Served(NamedTuple):
    """A store that a process serves."""

    connection: http.client.HTTPConnection
    select: Select
    ids: list[int]

    def some(self) -> int:
        """Return the id of a task."""
        return dice.choice(self.ids)


dice = random.Random(1)


def measured(path: str, small: Served, large: Served, count: int) -> list[Times]:
    """Return how long a request takes on both stores, and the bare SELECTs that follow each."""
    rounds = [
        (
            _took(lambda: _get(small.connection, path.format(task=small.some()))),
            _took(lambda: _get(large.connection, path.format(task=large.some()))),
            _took(lambda: large.select(large.some())),
            _took(lambda: _get(large.connection, f"{BARE}{large.some()}")),
        )
        for _ in range(WARM_UP + count)
    ]
    return [_summary(times) for times in zip(*rounds[WARM_UP:], strict=True)]


def _took(ask: Callable[[], object]) -> float:
    began = time.perf_counter()
    ask()
    return 1000 * (time.perf_counter() - began)


def _get(connection: http.client.HTTPConnection, path: str) -> None:
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, f"{path}: {answer.status} {body[:200]!r}"


def _summary(times: Sequence[float]) -> Times:
    return statistics.median(times), statistics.quantiles(times, n=20)[18]


PATHS = {
    "one task": "/tasks/{task}",
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
    "schedules": "/schedules",
    "events": "/events",
    "audit": "/audit",
    "audit, orders": "/audit?kind=control",
}
"""What the pages of the dashboard ask."""


@contextmanager
def served(url: str, tasks: int) -> Iterator[Served]:
    """Fill a store and start the process that serves it."""
    began = time.perf_counter()
    ids = asyncio.run(fill(url, tasks))
    print(f"{tasks:,} tasks in {POOLS} pools, stored in {time.perf_counter() - began:.0f} s")
    command = [sys.executable, __file__, "--serve", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(process.stdout.readline()))
        yield Served(connection, _bare(url), dice.sample(ids, min(len(ids), 500)))
        connection.close()
    finally:
        process.terminate()
        process.wait()


def report(urls: Sequence[str], tasks: Sequence[int], count: int) -> None:
    """Fill a small and a large store, ask everything, and print how long it took."""
    with served(urls[0], tasks[0]) as small, served(urls[1], tasks[1]) as large:
        heads = [f"{one:,} tasks" for one in tasks]
        print(f"{'milliseconds':<18}" + "".join(f"{one:>18}" for one in heads), end="")
        print(f"{'SELECT':>15}{'over HTTP':>15}   p95, times")
        print(" " * 18 + "    median     p95" * 2 + " median    p95" * 2, end="")
        print("   SELECT  HTTP  small")
        for name, path in PATHS.items():
            _line(name, *measured(f"/api/v1{path}", small, large, count))


def _line(name: str, small: Times, large: Times, select: Times, bare: Times) -> None:
    shown = "".join(f"  {one:8.2f}{two:8.2f}" for one, two in (small, large))
    floor = "".join(f"  {one:6.3f} {two:6.3f}" for one, two in (select, bare))
    times = [large[1] / other[1] for other in (select, bare, small)]
    print(f"{name:<18}{shown}{floor}  {times[0]:7.1f}{times[1]:6.1f}{times[2]:7.2f}", flush=True)


def main() -> None:
    """Measure, or serve what is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, nargs=2, default=[10_000, 1_000_000])
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each kind")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        asyncio.run(serve(asked.serve))
        return
    for store in asked.stores:
        print(f"\n{store}")
        if store == "sqlite":
            with tempfile.TemporaryDirectory() as folder:
                urls = [f"sqlite:///{Path(folder) / name}" for name in ("small.db", "large.db")]
                report(urls, asked.tasks, asked.requests)
        else:
            with serve_postgres() as server, server.database() as one, server.database() as two:
                report([one, two], asked.tasks, asked.requests)


if __name__ == "__main__":
    main()
