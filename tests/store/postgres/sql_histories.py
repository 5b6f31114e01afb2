"""Seeded histories on the memory store and a server, which must agree."""

from typing import Any

from tests.store.postgres.test_fast_path import POOLS, Two, compare
from verify.servers.schemas import InlinePostgresStore, Schema

from millpond.core.rate import Rate
from millpond.core.spec import PoolSpec, bounded, fair_round_robin, fifo
from millpond.store.memory import MemoryStore
from millpond.store.postgres.store import PostgresStore

KINDS = {
    **POOLS,
    "bounded": PoolSpec(
        name="p", order=fifo(), max_concurrent=7, backpressure=bounded(30, "fail_submitter")
    ),
    "slow": PoolSpec(name="p", order=fifo(), max_concurrent=7, rates=(Rate(2, per=10.0),)),
    "slow keys": PoolSpec(
        name="p", order=fair_round_robin(), max_concurrent=7, rate_per_key=Rate(3, per=10.0)
    ),
}


ACTS = 60


async def run_on_both(schema: Schema, kind: str, seed: int) -> None:
    """Run a seeded history on the memory store and the server, and compare all answers."""
    memory, server = MemoryStore(audit_limit=None), Undaunted(schema)
    two = Two(seed, KINDS[kind], (memory, server))
    try:
        await two.begin()
        for _ in range(ACTS):
            await two.act()
        await compare(two)
    finally:
        await server.close()


class Undaunted(InlinePostgresStore):
    """A store that asks the server again, however often it has refused."""

    def _heard(self, which: str, row: Any) -> Any:
        answer = PostgresStore._heard(self, which, row)
        self._skips.clear()
        return answer
