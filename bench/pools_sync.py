"""What a thread pays beyond its hop to the loop, as bench/sync.py measures it."""

from __future__ import annotations

import contextlib
import sys

import sync
from figures import Found, Plan


def measure_sync(plan: Plan) -> Found:
    """Measure the facade for threads; wall time, since two threads share the work."""
    found = Found()
    ways = (
        ("submit", sync.idle_mp, sync.pool, sync.submit_async, sync.submit_sync, 1),
        ("whole", sync.served_mp, sync.served, sync.whole_async, sync.whole_sync, 2),
    )
    for name, mp, pool, there, here, hops in ways:
        with contextlib.redirect_stdout(sys.stderr), mp.sync:
            cost = sync.measure(pool, there, here, hops=hops, rounds=3 * plan.rounds)
        found.must(f"sync {name}: (sync - hops) / async, wall", cost, sync.MOST)
    return found
