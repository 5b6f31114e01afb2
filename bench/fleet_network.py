"""T25: what 1 ms of network between a worker and its server costs.

Both go through the same proxy on this machine, which delays each direction by half or not at all:
so its own cost is in both. As on a network, one message under way does not hold up the next.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from drains import Drained, median_ratio, rate_of, show_drains
from figures import Found
from fleet_stage import FleetStage
from postgres_contenders import OURS
from postgres_speed import AHEAD, SECONDS
from postgres_stage import act
from shapes import KEYS, SHAPES, SLOTS, Shape
from verify.servers.network_delay import NetworkDelay

ROUND_TRIP = 0.001


class Way(NamedTuple):
    """A pool that is drained, and the ratio that it must reach; None = for information."""

    shape: Shape
    must: float | None
    goal: float


WAYS = {
    "prefetch": Way({"max_concurrent": SLOTS, "prefetch": AHEAD}, 0.9, 0.95),
    "prefetch=2,000": Way({"max_concurrent": SLOTS, "prefetch": 4 * AHEAD}, None, 0.95),
    "default": Way({"max_concurrent": SLOTS}, 0.5, 0.7),
    "lanes": Way(
        {"order": "fifo", "lanes": SLOTS, "max_concurrent": SLOTS, "keys": KEYS}, 0.5, 0.7
    ),
    "fair": Way(SHAPES["fair"], 0.5, 0.7),
}


def drained(stage: FleetStage, shape: Shape, delay: float) -> Drained:
    """Drain a backlog with one worker that is so far away from its server."""
    count = stage.size(20_000, 4_000)
    seconds = SECONDS / 3 if stage.quick else SECONDS
    filled = {name: value for name, value in shape.items() if name != "prefetch"}
    with stage.fresh(OURS, count, shape=filled) as url:
        port = urlsplit(url).port
        assert port is not None
        with NetworkDelay(port, delay) as network:
            answer = act(
                *(OURS, "work", network.through(url)),
                count=count,
                concurrency=SLOTS,
                seconds=seconds,
                shape=shape,
            )
    return rate_of([answer], count)


def measure(stage: FleetStage) -> Found:
    """Measure each pool near to the server and far away, on the disk of this machine."""
    found = Found()
    with stage.on_ordinary_disk() as ordinary:
        rounds = ordinary.interleaved(
            {
                f"{name}, {where}": partial(drained, ordinary, way.shape, delay)
                for name, way in WAYS.items()
                for where, delay in (("near", 0.0), ("1 ms away", ROUND_TRIP / 2))
            }
        )
    show_drains(found, rounds)
    for name, way in WAYS.items():
        near, away = f"{name}, near", f"{name}, 1 ms away"
        if rounds.has(near, away):
            ratio = median_ratio(*([one.least for one in rounds.of[key]] for key in (away, near)))
            if way.must is None:
                found.add(f"{name}, 1 ms away / near", ratio, "x")
            else:
                found.reach(f"T25 {name}, 1 ms away / near", ratio, way.must, goal=way.goal)
    return found
