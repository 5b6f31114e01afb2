"""T26: two pools drained by two processes side by side; how long they wait for locks."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import psycopg
from drains import Drained, median_ratio, rate_of
from figures import Found
from fleet_stage import FleetStage
from postgres_contenders import OURS
from postgres_speed import SECONDS
from postgres_stage import Actor, act
from shapes import SLOTS, Shape

BETWEEN = 0.003
"""Seconds between two looks at what the sessions do."""

_LOOK = """\
SELECT count(*) FILTER (WHERE wait_event_type = 'Lock'), count(*)
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active'"""


class Watched(NamedTuple):
    """A drain, and what its sessions were seen to do."""

    drained: Drained
    waiting: float
    """The part of the time that a process waited for a lock of the server."""
    of_calls: float
    """The same, as a part of the time in which the server worked for it or let it wait."""


class Watch:
    """Looks again and again at what the sessions of a database do."""

    def __init__(self) -> None:
        self.looks = self.waiting = self.active = 0
        self._over = threading.Event()

    @contextmanager
    def over(self, url: str) -> Iterator[Watch]:
        """Look for as long as the block lasts."""
        looker = threading.Thread(target=self._look, args=(url,))
        looker.start()
        try:
            yield self
        finally:
            self._over.set()
            looker.join()

    def _look(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not self._over.wait(BETWEEN):
                row = connection.execute(_LOOK, prepare=True).fetchone()
                assert row is not None
                if row[1]:
                    # Before the first and after the last task no session works.
                    self.looks += 1
                    self.waiting += row[0]
                    self.active += row[1]


def shape_of(pool: str) -> Shape:
    """Return a pool of plain tasks."""
    return {"pool": pool, "order": "fifo", "max_concurrent": SLOTS}


def drained(stage: FleetStage, pools: tuple[str, ...]) -> Watched:
    """Drain pools at the same time, each by a process of its own; some may be the same pool."""
    each = stage.size(20_000, 4_000)
    with stage.fresh(OURS, 0) as url:
        for pool in pools:
            act(OURS, "fill", url, count=each, shape=shape_of(pool))
        given = [
            {
                "count": each,
                "concurrency": SLOTS,
                "seconds": SECONDS,
                "shape": shape_of(pool),
                "slice": len(set(pools)) < len(pools),
            }
            for pool in pools
        ]
        with ExitStack() as stack:
            team = [stack.enter_context(Actor(OURS, "work", url, **one)) for one in given]
            for actor in team:
                actor.ready()
            # Not while they open the store: the verbs that do that keep all other writers out.
            watch = stack.enter_context(Watch().over(url))
            for actor in team:
                actor.go()
            answers = [actor.answer() for actor in team]
    part = len(set(pools)) < len(pools)
    rate = rate_of(answers, each * len(pools), part=part)
    waited = watch.waiting / max(watch.looks, 1) / len(pools)
    return Watched(rate, waited, watch.waiting / max(watch.active, 1))


WAYS = {
    "one pool, one process": ("left",),
    "two pools, a process each": ("left", "right"),
    "one pool, two processes": ("left", "left"),
}


def measure(stage: FleetStage) -> Found:
    """Measure on the disk of this machine."""
    found = Found()
    with stage.on_ordinary_disk() as ordinary:
        rounds = ordinary.interleaved(
            {name: partial(drained, ordinary, pools) for name, pools in WAYS.items()}
        )
    for name, taken in rounds.done().items():
        waited = statistics.median(one.waiting for one in taken)
        of_calls = statistics.median(one.of_calls for one in taken)
        starts = statistics.median(one.drained.starts for one in taken)
        note = f"{waited:.1%} of the time waiting for locks, {of_calls:.1%} of that of its calls"
        found.add(name, starts, "/s", note=note)
    found.absent |= rounds.failed
    alone, both, _ = WAYS
    if rounds.has(alone, both):
        share = statistics.median(one.waiting for one in rounds.of[both])
        found.must("T26 two pools, waiting for locks", share * 100, 5.0, unit="%", goal=2.0)
        rates = ([one.drained.starts for one in rounds.of[name]] for name in (both, alone))
        found.add("two pools / one pool by one process", median_ratio(*rates), "x")
    return found
