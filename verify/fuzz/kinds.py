"""The kinds of pools that histories are generated for: each option alone, and together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.adaptive import adaptive
from millpond.core.rate import Rate
from millpond.core.spec import (
    BudgetSpec,
    Order,
    OrderKind,
    PoolSpec,
    bounded,
    fail_fast,
    fair_round_robin,
    fifo,
    lifo,
    priority,
    ring_buffer,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from verify.fuzz.streams import Streams

    Options = dict[str, Any]

POOL = "p"

BUDGETS = (
    BudgetSpec(name="slots", max_concurrent=9),
    BudgetSpec(name="tokens", max_concurrent=11, rates=(Rate(30, burst=40, of="weight"),)),
)

_WEIGHTS = {"k0": 2.0, "k1": 0.5, "k2": 3.0}
_POLICIES = ("block_submitter", "fail_submitter", "drop_oldest", "drop_newest")


def _rate_per_key(streams: Streams) -> Rate:
    rates = (Rate(2, per=3.0), Rate(2, per=0.3), Rate(1, per=1.0, burst=3), Rate(3, per=20.0))
    return streams.pick("spec.rate_per_key", rates)


def _rates(streams: Streams) -> tuple[Rate, ...]:
    by_starts = streams.pick(
        "spec.rates.starts", (Rate(12, burst=20), Rate(3), Rate(60, per=10.0, burst=7))
    )
    by_weight = streams.pick(
        "spec.rates.weight", (Rate(24, burst=30, of="weight"), Rate(6, burst=9, of="weight"))
    )
    both = ((by_starts,), (by_weight,), (by_starts, by_weight), (by_weight, by_starts))
    return streams.pick("spec.rates", both)


def _all_at_once(streams: Streams) -> Options:
    per_key = streams.pick("spec.max_per_key", (None, 1, 2))
    return {
        "order": fair_round_robin(weights=streams.pick("spec.weights", ({}, {}, _WEIGHTS))),
        "max_per_key": per_key,
        "rates": (Rate(30, burst=40, of="weight"), Rate(100)),
        "rate_per_key": _rate_per_key(streams),
        "budgets": ("tokens",),
        "backpressure": streams.pick(
            "spec.backpressure", (None, bounded(40, "fail_submitter"), bounded(30, "drop_oldest"))
        ),
    }


ANY_ORDER = tuple(Order(kind=kind) for kind in OrderKind)
"""One of each: a new order is drawn wherever all of them fit."""

KINDS: dict[str, Callable[[Streams], Options]] = {
    "fifo": lambda _: {"order": fifo()},
    "lifo": lambda _: {"order": lifo()},
    "priority": lambda _: {"order": priority()},
    "aging": lambda _: {"order": priority(aging=1.0)},
    "fair": lambda _: {"order": fair_round_robin()},
    "fair-weights": lambda _: {"order": fair_round_robin(weights=_WEIGHTS)},
    "fair-per-key-1": lambda _: {"order": fair_round_robin(), "max_per_key": 1},
    "fair-per-key-2": lambda _: {"order": fair_round_robin(), "max_per_key": 2},
    "fair-rate-per-key": lambda s: {
        "order": fair_round_robin(),
        "rate_per_key": _rate_per_key(s),
        "max_per_key": s.pick("spec.max_per_key", (None, 1, 2)),
    },
    "per-key": lambda s: {
        "order": s.pick("spec.order", (fifo(), lifo(), priority())),
        "max_per_key": s.pick("spec.max_per_key", (1, 2)),
    },
    "rate-per-key": lambda s: {
        "order": s.pick("spec.order", (fifo(), lifo(), priority())),
        "rate_per_key": _rate_per_key(s),
    },
    "rates": lambda s: {
        "order": s.pick("spec.order", ANY_ORDER),
        "rates": _rates(s),
    },
    "budgets": lambda s: {
        "order": s.pick("spec.order", (fifo(), priority(), fair_round_robin())),
        "budgets": s.pick("spec.budgets", (("slots",), ("tokens",), ("slots", "tokens"))),
    },
    "prefetch": lambda s: {
        "order": s.pick("spec.order", (fifo(), fifo(), priority(), fair_round_robin())),
        "prefetch": s.pick("spec.prefetch", (3, 6, 9)),
    },
    "ordered": lambda s: {
        "order": s.pick("spec.order", (fifo(), fair_round_robin())),
        "ordered": True,
    },
    "lanes": lambda s: {"order": s.pick("spec.order", (fifo(), fair_round_robin())), "lanes": 9},
    "bounded": lambda s: {
        "order": s.pick("spec.order", ANY_ORDER),
        "backpressure": bounded(
            s.pick("spec.depth", (5, 20, 60)),
            s.pick("spec.on_full", _POLICIES),
            s.pick("spec.per_key", (None, None, 3)),
        ),
    },
    "ring-buffer": lambda s: {
        "order": s.pick("spec.order", ANY_ORDER),
        "backpressure": ring_buffer(s.pick("spec.depth", (5, 20, 60))),
    },
    "fail-fast": lambda s: {
        "order": s.pick("spec.order", (fifo(), priority(), fair_round_robin())),
        "backpressure": fail_fast(),
    },
    "adaptive": lambda s: {
        "order": s.pick("spec.order", (fifo(), priority(), fair_round_robin())),
        "adaptive": adaptive(1, 9, initial=4),
    },
    "all-at-once": _all_at_once,
}
"""By name, the options of a pool of that kind, drawn from streams."""

DANGEROUS = (
    *("fair-rate-per-key", "all-at-once", "prefetch", "fair-per-key-2", "fair-per-key-1"),
    *("budgets", "rates", "fair", "lanes", "ordered", "per-key", "fair-weights"),
)
"""The kinds whose steps the server takes with the most statements: a share of `make test`."""


def spec_of(kind: str, streams: Streams) -> PoolSpec:
    """Return a pool of a kind."""
    limit = streams.pick("spec.max_concurrent", (7, 6, 5, 3, 2, 1, 7, 6))
    return PoolSpec(name=POOL, max_concurrent=limit, **KINDS[kind](streams))


def sharing(spec: PoolSpec) -> list[PoolSpec]:
    """Return the pools with which this one shares its budgets: one for each."""
    return [
        PoolSpec(name=name, order=fifo(), max_concurrent=9, budgets=(name,))
        for name in spec.budgets
    ]


def is_fair(spec: PoolSpec) -> bool:
    """Return whether the shares of a pool take turns."""
    return spec.order.kind is OrderKind.FAIR


def describe(spec: PoolSpec) -> str:
    """Return what a pool's options are, but for those that it leaves out."""
    return msgspec.json.encode(spec).decode()
