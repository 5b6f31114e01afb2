"""Pools, tasks and audit records in the shape that `--json` prints.

Ids are strings: many JSON parsers round integers above 2^53, and an id has 63 bits. Times are
seconds since 1970 and durations are seconds, as in the library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.cli.render import bare
from millpond.core.lifecycle import Status
from millpond.core.retention import TIMES, in_force
from millpond.pool.shown_state import ran, shown_state, shown_task_state, waited
from millpond.pool.snapshot import TaskInfo
from millpond.pool.wanted_slots import wanted_slots

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.core.audit import Record
    from millpond.core.task import Task
    from millpond.store.protocol import LaneView, PoolView

Facts = dict[str, Any]

_ENDS = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
_IDS = ("task", "run", "cause")
_SECRET = ("token",)
"""Left out: with the token of a fence, anyone could settle the task."""


def pool_json(
    view: PoolView,
    now: float,
    callbacks: PoolView | None = None,
    lanes: Iterable[LaneView] | None = None,
) -> Facts:
    """Return a pool and its callbacks, and its lanes if given."""
    spec, oldest = view.spec, view.oldest_queued_at
    bound = spec.backpressure
    facts: Facts = {
        "name": spec.name,
        "state": shown_state(view, now),
        "paused": view.paused,
        "paused_units": list(view.paused_units),
        "closed": view.closed,
        "running": view.running,
        "queued": view.queued,
        "scheduled": view.scheduled,
        "parked": view.parked,
        "claimed": view.claimed,
        "wanted_slots": wanted_slots(
            view, 0 if callbacks is None else callbacks.queued + callbacks.running, now
        ),
        "kept": view.kept,
        "dead": view.dead,
        "held_until": view.held_until or None,
        "held_for": max(view.held_until - now, 0.0) if view.held_until else None,
        "held_units": [
            {"unit": unit, "held_until": until, "held_for": max(until - now, 0.0)}
            for unit, until in view.held_units
        ],
        **{str(status): view.totals.get(status, 0) for status in Status if status.terminal},
        "max_concurrent": spec.max_concurrent,
        "declared_max_concurrent": view.declared.max_concurrent,
        "max_per_key": spec.max_per_key,
        "queue": str(spec.order.kind),
        "on_full": None if bound is None else str(bound.on_full),
        "bound": None if bound is None else bound.depth,
        "lanes": spec.lanes,
        "ordered": spec.ordered,
        "oldest_queued_age": None if oldest is None else max(now - oldest, 0.0),
        "waits": view.waits,
        "run_times": view.run_times,
        "stale_settles": view.stale_settles,
        "keep": {name: getattr(in_force(view.declared.keep), name) for name in TIMES},
        "revision": view.revision,
        "created_at": view.created_at,
    }
    if callbacks is not None:
        facts["callbacks"] = {
            "running": callbacks.running,
            "queued": callbacks.queued,
            **{str(status): callbacks.totals.get(status, 0) for status in _ENDS},
        }
    if lanes is not None:
        facts["lane_states"] = list(lanes)
    return bare(facts)  # type: ignore[no-any-return]


def task_json(task: Task, now: float) -> Facts:
    """Return a task without its arguments and its result."""
    info = TaskInfo.of(task)
    facts: Facts = msgspec.structs.asdict(info)
    facts["id"] = str(info.id)
    facts["state"] = shown_task_state(task, now)
    facts["run"] = None if task.new.run is None else str(task.new.run)
    facts["idempotency_key"] = task.new.idempotency_key
    facts["cancel_requested"] = task.cancel_requested
    facts["waited"], facts["ran"] = waited(task, now), ran(task, now)
    return bare(facts)  # type: ignore[no-any-return]


def record_json(record: Record, position: int | None = None) -> Facts:
    """Return an audit record without the fields that do not apply to it."""
    fields = msgspec.to_builtins(record)
    facts: Facts = {} if position is None else {"position": position}
    for name, value in fields.items():
        if name in _SECRET or value is None:
            continue
        facts[name] = str(value) if name in _IDS else value
    if record.event is None:
        for name in ("attempt", "attempts", "runs", "seq", "sequence", "due", "weight", "fresh"):
            facts.pop(name, None)
        facts.pop("callback", None)
        facts.pop("function", None)
    return bare(facts)  # type: ignore[no-any-return]
