"""A server that crashes under load keeps everything that it has acknowledged."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from verify.servers.postgres import OwnServer, slow_server

from millpond.core.control import Declare, Register
from millpond.core.lease import LeaseRequest
from millpond.core.lifecycle import Transition
from millpond.core.settle import Settled, Settlement
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, NewTask
from millpond.errors import MillpondError
from millpond.store.postgres.connect import Durability
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import address_of
from millpond.store.protocol import Batch

pytestmark = [
    pytest.mark.real_loop,
    pytest.mark.stores("postgres"),
    pytest.mark.slow_disk,
]

FLUSH = 0.02
"""Seconds of a flush: long enough for a crash to come in the middle of one."""
SETTINGS = {"wal_writer_delay": "10s", "full_page_writes": "off"}
"""Only commits that wait for the disk bring the log there."""

SUBMITTERS, WORKERS, ENOUGH, SECONDS = 4, 4, 60, 60


@pytest.fixture(scope="module")
def slow() -> Iterator[OwnServer]:
    """Give a server with a slow disk; NoCompiler says what is missing for one."""
    with slow_server(FLUSH, SETTINGS) as server:
        yield server


class Load:
    """Submitters and workers with connections of their own, until the server is gone."""

    def __init__(self, url: str, durability: Durability) -> None:
        self._url, self._durability = url, durability
        self._ids = itertools.count(1)
        self.submitted: set[int] = set()
        """Tasks whose submit was acknowledged."""
        self.settled: set[int] = set()
        """Tasks whose completion was acknowledged."""
        self.written: set[int] = set()
        """Tasks that were completed together with a row of the user's."""
        self.enough = asyncio.Event()

    def open(self) -> PostgresStore:
        """Open a store as another process would."""
        return PostgresStore(address_of(self._url), durability=self._durability)

    async def prepare(self) -> None:
        """Declare the pool and make the table of the user."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS public.written (task bigint)")
        store = self.open()
        await store.control(Declare(PoolSpec(name="p", max_concurrent=1000)))
        await store.close()

    async def run(self, server: OwnServer) -> None:
        """Load the server until enough is acknowledged, and crash it under the load."""
        await self.prepare()
        roles: list[Callable[[PostgresStore, str], Awaitable[None]]] = [
            *[self._submits] * SUBMITTERS,
            *[self._works] * WORKERS,
            self._works_with_handlers,
        ]
        acting = [
            asyncio.create_task(self._until_gone(role, f"w{number}"))
            for number, role in enumerate(roles)
        ]
        async with asyncio.timeout(SECONDS):
            await self.enough.wait()
            await asyncio.to_thread(server.crash)
            await asyncio.gather(*acting)

    async def run_alone(self, server: OwnServer) -> None:
        """Submit one task after the other, and crash the server in the middle of one submit."""
        store = self.open()
        with suppress(MillpondError):
            crashed = None
            while crashed is None or not crashed.done():
                new = NewTask(id=next(self._ids), pool="p", call=Call("f"))
                await store.submit([Batch(tasks=(new,))])
                self.submitted.add(new.id)
                if crashed is None and len(self.submitted) > ENOUGH:
                    crashed = asyncio.create_task(asyncio.to_thread(server.crash))
        await store.close()
        assert crashed is not None
        await crashed

    async def _until_gone(
        self, role: Callable[[PostgresStore, str], Awaitable[None]], name: str
    ) -> None:
        store = self.open()
        # The server may crash during the handler's own statement: that raises the driver's error.
        with suppress(MillpondError, psycopg.Error):
            while True:
                await role(store, name)
        await store.close()

    async def _submits(self, store: PostgresStore, name: str) -> None:
        """Submit a plain task, which the server does by itself, and one with a key."""
        for key in (None, f"{name}-{next(self._ids)}"):
            new = NewTask(id=next(self._ids), pool="p", call=Call("f"), idempotency_key=key)
            await store.submit([Batch(tasks=(new,))])
            self.submitted.add(new.id)
        if len(self.submitted) > ENOUGH < len(self.settled) and self.written:
            self.enough.set()

    async def _works(self, store: PostgresStore, name: str) -> None:
        """Lease tasks and complete them."""
        for end in await self._leased(store, name, want=4):
            answer = await store.settle([end])
            assert answer.settled == (Settled.APPLIED,)
            self.settled.add(end.fence.task)

    async def _works_with_handlers(self, store: PostgresStore, name: str) -> None:
        """Lease a task, and complete it in one transaction with a row of the user's."""
        for end in await self._leased(store, name, want=1):

            def write(connection: Any, task: int = end.fence.task) -> None:
                connection.execute("INSERT INTO public.written VALUES (%s)", (task,))

            await store.settle_with(end, write)
            self.written.add(end.fence.task)

    async def _leased(self, store: PostgresStore, name: str, want: int) -> list[Settlement]:
        await store.control(Register(name, 60.0, owner=name))
        answer = await store.lease(LeaseRequest(pool="p", worker=name, want=want))
        return [Settlement(fence=one.fence, event=Transition.COMPLETE) for one in answer.leased]

    async def lost(self) -> dict[str, set[int]]:
        """Return the acknowledged submits, settles and rows that are not there."""
        store = self.open()
        try:
            there = await self._status(store, self.submitted)
            ended = await self._status(store, self.settled | self.written)
        finally:
            await store.close()
        with psycopg.connect(self._url) as connection:
            rows = {task for (task,) in connection.execute("SELECT task FROM public.written")}
        lost = {
            "submits": {task for task, status in there.items() if status == "unknown"},
            "settles": {task for task, status in ended.items() if status != "completed"},
            "rows": self.written - rows,
        }
        return {what: tasks for what, tasks in lost.items() if tasks}

    async def _status(self, store: PostgresStore, tasks: set[int]) -> dict[int, str]:
        found = await store.view.status(sorted(tasks))
        return dict(zip(sorted(tasks), found, strict=True))


async def lost_by_crash(server: OwnServer, durability: Durability) -> dict[str, set[int]]:
    """Crash a server under load, start it again, and return what is not there any more."""
    with server.database() as url:
        load = Load(url, durability)
        try:
            await load.run(server)
        finally:
            server.start()
        return await load.lost()


async def test_a_crash_loses_nothing_that_was_acknowledged(slow: OwnServer) -> None:
    """Neither submits nor settles nor what a handler wrote: each answer waits for the disk."""
    assert {} == await lost_by_crash(slow, "full")


async def test_a_crash_loses_nothing_acknowledged_to_a_process_that_writes_alone(
    slow: OwnServer,
) -> None:
    """It waits for the disk with the commit itself, and sends no second transaction."""
    with slow.database() as url:
        load = Load(url, "full")
        await load.prepare()
        try:
            await load.run_alone(slow)
        finally:
            slow.start()
        assert len(load.submitted) > ENOUGH
        assert {} == await load.lost()


async def test_without_the_second_statement_the_crash_loses_acknowledged_work(
    slow: OwnServer,
) -> None:
    """So the test above can fail: durability="normal" leaves out the wait, and nothing else."""
    assert {} != await lost_by_crash(slow, "normal")
