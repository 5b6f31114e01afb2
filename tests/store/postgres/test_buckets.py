"""The server charges rates by the batch as the core does start by start, to the microsecond."""

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from verify.servers.schemas import Schemas

from millpond.core.bucket import Bucket, charge, correct, fresh, ready_at
from millpond.core.rate import Rate
from millpond.core.ticks import rounded, seconds, ticks
from millpond.store.postgres.quoting import qualified

pytestmark = pytest.mark.real_loop

RATES = (
    (Rate(60, per=7.0, burst=40, of="weight"),),
    (Rate(30, per=1.0), Rate(1000, per=3.0, of="weight")),
    (),
)
ROUNDS = 150

_buckets = msgspec.json.Decoder(list[Bucket]).decode


@pytest.fixture
def ask(postgres_schemas: Schemas) -> Iterator[Callable[..., Any]]:
    """Give what calls a function of the server; arguments other than integers become JSON."""
    schema = postgres_schemas.take()
    connection = schema.connection()
    name = schema.address.schema

    def call(function: str, *given: Any) -> Any:
        texts = [
            one if isinstance(one, int) else msgspec.json.encode(one).decode() for one in given
        ]
        kinds = ["%s::bigint" if isinstance(one, int) else "%s::jsonb" for one in given]
        called = qualified(f"SELECT * FROM millpond_{function}({', '.join(kinds)})", name)  # noqa: S608
        connection.driver.execute(f'SET search_path = "{name}"'.encode())
        return connection.driver.execute(called.encode(), texts).fetchone()

    yield call
    connection.close()
    postgres_schemas.give_back(schema)


def taken_one_by_one(
    rates: tuple[Rate, ...], buckets: list[Bucket], weights: list[int], now: float
) -> bool:
    """Start tasks as long as the rates let them; return whether all of them did."""
    for weight in weights:
        if ready_at(rates, buckets, weight, now) > now:
            return False
        charge(rates, buckets, weight, now)
    return True


@pytest.mark.parametrize("rates", RATES)
def test_a_batch_costs_what_its_tasks_cost(
    ask: Callable[..., Any], rates: tuple[Rate, ...]
) -> None:
    """It fits if each of them does; and what is remembered for refunds is the same."""
    dice, now, buckets, fitting = random.Random(7), 1000.0, fresh(rates), 0
    started: list[tuple[float, int]] = []
    for _ in range(ROUNDS):
        now = rounded(now + dice.choice((0.0, 0.000001, 0.01, 0.5, 3.0)))
        weights = [dice.randint(1, 5) for _ in range(dice.choice((1, 1, 2, 7)))]
        after = deepcopy(buckets)
        fits = taken_one_by_one(rates, after, weights, now)
        charged, fits_there = ask("charge", rates, buckets, len(weights), sum(weights), ticks(now))
        assert fits == fits_there
        if fits:
            fitting += 1
            assert after == _buckets(msgspec.json.encode(charged))
            buckets = after
            started += [(now, weight) for weight in weights]
        while started and dice.random() < 0.3:
            since, weight = started.pop(dice.randrange(len(started)))
            correct(rates, buckets, weight, dice.randint(0, weight + 1), since=since, now=now)
        weight = dice.randint(1, 9)
        (moment,) = ask("ready_at", rates, buckets, weight, ticks(now))
        assert ready_at(rates, buckets, weight, now) == seconds(moment)
    assert fitting > ROUNDS // 4
    assert fitting < ROUNDS or not rates


def test_many_low_points_are_merged_alike(ask: Callable[..., Any]) -> None:
    """A bucket that is never full again remembers no more than sixteen of them."""
    rates = (Rate(1000, per=1.0, burst=10_000, of="weight"),)
    dice, buckets, now = random.Random(3), fresh(rates), 1000.0
    for _ in range(40):
        now = rounded(now + 0.01)
        weights = [dice.randint(10, 90) for _ in range(3)]
        charged, fits = ask("charge", rates, buckets, len(weights), sum(weights), ticks(now))
        assert taken_one_by_one(rates, buckets, weights, now)
        assert fits
        assert buckets == _buckets(msgspec.json.encode(charged))
    assert len(buckets[0].lows) == 16
