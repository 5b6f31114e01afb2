"""T24: what an idempotency key costs a submit, one at a time and in bulk."""

from __future__ import annotations

import statistics
from functools import partial

from drains import median_ratio
from figures import Found
from fleet_stage import FleetStage
from postgres_contenders import OURS
from postgres_stage import act

WAYS = {"one at a time": ("submit", 0.8, 0.9), "in bulk": ("bulk", 0.5, 0.7)}
"""The act of each, the least ratio that must be reached, and the goal."""


def rate(stage: FleetStage, how: str, *, unique: bool) -> float:
    """Return submits a second of one process."""
    count = stage.size(20_000, 4_000) if how == "submit" else stage.size(100_000, 10_000)
    with stage.fresh(OURS) as url:
        answer = act(OURS, how, url, count=count, shape={"unique": unique})
    return float(answer["stored"] / answer["seconds"])


def measure(stage: FleetStage) -> Found:
    """Measure both ways with and without keys, on the disk of this machine."""
    found = Found()
    with stage.on_ordinary_disk() as ordinary:
        ways = {
            f"{name}, {kind}": partial(rate, ordinary, how, unique=kind == "with keys")
            for name, (how, _, _) in WAYS.items()
            for kind in ("plain", "with keys")
        }
        rounds = ordinary.interleaved(ways)
    for name, taken in rounds.done().items():
        found.add(name, statistics.median(taken), "/s")
    found.absent |= rounds.failed
    for name, (_, must, goal) in WAYS.items():
        plain, keyed = f"{name}, plain", f"{name}, with keys"
        if rounds.has(plain, keyed):
            ratio = median_ratio(rounds.of[keyed], rounds.of[plain])
            found.reach(f"T24 with keys / plain, {name}", ratio, must, goal=goal)
    return found
