"""Generated histories on the server, compared with the memory store; `make fuzz` plays thousands.

A history that diverged once is kept in `found/`, under a name that says what went wrong.
"""

import asyncio
from pathlib import Path

import pytest
from verify.fuzz.concurrent import play_concurrently
from verify.fuzz.differential import Turn, load, play, replay
from verify.fuzz.inbox import play_inbox
from verify.fuzz.kinds import DANGEROUS, KINDS, spec_of
from verify.fuzz.shrink import divergence
from verify.fuzz.streams import Streams
from verify.servers.schemas import Schemas

from millpond.core.control import Declare
from millpond.core.spec import Order, OrderKind, PoolSpec
from millpond.testing.simulation.history import Verb

FOUND = sorted((Path(__file__).parent / "found").glob("*.jsonl"))

SEEDS = 3
"""How many histories a test plays."""

CHOSEN = [
    *((kind, first) for kind in DANGEROUS for first in range(0, 3 * SEEDS, SEEDS)),
    *((kind, 0) for kind in KINDS if kind not in DANGEROUS),
]
"""The kinds of which the server does the most by itself are played three times as often."""


@pytest.mark.parametrize("order", OrderKind)
def test_every_order_has_histories_of_a_pool_without_other_options(order: OrderKind) -> None:
    """A new member of OrderKind fails here until a kind of pool has it, and nothing else."""
    pools = [spec_of(kind, Streams(0)) for kind in KINDS]
    assert order in [
        pool.order.kind
        for pool in pools
        if pool
        == PoolSpec(name=pool.name, max_concurrent=pool.max_concurrent, order=Order(kind=order))
    ]


@pytest.mark.rows("TR-01")
@pytest.mark.parametrize("saved", FOUND, ids=lambda path: path.stem)
def test_a_history_that_diverged_once_gives_equal_answers(
    saved: Path, postgres_schemas: Schemas
) -> None:
    """Every answer, record, task and count is that of the memory store, and the tables fit."""
    schema = postgres_schemas.take()
    asyncio.run(replay(schema, load(saved.read_bytes())))
    postgres_schemas.give_back(schema)


def test_what_is_left_out_of_a_history_may_be_its_beginning(postgres_schemas: Schemas) -> None:
    """Without its budget a pool is not declared, and then there is no pool to compare."""
    spec = PoolSpec(name="p", budgets=("tokens",))
    history = [Turn(0, Verb("control", Declare(spec), 1000.0, 1))]
    assert divergence(postgres_schemas, history) is None


@pytest.mark.rows("TR-01")
@pytest.mark.parametrize(("kind", "first"), CHOSEN)
def test_generated_histories_do_on_the_server_what_they_do_in_memory(
    kind: str, first: int, postgres_schemas: Schemas
) -> None:
    """Whatever kind of pool, and whichever of several stores carries out the next verb."""
    taken = 0
    for seed in range(first, first + SEEDS):
        schema = postgres_schemas.take()
        taken += asyncio.run(play(schema, kind, seed)).steps_taken
        postgres_schemas.give_back(schema)
    assert taken > 0


@pytest.mark.rows("TR-01")
@pytest.mark.parametrize(
    "kind", ["fair-rate-per-key", "all-at-once", "prefetch", "lanes", "per-key"]
)
def test_connections_that_work_at_once_keep_every_count(
    kind: str, postgres_schemas: Schemas
) -> None:
    """In any order: no limit is exceeded, the tables are consistent, and every task ends."""
    schema = postgres_schemas.take()
    asyncio.run(play_concurrently(schema, kind, 1, acts=30))
    postgres_schemas.give_back(schema)


@pytest.mark.rows("TR-01")
@pytest.mark.parametrize("kind", ["fifo", "fair", "fair-rate-per-key", "bounded", "lanes"])
def test_tasks_of_callers_transactions_are_queued_as_in_the_memory_store(
    kind: str, postgres_schemas: Schemas
) -> None:
    """Callers submit in open transactions, commit in another order or roll back, between verbs."""
    for seed in range(SEEDS):
        schema = postgres_schemas.take()
        asyncio.run(play_inbox(schema, kind, seed, acts=60))
        postgres_schemas.give_back(schema)
