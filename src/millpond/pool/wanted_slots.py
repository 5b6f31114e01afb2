"""How many worker slots the backlog of a pool could use now: the figure for an autoscaler."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.core.rate import Rate
    from millpond.store.protocol import PoolView


def wanted_slots(view: PoolView, callbacks: int, now: float) -> int:
    """Return how many tasks and callbacks would run now with workers in plenty.

    Tasks that run, and due tasks up to the limit of the pool. A paused or held pool starts none. A
    rate of starts caps it at what the rate can keep busy, by the run times measured so far. Limits
    per key, lanes and budgets are not counted: the figure may be too high, never too low.
    """
    return _of_tasks(view, now) + min(callbacks, view.spec.max_callbacks)


def _of_tasks(view: PoolView, now: float) -> int:
    if view.paused or view.held_until > now:
        return view.running
    due = max(view.queued - view.scheduled - view.parked, 0)
    most = min([view.spec.max_concurrent, *(_busy(rate, view) for rate in view.spec.rates)])
    return max(view.running, min(view.running + due, most))


def _busy(rate: Rate, view: PoolView) -> int:
    """Return how many slots a rate keeps busy; all of the pool's where that is not known."""
    if rate.of != "starts" or not view.run_times.samples:
        return view.spec.max_concurrent
    return max(math.ceil(rate.n / rate.per * view.run_times.p90), 1)
