"""Pools over several databases: each tenant's work is in one of them."""

import asyncio
from zlib import crc32

from millpond import Handle, Millpond, fair_round_robin

URLS = ["sqlite:///reviews-0.db", "sqlite:///reviews-1.db"]  # in production: PostgreSQL servers


async def review(tenant: str, number: int) -> str:
    await asyncio.sleep(0.002)
    return f"{tenant} #{number}"


def database(url: str) -> Millpond:
    """Return a Millpond for one database, with the same pool and task as the others."""
    mp = Millpond(url)
    pool = mp.pool("reviews", max_concurrent=8, max_per_key=2, queue=fair_round_robin("tenant"))
    pool.task(key="tenant")(review)
    return mp


databases = [database(url) for url in URLS]
first, second = databases  # one fleet of workers for each: millpond worker several_databases:first


def database_of(tenant: str) -> Millpond:
    """Return the database of a tenant: always the same one, in every process."""
    return databases[crc32(tenant.encode()) % len(databases)]


async def submit(tenant: str, number: int) -> Handle[object]:
    arguments = {"tenant": tenant, "number": number}
    return await database_of(tenant).submit("reviews", "review", arguments)


async def main() -> None:
    async with first, second, first.worker(), second.worker():
        handles = [await submit(tenant, number) for tenant in ("acme", "bolt") for number in (1, 2)]
        results = await asyncio.gather(*handles)
        print(*results, sep=", ")
        assert results == ["acme #1", "acme #2", "bolt #1", "bolt #2"]
        assert database_of("acme") is not database_of("bolt")


if __name__ == "__main__":
    asyncio.run(main())
