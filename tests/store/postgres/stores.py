"""Stores that tests open with a pool and a worker."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from millpond.core.control import Declare, Register
from millpond.core.spec import PoolSpec
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import Address

S = TypeVar("S", bound=PostgresStore)


@asynccontextmanager
async def with_pool(store: S, **options: Any) -> AsyncIterator[S]:
    """Declare the pool `p` and register the worker `w` in a store; close it in the end."""
    options.setdefault("max_concurrent", 5)
    try:
        await store.control(Declare(PoolSpec(name="p", **options)))
        await store.control(Register("w", 60.0, owner="me"))
        yield store
    finally:
        await store.close()


def opened(address: Address, **options: Any) -> AbstractAsyncContextManager[PostgresStore]:
    """Open a store that has its threads, with a pool and a worker."""
    return with_pool(PostgresStore(address, **options))
