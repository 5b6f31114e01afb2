"""Pool options: checked at birth, blamed by name, the same value on every store."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millpond
from millpond.core.order.rank import rank
from millpond.core.rate import Rate
from millpond.core.spec import (
    HEAVIEST,
    ONE_TURN,
    Backpressure,
    OnFull,
    Order,
    OrderKind,
    PoolSpec,
    bounded,
    changed_fixed_field,
    fail_fast,
    fair_round_robin,
    fifo,
    lifo,
    priority,
    ring_buffer,
)
from millpond.errors import ConfigError


def spec(**options: Any) -> PoolSpec:
    """A pool named `p`."""
    return PoolSpec(**{"name": "p", **options})


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("name='../x'", lambda: spec(name="../x")),
    ("name='a~b'", lambda: spec(name="a~b")),
    ("name='a\\n'", lambda: spec(name="a\n")),
    ("name='xxx", lambda: spec(name="x" * 200)),
    ("name='\\xe9'", lambda: spec(name="é")),
    ("name=None", lambda: spec(name=None)),
    ("max_concurrent=-1", lambda: spec(max_concurrent=-1)),
    ("max_concurrent=True", lambda: spec(max_concurrent=True)),
    ("max_concurrent=1.5", lambda: spec(max_concurrent=1.5)),
    ("max_per_key=0", lambda: spec(max_per_key=0)),
    ("max_callbacks=0", lambda: spec(max_callbacks=0)),
    ("lanes=0", lambda: spec(lanes=0, order=fifo())),
    ("ordered=True", lambda: spec(ordered=True, lanes=2, order=fifo())),
    ("queue='priority'", lambda: spec(ordered=True)),
    ("queue='lifo'", lambda: spec(lanes=2, order=lifo())),
    ("max_per_key=2", lambda: spec(lanes=2, order=fifo(), max_per_key=2)),
    ("max_concurrent=3", lambda: spec(lanes=2, order=fifo(), max_concurrent=3)),
    ("prefetch=-1", lambda: spec(prefetch=-1)),
    ("prefetch=2", lambda: spec(prefetch=2, lanes=2, order=fifo())),
    ("prefetch=3", lambda: spec(prefetch=3, ordered=True, order=fifo())),
    ("prefetch=4", lambda: spec(prefetch=4, order=lifo())),
    ("aging=0", lambda: priority(aging=0)),
    ("aging=nan", lambda: priority(aging=float("nan"))),
    ("fair_round_robin.key=''", lambda: fair_round_robin("")),
    ('fair_round_robin.key="a\'b"', lambda: fair_round_robin("a'b")),
    ("weights['a']=0", lambda: fair_round_robin(weights={"a": 0})),
    ("weights['a']=-1", lambda: fair_round_robin(weights={"a": -1})),
    ("weights['a']=inf", lambda: fair_round_robin(weights={"a": float("inf")})),
    ("weights['a']=2048", lambda: fair_round_robin(weights={"a": 2 * HEAVIEST})),
    ("weights['a']=1e-09", lambda: fair_round_robin(weights={"a": 1e-9})),
    ("depth=0", lambda: bounded(0)),
    ("depth='3'", lambda: bounded("3")),  # type: ignore[arg-type]
    ("per_key=0", lambda: bounded(1, per_key=0)),
    ("on_full='shrug'", lambda: bounded(1, "shrug")),
    ("on_full='fail_fast'", lambda: bounded(1, "fail_fast")),
    ("capacity=0", lambda: ring_buffer(0)),
]


@pytest.mark.parametrize(("start", "make"), REFUSED)
def test_a_bad_option_is_refused_at_birth(start: str, make: Callable[[], object]) -> None:
    """The message starts with the option and the value it cannot have."""
    with pytest.raises(ConfigError) as refused:
        make()
    assert start == refused.value.message[: len(start)]


@pytest.mark.parametrize("kind", [PoolSpec, Order, Backpressure, Rate])
def test_an_unknown_option_is_refused(kind: Callable[..., object]) -> None:
    """A misspelt option is an error, never ignored."""
    with pytest.raises(TypeError, match="max_concurent"):
        kind(max_concurent=3)


def test_the_constructors_say_what_they_mean() -> None:
    """Each queue order and each policy is one plain value."""
    assert OrderKind.PRIORITY == spec().order.kind
    assert (OrderKind.PRIORITY, 2.0) == (priority(2.0).kind, priority(2.0).aging)
    assert OrderKind.FIFO == fifo().kind
    assert OrderKind.LIFO == lifo().kind
    assert (OrderKind.FAIR, "tenant") == (
        fair_round_robin("tenant").kind,
        fair_round_robin("tenant").key,
    )
    assert Backpressure(on_full=OnFull.BLOCK_SUBMITTER, depth=9) == bounded(9)
    assert Backpressure(on_full=OnFull.RING_BUFFER, depth=9) == ring_buffer(9)
    assert Backpressure(on_full=OnFull.FAIL_FAST) == fail_fast()


@given(st.floats(1 / HEAVIEST, HEAVIEST))
def test_a_stride_is_a_whole_number_of_at_least_one(weight: float) -> None:
    """However heavy or light, a share moves on by an integer, so every store agrees on it."""
    stride = fair_round_robin(weights={"a": weight}).stride("a")
    assert isinstance(stride, int)
    assert stride >= 1
    assert abs(stride - ONE_TURN / weight) <= 0.5


def test_a_share_without_a_weight_has_weight_one() -> None:
    """Only what is named is heavier or lighter; the shared default share is not named."""
    order = fair_round_robin(weights={"acme": 2.0})
    assert [ONE_TURN // 2, ONE_TURN, ONE_TURN] == [order.stride(s) for s in ("acme", "b", None)]


def test_strict_pools_allow_one_task_per_lane() -> None:
    """Lanes and `ordered` mean one at a time; elsewhere the limit per key is `max_per_key`."""
    assert [1, 1, 3, None] == [
        spec(lanes=2, order=fifo()).unit_limit,
        spec(ordered=True, order=fair_round_robin()).unit_limit,
        spec(max_per_key=3).unit_limit,
        spec().unit_limit,
    ]


def test_what_cannot_change_under_a_backlog_is_named() -> None:
    """The answer is the first differing field with both values; other fields may change."""
    old = spec(lanes=2, order=fifo())
    assert ("lanes", 2, 3) == changed_fixed_field(old, spec(lanes=3, order=fifo()))
    assert ("queue", "fifo", "lifo") == changed_fixed_field(spec(order=fifo()), spec(order=lifo()))
    assert ("ordered", False, True) == changed_fixed_field(
        spec(order=fifo()), spec(order=fifo(), ordered=True)
    )
    assert changed_fixed_field(spec(), spec(max_concurrent=9, max_per_key=1)) is None


SPECS = [
    spec(),
    spec(max_concurrent=0, order=fair_round_robin("tenant", {"a": 2.5})),
    spec(lanes=8, max_concurrent=8, order=fifo(), backpressure=bounded(10, "drop_oldest", 2)),
    spec(rates=(Rate(1, 2.0, 3, "weight"),), rate_per_key=Rate(4), backpressure=fail_fast()),
]


@pytest.mark.parametrize("one", SPECS)
def test_a_spec_survives_storage(one: PoolSpec) -> None:
    """Encoded and decoded, a spec is the same value and is checked again."""
    assert one == msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=PoolSpec)
    assert one == msgspec.json.decode(msgspec.json.encode(one), type=PoolSpec)


@pytest.mark.parametrize("kind", OrderKind)
def test_every_order_has_a_public_function_of_its_name(kind: OrderKind) -> None:
    """A new member of OrderKind fails here until `millpond` exports its function."""
    assert kind in millpond.__all__
    assert kind is getattr(millpond, kind)().kind
    with pytest.raises(ConfigError, match=rf"{kind}\(\)"):
        PoolSpec(name="p", order="newest")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", OrderKind)
def test_every_order_has_a_rank(kind: OrderKind) -> None:
    """A new member of OrderKind fails here until `rank` knows it."""
    assert isinstance(rank(Order(kind=kind), 1, 1.0, 1), int)
