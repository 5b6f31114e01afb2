"""T20, T28: what part of their slots worker processes keep busy."""

from __future__ import annotations

import statistics
from functools import partial
from typing import NamedTuple

from contender import Contender
from figures import Found
from fleet_stage import FleetStage, together
from postgres_contenders import OURS, PGQUEUER


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


def measure_few(stage: FleetStage) -> Found:
    """T28: few slots, on the disk of this machine."""
    with stage.on_ordinary_disk() as ordinary:
        return measured(ordinary, "T28", FEW)
