"""Applications with which something is wrong, each in its own way."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from millpond import Millpond
from millpond.cli import signals
from millpond.errors import StoreError
from millpond.pool.internals import internals_of
from millpond.runtime.worker import stop
from millpond.store.memory import MemoryStore

signals.GIVE_BACK_WITHIN = 0.3
stop.STOP_WITHIN = 0.3

memory = Millpond()
memory.pool("jobs")

empty = Millpond()
internals_of(empty).owner.make_store = lambda: MemoryStore(clock=time.time)

closed = Millpond()
closed.pool("jobs")


@closed.task
async def nothing_to_do() -> None:
    """Be there."""


def no_store() -> Any:
    """Be a store that is not there."""
    raise StoreError("cannot open work\x1b.db: the disk is full; make room and start again")


internals_of(closed).owner.make_store = no_store


class Away:
    """A store that fails, or does not answer at all, as a file says."""

    def __init__(self) -> None:
        self._store = MemoryStore(clock=time.time)
        self.view = self._store.view

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        if verb not in ("submit", "lease", "renew", "settle", "recover", "control"):
            raise AttributeError(verb)

        async def send(*args: Any, **kwargs: Any) -> Any:
            if state() == "silent":
                await asyncio.Event().wait()
            if state() == "away":
                raise ConnectionError("the store is away")
            return await getattr(self._store, verb)(*args, **kwargs)

        return send

    async def close(self) -> None:
        """Complain, as a store that cannot be reached may."""
        if state() == "away":
            raise ConnectionError("the store is away")


def state() -> str:
    """Read how the store is."""
    return Path(os.environ["STORE_IS"]).read_text("utf-8")


@asynccontextmanager
async def work() -> AsyncIterator[None]:
    """Submit a task at once, and one more when the store is back."""
    await job.submit()
    later = asyncio.create_task(come_back())
    yield
    later.cancel()


async def come_back() -> None:
    """Submit again when the store is said to be back."""
    while state() != "back":  # noqa: ASYNC110 - a file sends no event
        await asyncio.sleep(0.02)
    await back.submit()


flaky = Millpond(resources=work, lease=2.0)
internals_of(flaky).owner.make_store = cast("Any", Away)
jobs = flaky.pool("jobs", max_concurrent=2)


@jobs.task
async def job() -> None:
    """Go on until interrupted."""
    print("job begun", flush=True)  # noqa: T201
    await asyncio.Event().wait()


@jobs.task
async def back() -> None:
    """Come after the store was away."""
    print("back again", flush=True)  # noqa: T201


class Faulty:
    """A store that cancels no leases."""

    def __init__(self) -> None:
        self._store = MemoryStore(clock=time.time)
        self.view = self._store.view

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    async def lease(self, *_: Any, **__: Any) -> Any:
        """Break the promise that errors are exceptions."""
        raise asyncio.CancelledError


faulty = Millpond()
internals_of(faulty).owner.make_store = cast("Any", Faulty)
faulty.pool("jobs")


@asynccontextmanager
async def no_resources() -> AsyncIterator[Any]:
    """Fail before a worker has what it needs."""
    yield os.environ["NO_SUCH_SETTING"]


poor = Millpond(resources=no_resources)
internals_of(poor).owner.make_store = lambda: MemoryStore(clock=time.time)
poor.pool("jobs")


def logging_its_own_way() -> Millpond:
    """Set up logging as an application may."""
    logging.basicConfig(stream=sys.stderr, level="INFO", format="OWN %(message)s")
    made = Millpond()
    internals_of(made).owner.make_store = lambda: MemoryStore(clock=time.time)
    made.pool("jobs")
    return made
