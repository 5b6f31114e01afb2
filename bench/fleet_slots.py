"""T20, T21, T28: what part of their slots worker processes keep busy."""

from __future__ import annotations

import statistics
from collections import Counter
from functools import partial
from typing import NamedTuple

from contender import Contender
from figures import Found
from fleet_stage import FleetStage, together
from postgres_contenders import OURS, PGQUEUER
from postgres_stage import act


class Fleet(NamedTuple):
    """Worker processes, the slots of each, and how long a handler takes."""

    processes: int
    slots: int
    pause: float

    @property
    def allowed(self) -> float:
        """Starts a second if no slot ever waited."""
        return self.processes * self.slots / self.pause

    def __str__(self) -> str:
        return f"{self.processes} x {self.slots} slots x {self.pause * 1e3:g} ms"


MANY = Fleet(8, 10, 0.05)
FEW = Fleet(2, 8, 0.02)


def share(stage: FleetStage, contender: Contender, fleet: Fleet, ahead: int = 0) -> float:
    """Return the part of the allowed starts that there were, without the first and last second."""
    seconds = int(stage.seconds()) + 2
    slots = fleet.processes * fleet.slots
    shape = {"max_concurrent": slots, "prefetch": ahead} if contender == OURS else {}
    filled = {"shape": {"max_concurrent": slots}} if shape else {}
    given = {"seconds": seconds, "concurrency": fleet.slots, "pause": fleet.pause, "shape": shape}
    enough = round(fleet.allowed * (seconds + 2))
    with stage.fresh(contender, enough, **filled) as url:
        answers = together(contender, "sustain", url, [given] * fleet.processes)
    counted = sum(sum(one["counts"][1 : seconds - 1]) for one in answers)
    return counted / (seconds - 2) / fleet.allowed


def measured(stage: FleetStage, row: str, fleet: Fleet) -> Found:
    """Measure a fleet as it is, with prefetch, and beside us."""
    found = Found()
    plain = f"millpond, {fleet}"
    ways = {
        plain: partial(share, stage, OURS, fleet),
        f"{plain}, prefetch={fleet.slots}": partial(share, stage, OURS, fleet, fleet.slots),
    }
    if stage.chosen(PGQUEUER):
        ways[f"pgqueuer, {fleet}"] = partial(share, stage, PGQUEUER, fleet)
    else:
        found.absent[PGQUEUER.name] = "MISSING or not asked for"
    rounds = stage.interleaved(ways)
    for name, taken in rounds.done().items():
        part = statistics.median(taken)
        found.add(name, part * fleet.allowed, "/s", note=f"{part:.0%} of {fleet.allowed:,.0f}")
    found.absent |= rounds.failed
    if rounds.has(plain):
        part = statistics.median(rounds.of[plain])
        found.reach(f"{row} {fleet}", part * 100, 85.0, unit="%", goal=95.0)
    return found


def measure_many(stage: FleetStage) -> Found:
    """T20: on the slow disk."""
    return measured(stage, "T20", MANY)


MIX = {"order": "fair", "keys": 400, "max_per_key": 4, "mixed": True}
"""What production does: tenants in turn and with a limit each, and see `mixed` in bench/ours.py."""


def mixed_share(stage: FleetStage, fleet: Fleet, detours: Counter[str]) -> float:
    """Return the part of the allowed starts that there were; count who left the fast path."""
    seconds = int(stage.seconds()) + 2
    shape = {**MIX, "max_concurrent": fleet.processes * fleet.slots}
    given = {"seconds": seconds, "concurrency": fleet.slots, "pause": fleet.pause, "shape": shape}
    enough = round(fleet.allowed * (seconds + 2) / 20) * 20
    with stage.fresh(OURS, 0, shape=shape) as url:
        filled = act(OURS, "fill", url, count=enough, shape=shape)
        answers = together(OURS, "sustain", url, [given] * fleet.processes)
    for one in (filled, *answers):
        detours.update(one["detours"])
    counted = sum(sum(one["counts"][1 : seconds - 1]) for one in answers)
    return counted / (seconds - 2) / fleet.allowed


def measure_mix(stage: FleetStage) -> Found:
    """T21: the production mix, on the slow disk."""
    found, detours = Found(), Counter[str]()
    name = f"millpond, {MANY}, production mix"
    rounds = stage.interleaved({name: partial(mixed_share, stage, MANY, detours)})
    found.absent |= rounds.failed
    if rounds.has(name):
        part = statistics.median(rounds.of[name])
        found.add(name, part * MANY.allowed, "/s", note=f"{part:.0%} of {MANY.allowed:,.0f}")
        found.reach(f"T21 {MANY}, production mix", part * 100, 75.0, unit="%", goal=90.0)
        found.must("T21 detours", float(detours.total()), 0.0, unit="", goal=0.0)
    for reason, count in detours.most_common():
        found.add(f"detours: {reason}", count, "")
    return found


def measure_few(stage: FleetStage) -> Found:
    """T28: few slots, on the disk of this machine."""
    with stage.on_ordinary_disk() as ordinary:
        return measured(ordinary, "T28", FEW)
