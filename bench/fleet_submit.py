"""T19: how many single submits a second many processes get done together."""

from __future__ import annotations

import statistics
from functools import partial

from contender import Contender
from drains import median_ratio
from figures import Found
from fleet_stage import FleetStage, together
from postgres_contenders import OURS, PGQUEUER, RAW, missing

PROCESSES = 16


def streams(
    stage: FleetStage, contender: Contender, processes: int, *, pools: int = 1
) -> tuple[float, float]:
    """Return submits a second of all processes together, and the worst median wait in seconds."""
    each = [
        {"seconds": stage.seconds(), "shape": {"pool": f"bench-{number % pools}"}}
        for number in range(processes)
    ]
    with stage.fresh(contender) as url:
        answers = together(contender, "stream", url, each)
    rate = sum(one["stored"] / one["seconds"] for one in answers)
    return rate, max(one["median"] for one in answers)


def measure(stage: FleetStage) -> Found:
    """Measure one process, many, many with a pool each, and those beside us."""
    found = Found()
    one, many, apart = "millpond, 1 process", f"millpond, {PROCESSES} processes", "a pool each"
    raw = f"raw INSERT, {PROCESSES} processes"
    ways = {
        one: partial(streams, stage, OURS, 1),
        many: partial(streams, stage, OURS, PROCESSES),
        f"{many}, {apart}": partial(streams, stage, OURS, PROCESSES, pools=PROCESSES),
        raw: partial(streams, stage, RAW, PROCESSES),
    }
    if stage.chosen(PGQUEUER):
        ways[f"pgqueuer, {PROCESSES} processes"] = partial(streams, stage, PGQUEUER, PROCESSES)
    for contender in (RAW, PGQUEUER):
        if reason := missing(contender):
            found.absent[contender.name] = f"MISSING: {reason}"
    rounds = stage.interleaved(ways)
    for name, taken in rounds.done().items():
        wait = statistics.median(median for _, median in taken)
        rate = statistics.median(rate for rate, _ in taken)
        found.add(name, rate, "/s", note=f"worst median {wait * 1e3:.1f} ms")
    found.absent |= rounds.failed
    rates = {name: [rate for rate, _ in taken] for name, taken in rounds.done().items()}
    if rounds.has(one, many):
        found.reach(f"T19 {many} / 1", median_ratio(rates[many], rates[one]), 5.0, goal=8.0)
    if rounds.has(raw, many):
        found.reach(f"T19 {many} / raw", median_ratio(rates[many], rates[raw]), 0.3, goal=0.5)
    return found
