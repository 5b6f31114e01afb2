"""The settings of a pool: frozen values, checked when they are made."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.adaptive import Adaptive
from millpond.core.event import SYSTEM, TriggerSpec
from millpond.core.rate import Rate
from millpond.core.retention import Retention
from millpond.core.task import CALLBACKS
from millpond.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millpond.core.validation import Seconds

ONE_TURN = 1 << 20
"""The stride of a share of weight 1 in the fair ring; integers keep every store exact."""

HEAVIEST = 1024
"""The largest weight of a share; the smallest is 1 / HEAVIEST."""


class OrderKind(StrEnum):
    """The ways to order a queue."""

    PRIORITY = "priority"
    FIFO = "fifo"
    LIFO = "lifo"
    FAIR = "fair_round_robin"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Which queued task is next. Build it with `priority()`, `fifo()`, `lifo()` and so on."""

    kind: OrderKind
    aging: float | None = None
    key: str = "key"
    weights: dict[str, float] = {}

    def __post_init__(self) -> None:
        check.instance("queue", self.kind, OrderKind)
        if self.aging is not None:
            check.seconds("aging", self.aging, above=0.0)
        if self.kind is OrderKind.FAIR:
            check.name("fair_round_robin.key", self.key)
        for key, weight in self.weights.items():
            check.storable("weights", key, bounds.MAX_KEY)
            check.number(f"weights[{key!r}]", weight, above=0.0)
            if not 1 / HEAVIEST <= weight <= HEAVIEST:
                raise ConfigError(
                    f"weights[{key!r}]", weight, f"must be from 1/{HEAVIEST} to {HEAVIEST}"
                )

    def stride(self, share: str | None) -> int:
        """Return how far one start moves a share on in the ring: less for a heavier share."""
        return round(ONE_TURN / self.weights.get(share or "", 1.0))


def priority(aging: Seconds | None = None) -> Order:
    """Highest priority first, first come first among equals.

    With `aging`, every `aging` seconds of waiting count as much as one step of priority.
    """
    seconds = None if aging is None else check.seconds("aging", aging, above=0.0)
    return Order(kind=OrderKind.PRIORITY, aging=seconds)


def fifo() -> Order:
    """First come, first served; priority is recorded and ignored."""
    return Order(kind=OrderKind.FIFO)


def lifo() -> Order:
    """Newest first."""
    return Order(kind=OrderKind.LIFO)


def fair_round_robin(key: str = "key", weights: Mapping[str, float] | None = None) -> Order:
    """One task per key and turn, first come first served within a key."""
    return Order(kind=OrderKind.FAIR, key=key, weights=dict(weights or {}))


class OnFull(StrEnum):
    """What a full pool does with one more task."""

    BLOCK_SUBMITTER = "block_submitter"
    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    FAIL_SUBMITTER = "fail_submitter"
    FAIL_FAST = "fail_fast"
    RING_BUFFER = "ring_buffer"


class Backpressure(msgspec.Struct, frozen=True, kw_only=True):
    """A bound on tasks from outside that were never claimed, and what happens beyond it."""

    on_full: OnFull
    depth: int | None = None
    per_key: int | None = None
    per_lane: int | None = None
    """The same for each lane of a pool with lanes."""

    def __post_init__(self) -> None:
        check.instance("on_full", self.on_full, OnFull)
        for name in ("depth", "per_key", "per_lane"):
            if (bound := getattr(self, name)) is not None:
                check.integer(name, bound, least=1)


def bounded(
    depth: int,
    on_full: str = OnFull.BLOCK_SUBMITTER,
    per_key: int | None = None,
    per_lane: int | None = None,
) -> Backpressure:
    """Keep at most `depth` waiting tasks, at most `per_key` of one key, `per_lane` of one lane."""
    choices = ("block_submitter", "drop_oldest", "drop_newest", "fail_submitter")
    check.integer("depth", depth, least=1)
    policy = OnFull(check.one_of("on_full", on_full, choices))
    return Backpressure(on_full=policy, depth=depth, per_key=per_key, per_lane=per_lane)


def fail_fast() -> Backpressure:
    """Refuse tasks that cannot start at once."""
    return Backpressure(on_full=OnFull.FAIL_FAST)


def ring_buffer(capacity: int) -> Backpressure:
    """Keep the newest `capacity` waiting tasks; drop the oldest."""
    check.integer("capacity", capacity, least=1)
    return Backpressure(on_full=OnFull.RING_BUFFER, depth=capacity)


_ORDERS = " or ".join(f"{kind}()" for kind in OrderKind).replace(" or ", ", ", len(OrderKind) - 2)
_POLICIES = "bounded(...), fail_fast() or ring_buffer(...)"
_RATES = "a Rate, such as Rate(100, per=60)"


class BudgetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that pools share: how many of their tasks run at once, and how fast they start."""

    name: str
    max_concurrent: int
    rates: tuple[Rate, ...] = ()

    def __post_init__(self) -> None:
        check.name("name", self.name)
        check.integer("max_concurrent", self.max_concurrent, least=0)
        for rate in self.rates:
            check.instance("rate", rate, Rate, _RATES)


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting of a pool, the same on every store."""

    name: str
    max_concurrent: int = 1
    order: Order = Order(kind=OrderKind.PRIORITY)
    backpressure: Backpressure | None = None
    max_per_key: int | None = None
    rates: tuple[Rate, ...] = ()
    rate_per_key: Rate | None = None
    lanes: int | None = None
    ordered: bool = False
    max_callbacks: int = 16
    """How many on_complete callbacks of the pool may run at once, outside max_concurrent."""
    prefetch: int = 0
    """How many tasks a worker may claim beyond those it runs."""
    budgets: tuple[str, ...] = ()
    """The budgets it shares with other pools: each must allow a start."""
    adaptive: Adaptive | None = None
    """The bounds between which max_concurrent adapts, from its declared value on."""
    trigger: TriggerSpec | None = None
    """The trigger whose deliveries it holds, if any."""
    keep: Retention | None = None
    """How long ended tasks are kept; None = the default."""
    attempts: int = 3
    """How often a task may run that does not say so: one submitted by name, over HTTP or in SQL."""

    def __post_init__(self) -> None:
        # Only the queue of a pool's callbacks has that suffix, and only internal pools that prefix.
        plain = check.text("name", self.name).removesuffix(CALLBACKS).removeprefix(SYSTEM)
        check.name("name", plain)
        check.instance("queue", self.order, Order, _ORDERS)
        if self.backpressure is not None:
            check.instance("backpressure", self.backpressure, Backpressure, _POLICIES)
            if self.backpressure.per_lane is not None and self.lanes is None:
                instead = ": each key of an ordered pool is a lane, use per_key" * self.ordered
                raise ConfigError(
                    "per_lane", self.backpressure.per_lane, f"needs a pool with lanes{instead}"
                )
        for rate in self.rates:
            check.instance("rate", rate, Rate, _RATES)
        if self.rate_per_key is not None:
            check.instance("rate_per_key", self.rate_per_key, Rate, _RATES)
            if self.rate_per_key.of != "starts":
                raise ConfigError("rate_per_key", self.rate_per_key, "can only count starts")
        check.integer("max_concurrent", self.max_concurrent, least=0)
        check.integer("max_callbacks", self.max_callbacks, least=1)
        check.integer("attempts", self.attempts, least=1)
        if check.integer("prefetch", self.prefetch):
            self._check_prefetch()
        for name in self.budgets:
            check.name("budgets", name)
        if len(set(self.budgets)) < len(self.budgets):
            raise ConfigError("budgets", list(self.budgets), "contains a name twice")
        if self.adaptive is not None:
            check.instance("adaptive", self.adaptive, Adaptive)
        if self.max_per_key is not None:
            check.integer("max_per_key", self.max_per_key, least=1)
        if self.lanes is not None:
            check.integer("lanes", self.lanes, least=1)
        if self.strict:
            self._check_strict()

    @property
    def strict(self) -> bool:
        """Whether lanes run one task at a time, in sequence, retries included."""
        return self.ordered or self.lanes is not None

    @property
    def unit_limit(self) -> int | None:
        """How many tasks of one lane (strict pools) or key may run at once."""
        return 1 if self.strict else self.max_per_key

    @property
    def weighs(self) -> bool:
        """Whether a rate counts the weights of tasks."""
        return any(rate.of == "weight" for rate in self.rates)

    @property
    def has_flow_control(self) -> bool:
        """Whether it has rates, budgets or an adaptive limit.

        Stores start and settle tasks of other pools in bulk, and tasks of these one by one.
        """
        if self.rates or self.budgets:
            return True
        return self.rate_per_key is not None or self.adaptive is not None

    @property
    def most_concurrent(self) -> int:
        """The highest limit that it may reach."""
        return self.max_concurrent if self.adaptive is None else self.adaptive.most

    def _check_prefetch(self) -> None:
        # No other task overtakes a prefetched one: neither a newer one nor a retry of its lane.
        for option, given in (("lanes", self.lanes is not None), ("ordered", self.ordered)):
            if given:
                raise ConfigError("prefetch", self.prefetch, f"cannot be had with {option}")
        if self.order.kind is OrderKind.LIFO:
            raise ConfigError("prefetch", self.prefetch, "cannot be had with queue=lifo()")
        if self.budgets:
            # A prefetched task of one pool would hold budget that the other pools need.
            raise ConfigError("prefetch", self.prefetch, "cannot be had with budgets")

    def _check_strict(self) -> None:
        if self.ordered and self.lanes is not None:
            raise ConfigError("ordered", True, "and lanes exclude each other")
        if self.order.kind not in (OrderKind.FIFO, OrderKind.FAIR):
            raise ConfigError("queue", str(self.order.kind), "cannot be had with lanes or ordered")
        if self.max_per_key is not None:
            raise ConfigError("max_per_key", self.max_per_key, "is always 1 with lanes or ordered")
        if self.lanes is not None and max(self.max_concurrent, self.most_concurrent) > self.lanes:
            raise ConfigError(
                "max_concurrent", self.most_concurrent, f"cannot exceed lanes={self.lanes}"
            )


def changed_fixed_field(old: PoolSpec, new: PoolSpec) -> tuple[str, object, object] | None:
    """Return the first changed setting that fixes the places of waiting tasks, old and new."""
    # Lanes first: they change the default order.
    pairs = (
        ("lanes", old.lanes, new.lanes),
        ("ordered", old.ordered, new.ordered),
        ("queue", str(old.order.kind), str(new.order.kind)),
        ("aging", old.order.aging, new.order.aging),
    )
    return next((pair for pair in pairs if pair[1] != pair[2]), None)
