"""Our pools as benchmarks declare them."""

from __future__ import annotations

from typing import Any

Shape = dict[str, Any]

KEYS = 10_000
SLOTS = 100

SHAPES: dict[str, Shape] = {
    "fifo": {"order": "fifo", "max_concurrent": SLOTS},
    "priority": {"order": "priority", "max_concurrent": SLOTS, "ranked": True},
    "fair": {"order": "fair", "max_concurrent": SLOTS, "max_per_key": 2, "keys": KEYS},
}
"""Plain fifo; ten priorities; round robin over 10,000 keys, each limited to 2 at once."""

FLOW: Shape = {**SHAPES["fair"], "flows": True, "heaviest": 3}
"""The fair one with a budget, a rate by weight and a rate for each key besides. Each start asks and
charges all of them; they are so wide that none is ever a reason to wait."""
