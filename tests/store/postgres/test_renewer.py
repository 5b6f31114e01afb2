"""Renewals over a connection of their own: how long each is waited for."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from millpond.core.control import Register
from millpond.errors import OutcomeUnknown
from millpond.store.postgres import fast_path_store as stepping
from millpond.store.postgres.connect import connect
from millpond.store.postgres.lock import to_write
from millpond.store.postgres.store import PostgresStore
from millpond.store.postgres.url import Address, address_of
from millpond.store.protocol import RenewAnswer

pytestmark = pytest.mark.real_loop

LEASE = 60.0


@contextmanager
def writers_locked_out(address: Address) -> Iterator[None]:
    """Hold the lock of writers."""
    with connect(address) as holder:
        holder.execute("BEGIN")
        holder.execute(to_write(address.schema).encode())
        yield


async def renewed(store: PostgresStore) -> RenewAnswer:
    """Renew as processes do: over a new connection, if the one before was given up."""
    renewer = store.renewer()
    try:
        return await asyncio.to_thread(renewer.renew, "w", LEASE)
    finally:
        renewer.close()


async def test_a_slow_server_is_waited_for_longer_each_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One connection may be dead; to give up one after another makes a slow server slower."""
    monkeypatch.setattr(stepping, "_HEARD_WITHIN", 0.05 / LEASE)
    address = address_of(postgres_url)
    store = PostgresStore(address)
    await store.control(Register("w", LEASE))
    for waits in ("0.05", "0.1", "0.2", "0.2"), ("0.05",):
        with writers_locked_out(address):
            for seconds in waits:
                with pytest.raises(OutcomeUnknown, match=f"silent for {seconds} s"):
                    await renewed(store)
        monkeypatch.setattr(stepping, "_HEARD_WITHIN", 1.0)
        assert (await renewed(store)).alive
        monkeypatch.setattr(stepping, "_HEARD_WITHIN", 0.05 / LEASE)
    await store.close()
