"""Find seeds of short histories that together try all of flow control.

    python -m verify.flow_seeds

Stores are compared by the histories of `FLOW_SEEDS`. After a change of what is drawn for them,
another choice of seeds may be needed: this prints one.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

from millpond.testing.simulation.history import replay
from millpond.testing.simulation.seeded import FLOW_STEPS, flow_specs, memory_store, simulate_on

WANTED = frozenset({"held a key", "held a pool", "weight", "ran dry", "budget resized", "crash"})
"""What these histories must try."""


async def tried(seed: int) -> set[str]:
    """Return what of flow control the history of a seed tries."""
    lived = await simulate_on(seed, memory_store(), steps=FLOW_STEPS, make_specs=flow_specs)
    found = set(lived.faults)
    for step in await replay(memory_store(), lived.history):
        found |= {record.detail or "" for record in step.records}
        if step.verb == "settle":
            found |= {f"held a {one.hold}" for one in step.asked[0]}
        if step.verb == "lease" and not step.answer.leased and step.answer.next_at:
            found.add("ran dry")
    return found & WANTED


async def find_seeds() -> list[int]:
    """Return seeds, each of which tries something that the ones before do not."""
    seeds: list[int] = []
    left = set(WANTED)
    for seed in itertools.count(1):
        if found := left & await tried(seed):
            seeds.append(seed)
            left -= found
        if not left:
            return seeds
    raise AssertionError


if __name__ == "__main__":
    sys.stdout.write(f"{asyncio.run(find_seeds())}\n")
