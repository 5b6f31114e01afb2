"""Pools in short and in full, and their rolling figures."""

from __future__ import annotations

from typing import Any

import msgspec


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool did in the last minutes, as this server has seen it."""

    throughput: float
    """Tasks that completed, per second, over the last sparkline step that is over."""
    failures: float
    """Tasks that failed, per second, over the same time."""
    step: float
    """Seconds between two points of a sparkline."""
    spark: list[float]
    """Completed tasks per second, 60 points, oldest first."""
    failed_spark: list[float]
    """Failed tasks per second, 60 points, oldest first."""
    unknown: int
    """Points at the beginning from before this server saw the pool; 0 while all points are 0."""


class PoolGlance(msgspec.Struct, frozen=True, kw_only=True):
    """A pool in short: its state, counts and recent rates."""

    name: str
    """Its name as the store knows it: what paths of this API take."""
    id: str
    """Scope, scope id and name."""
    system: bool
    """Whether it belongs to events, triggers or schedules."""
    state: str
    """idle, running, saturated, waiting, scheduled, parked, held, paused or closed."""
    paused: bool
    paused_units: list[str]
    """Keys or lanes that are paused on their own."""
    closed: bool
    running: int
    limit: int
    """How many tasks may run at a time."""
    declared_limit: int
    """The same as the application declares it."""
    queued: int
    scheduled: int
    """Those of the queued that wait for their time."""
    parked: int
    """Those of the queued that no worker knows how to run."""
    claimed: int
    """Those of the queued that a worker holds ahead."""
    dead: int
    """Failed tasks that are kept: what a redrive would bring back."""
    kept: int
    """Ended tasks that are kept."""
    oldest_queued_at: float | None
    """When the first of the queued tasks was submitted."""
    held_until: float | None
    """Nothing of the pool starts before: a handler was throttled."""
    completed: int
    """Tasks that ever completed."""
    failed: int
    """Tasks that ever failed."""
    cancelled: int
    """Tasks that were ever cancelled."""
    rejected: int
    """Tasks that a full queue ever dropped."""
    queue: str
    """The order of the queue, by name."""
    on_full: str | None
    """What happens beyond the bound, if there is one."""
    bound: int | None
    """How many tasks may wait."""
    lanes: int | None
    ordered: bool
    max_per_key: int | None
    revision: int
    recent: Recent


class PoolPage(msgspec.Struct, frozen=True, kw_only=True):
    """Pools by name."""

    items: list[PoolGlance]
    next: str | None
    at: float
    """The moment that the counts are of."""


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that half, nine in ten and 99 in a hundred of the latest attempts stayed within."""

    p50: float
    p90: float
    p99: float
    samples: int


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """A key or lane of a pool."""

    unit: str | None
    """Its name; null stands for the tasks without a key."""
    share: str | None
    """The partition of a fair pool."""
    queued: int
    """Tasks that are ready."""
    running: int
    paused: bool
    held_until: float | None


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that were in force."""

    revision: int
    config: dict[str, Any]


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that a pool shares with others."""

    name: str
    running: int
    limit: int
    pools: list[str]
    waiting: list[str]


class PoolDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One pool: its counts, its limits, its keys or lanes, its settings."""

    pool: PoolGlance
    waits: Percentiles
    """From due to start."""
    run_times: Percentiles
    """From start to end."""
    units: list[Unit]
    """The first hundred keys or lanes by name; none where nothing depends on keys."""
    held_units: dict[str, float]
    """Keys or lanes that are held back on their own, and until when."""
    budgets: list[Budget]
    config: dict[str, Any]
    """The settings in force."""
    declared: dict[str, Any]
    """The settings as the application declares them."""
    revisions: list[Revision]
    """The latest settings, the latest first."""
    callbacks: dict[str, int]
    """on_complete callbacks: queued, running, completed, failed, cancelled."""
    created_at: float
    stale_settles: int
    at: float


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Rolling figures of a pool, one entry of each list per sample, oldest first."""

    pool: str
    at: list[float]
    completed: list[float]
    """Per second since the sample before."""
    failed: list[float]
    """Per second since the sample before."""
    running: list[int]
    limit: list[int]
    queued: list[int]
    dead: list[int]
    oldest_age: list[float]
    """Seconds since the first of the queued tasks was submitted."""
    wait_p50: list[float | None]
    wait_p90: list[float | None]
    wait_p99: list[float | None]
    run_p50: list[float | None]
    run_p90: list[float | None]
    run_p99: list[float | None]
    """Percentiles are sampled while a page shows the pool; null elsewhere."""
