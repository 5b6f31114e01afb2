"""How long the dashboard's requests take on a store of many tasks, beside a bare SELECT.

    make bench-server                          10,000 and 1,000,000 tasks, SQLite and PostgreSQL
    make bench-server ARGS="--tasks 100000 --stores sqlite"

A process serves the store with uvicorn. Beside the dashboard it has one route that reads one row
by its primary key, with the same driver and a thread like the store's: nothing can be quicker. So
both sides of a ratio pay for the same HTTP stack. Another process asks, one request at a time over
one connection, and after every request it asks for a bare SELECT: whatever else the machine does
meanwhile slows both down.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
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
from typing import Any

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


async def serve(url: str, ids: list[int]) -> None:
    """Serve the dashboard of a store, and a bare SELECT beside it."""
    import uvicorn
    from fastapi import FastAPI, Response

    from millpond.server import app

    outer = FastAPI(openapi_url=None)
    thread = ThreadPoolExecutor(1)
    select = _bare(url)

    @outer.get("/bare/{task}")
    async def bare(task: int) -> Response:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(thread, select, task)
        return Response(msgspec.json.encode(found), media_type="application/json")

    mp = Millpond(url, work=False)
    async with mp:
        outer.mount("/m", app(mp, max_rate=1_000_000))
        config = uvicorn.Config(outer, "127.0.0.1", 0, log_config=None, access_log=False)
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0.01)
        print(json.dumps([server.servers[0].sockets[0].getsockname()[1], ids]), flush=True)
        await running


def _bare(url: str) -> Callable[[int], list[Any]]:
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


def measured(
    port: int, paths: Callable[[], str], bare: Callable[[], str], count: int
) -> tuple[Times, Times]:
    """Return how long a request takes, and the bare SELECT that follows each of them."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    pairs = [
        (_took(connection, paths()), _took(connection, bare())) for _ in range(WARM_UP + count)
    ]
    connection.close()
    asked, selected = zip(*pairs[WARM_UP:], strict=True)
    return _summary(asked), _summary(selected)


def _took(connection: http.client.HTTPConnection, path: str) -> float:
    began = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    took = time.perf_counter() - began
    assert answer.status == 200, f"{path}: {answer.status} {body[:200]!r}"
    return 1000 * took


def _summary(times: Sequence[float]) -> Times:
    return statistics.median(times), statistics.quantiles(times, n=20)[18]


def requests(ids: list[int]) -> dict[str, Callable[[], str]]:
    """Return what the pages of the dashboard ask."""
    dice = random.Random(1)
    fixed = {
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
        "tasks, none fits": "/tasks?pool=pool-000&status=completed&key=nobody",
        "dead letters": "/dead?pool=pool-000",
        "workers": "/workers",
        "runs": "/runs?pool=pool-000",
        "audit": "/audit",
    }
    found: dict[str, Callable[[], str]] = {
        "one task": lambda: f"/m/api/v1/tasks/{dice.choice(ids)}",
    }
    for name, path in fixed.items():
        found[name] = lambda path=path: f"/m/api/v1{path}"  # type: ignore[misc]
    return found


@contextmanager
def served(url: str, ids: list[int]) -> Iterator[int]:
    """Start the process that serves; give its port."""
    command = [sys.executable, __file__, "--serve", url, "--ids", json.dumps(ids)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port, _ = json.loads(process.stdout.readline())
        yield port
    finally:
        process.terminate()
        process.wait()


def report(store: str, url: str, tasks: int, count: int) -> None:
    """Fill a store, ask everything, and print how long it took."""
    began = time.perf_counter()
    ids = asyncio.run(fill(url, tasks))
    dice = random.Random(2)
    some = dice.sample(ids, min(len(ids), 500))
    took = time.perf_counter() - began
    print(f"\n{store}, {tasks:,} tasks in {POOLS} pools (stored in {took:.0f} s)")
    print(f"{'':<20} {'request, ms':>17} {'bare SELECT, ms':>17} {'times bare':>17}")
    print(f"{'':<20}{' {:>8} {:>8}'.format('median', 'p95') * 3}")
    with served(url, some) as port:
        for name, path in requests(some).items():
            times = measured(port, path, lambda: f"/bare/{dice.choice(some)}", count)
            _line(name, *times)


def _line(name: str, asked: Times, bare: Times) -> None:
    ratios = [one / other for one, other in zip(asked, bare, strict=True)]
    shown = " ".join(f"{one:8.2f}" for one in (*asked, *bare))
    print(f"{name:<20} {shown} {ratios[0]:8.1f} {ratios[1]:8.1f}", flush=True)


def main() -> None:
    """Measure, or serve what is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each kind")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--ids", default="[]", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        asyncio.run(serve(asked.serve, json.loads(asked.ids)))
        return
    for store in asked.stores:
        for tasks in asked.tasks:
            if store == "sqlite":
                with tempfile.TemporaryDirectory() as folder:
                    report(store, f"sqlite:///{Path(folder) / 'work.db'}", tasks, asked.requests)
            else:
                with serve_postgres() as server, server.database() as url:
                    report(store, url, tasks, asked.requests)


if __name__ == "__main__":
    main()
