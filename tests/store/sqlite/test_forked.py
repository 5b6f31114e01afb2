"""A forked child cannot use its parent's store: every call raises an error that says so."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millpond.core.control import Register
from millpond.errors import StoreForked
from millpond.store.sqlite import SqliteStore

WHAT = {
    "writes": lambda store: store.control(Register("w", 30.0)),
    "reads": lambda store: store.view.workers(),
    "looks": lambda store: store.changed(),
}


def in_child(ask: Callable[[SqliteStore], Awaitable[object]], store: SqliteStore) -> None:
    """Call the store in a forked child, which exits with 42 if the call raises the right error."""

    async def call() -> None:
        async with asyncio.timeout(10):
            await ask(store)

    try:
        asyncio.run(call())
    except StoreForked:
        os._exit(42)
    except BaseException:  # noqa: BLE001 - it must not go on as if it were the test
        os._exit(2)
    os._exit(1)


@pytest.mark.parametrize("what", WHAT)
def test_every_call_in_a_forked_child_raises(tmp_path: Path, what: str) -> None:
    """The child has no writer thread to answer, so the call would wait for ever."""
    store = SqliteStore(tmp_path / "work.db", owner="me")
    assert not asyncio.run(store.view.workers())
    child = os.fork()
    if child == 0:
        in_child(WHAT[what], store)

    assert 42 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    asyncio.run(store.close())
