"""Measure queues on PostgreSQL while a session keeps a transaction open.

A transaction that stays open keeps every row that dies meanwhile: vacuum may not remove it, and a
queue is a table in which rows die all the time. Each contender has a database of its own on a
server as it comes, a process that stores tasks at a steady pace and one that runs them. When all
runs well a transaction is opened (REPEATABLE READ, with a snapshot, idle), and closed ten minutes
later. It prints, minute by minute, how many tasks were started each second, how long they waited
(the median), and the CPU time of the server for each. T13: minute 10 beside minute 1 of
the open transaction.

    python bench/bloat.py --load 1000 --minutes 10 --json bloat.json --plot bloat.svg
    python bench/bloat.py --peers millpond --kinds all
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import actors
import psycopg
from bloat_plot import Line, drawn
from contender import Contender
from figures import Found, cautious
from postgres_contenders import (
    GRAPHILE,
    GRAPHILE_PLAIN,
    OURS,
    PGQUEUER,
    PROCRASTINATE,
    command,
    missing,
)
from postgres_stage import Stage
from processes import cpu_of
from table import show
from verify.servers.postgres import OwnServer, serve

MINUTE = 60.0
SLOTS = 100
CONTENDERS = (OURS, PGQUEUER, GRAPHILE, GRAPHILE_PLAIN, PROCRASTINATE)

PLAIN = "fifo"
KEYED = {"order": "fifo", "max_concurrent": SLOTS, "keys": 100}
"""A hundred keys: each of them is written again and again."""
KINDS: dict[str, dict[str, Any]] = {
    PLAIN: {"order": "fifo", "max_concurrent": SLOTS},
    "fair": {**KEYED, "order": "fair"},
    "max_per_key": {**KEYED, "max_per_key": 5},
    "fair, max_per_key": {**KEYED, "order": "fair", "max_per_key": 5},
    "lanes": {**KEYED, "lanes": 100},
    "budget and rates": {"order": "fifo", "max_concurrent": SLOTS, "flows": True},
}
"""Our pools whose rows are written for each task, in their own ways."""


@dataclass
class Minute:
    """What happened in a minute."""

    phase: str
    """before, held or after."""
    rate: float
    """Starts a second."""
    waited: float
    """Milliseconds from a submit to the start, at the median."""
    cpu: float
    """Microseconds of the server's CPU time for each start."""


@dataclass(frozen=True)
class Times:
    """How long the phases last, in minutes of so many seconds."""

    before: int
    held: int
    after: int
    minute: float = MINUTE

    @property
    def seconds(self) -> float:
        """All of them."""
        return (self.before + self.held + self.after) * self.minute

    def phase(self, minute: int) -> str:
        """Return what is the case in a minute."""
        if minute < self.before:
            return "before"
        return "held" if minute < self.before + self.held else "after"


@contextmanager
def held_open(url: str) -> Iterator[None]:
    """Keep a transaction open that has seen the database as it is now."""
    with psycopg.connect(url, application_name="forgotten transaction") as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT txid_current(), count(*) FROM pg_class")
        yield


class Watch:
    """Opens and closes the transaction in its time, and notes what the server uses."""

    def __init__(self, stage: Stage, url: str, times: Times) -> None:
        self._stage = stage
        self._url = url
        self._times = times
        self.cpu: list[float] = []
        """Seconds of CPU time that the server had used at the beginning of each minute."""

    def run(self) -> None:
        """Watch from now to the end."""
        times, start = self._times, time.monotonic()
        with ExitStack() as stack:
            for minute in range(times.before + times.held + times.after + 1):
                time.sleep(max(start + minute * times.minute - time.monotonic(), 0.0))
                self.cpu.append(self._used())
                if minute == times.before:
                    stack.enter_context(held_open(self._url))
                elif minute == times.before + times.held:
                    stack.close()

    def _used(self) -> float:
        server = self._stage.there
        return cpu_of(server.process) if isinstance(server, OwnServer) else math.nan


class Actor(actors.Actor):
    """A process that acts on a database for as long as it takes."""

    def __init__(self, contender: Contender, act: str, url: str, **given: Any) -> None:
        arguments = (contender.name, act, url, json.dumps(given))
        super().__init__(
            f"{contender.name}, {act}",
            [*command(contender), *arguments],
            given["seconds"] + actors.LONGEST,
        )


def minutes_of(answer: dict[str, Any], cpu: list[float], times: Times) -> list[Minute]:
    """Return what happened, minute by minute."""
    length = int(times.minute)
    found = []
    for number, (early, late) in enumerate(pairwise(cpu)):
        seconds = slice(number * length, (number + 1) * length)
        count = sum(answer["counts"][seconds])
        lags = [lag for some in answer["lags"][seconds] for lag in some]
        found.append(
            Minute(
                phase=times.phase(number),
                rate=count / length,
                waited=statistics.median(lags) if lags else math.inf,
                cpu=(late - early) / count * 1e6 if count else math.inf,
            )
        )
    return found


def measured(
    stage: Stage, contender: Contender, load: float, times: Times, shape: dict[str, Any]
) -> list[Minute]:
    """Run a contender through all phases."""
    seconds = times.seconds
    given = {"seconds": seconds, "shape": shape, "concurrency": SLOTS, "load": load}
    with (
        stage.fresh(contender, shape=shape) as url,
        Actor(contender, "sustain", url, **given) as worker,
        Actor(contender, "feed", url, **given) as feeder,
    ):
        worker.ready()
        feeder.ready()
        watch = Watch(stage, url, times)
        watching = threading.Thread(target=watch.run)
        watching.start()
        worker.go()
        feeder.go()
        answer = worker.answer()
        watching.join()
        feeder.answer()
    return minutes_of(answer, watch.cpu, times)


def held_ratio(minutes: list[Minute]) -> float:
    """Return the rate of the last minute of the open transaction beside that of its first."""
    held = [one for one in minutes if one.phase == "held"]
    return held[-1].rate / held[0].rate if held[0].rate else 0.0


def show_minutes(name: str, minutes: list[Minute]) -> None:
    """Print a contender's minutes."""
    print(f"\n{name}")
    print(
        f"  {'minute':>6} {'phase':8} {'starts/s':>10} {'waited, ms':>12} {'server, us/task':>16}"
    )
    for number, one in enumerate(minutes, start=1):
        print(
            f"  {number:>6} {one.phase:8} {cautious(one.rate, up=False, digits=0):>10}"
            f" {cautious(one.waited, up=True, digits=1):>12}"
            f" {cautious(one.cpu, up=True, digits=0):>16}"
        )
    sys.stdout.flush()


def plot(every: dict[str, list[Minute]], load: float, times: Times) -> str:
    """Return the rates as a drawing."""
    lines = [Line(name, [one.rate for one in minutes]) for name, minutes in every.items()]
    title = f"tasks started a second, of {load:,.0f} submitted; the transaction is open in the grey"
    return drawn(title, lines, (times.before, times.before + times.held))


def named(kind: str) -> str:
    """Return what a kind of our pools is called beside the peers."""
    return OURS.name if kind == PLAIN else f"{OURS.name}, {kind}"


def chosen(stage: Stage, kinds: str) -> Iterator[tuple[str, Contender, dict[str, Any]]]:
    """Yield who is measured, under which name, with which of our pools."""
    for contender in CONTENDERS:
        if not stage.chosen(contender):
            continue
        if contender != OURS:
            yield contender.name, contender, {}
            continue
        for kind, shape in KINDS.items():
            if kinds == "all" or kind in kinds.split(";"):
                yield named(kind), contender, shape


def judged(every: dict[str, list[Minute]], absent: dict[str, str]) -> Found:
    """Return the summary."""
    found = Found(absent=absent)
    for name, minutes in every.items():
        held = [one for one in minutes if one.phase == "held"]
        found.add(f"{name}: last minute / first", held_ratio(minutes), "x")
        found.add(f"{name}: CPU of the server, last / first", held[-1].cpu / held[0].cpu, "times")
    for kind in KINDS:
        if named(kind) in every:
            what = "T13 held open, last minute / first" + ("" if kind == PLAIN else f", {kind}")
            found.reach(what, held_ratio(every[named(kind)]), 0.8, goal=0.95)
    return found


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("--load", type=float, default=1_000.0, help="tasks submitted a second")
    options.add_argument("--minutes", type=int, default=10, help="how long it is held open")
    options.add_argument("--before", type=int, default=1)
    options.add_argument("--after", type=int, default=2)
    options.add_argument("--minute", type=float, default=MINUTE, help="seconds of a minute")
    options.add_argument("--peers", default="", help="who has one of these, with commas, in a name")
    options.add_argument(
        "--kinds", default=PLAIN, help=f"which of our pools, with semicolons, or all: {[*KINDS]}"
    )
    options.add_argument("--json", type=Path, help="write all of it to this file")
    options.add_argument("--plot", type=Path, help="draw it as SVG into this file")
    options.add_argument("--check", action="store_true", help="exit 1 if a must is missed")
    return options


def main() -> int:
    options = parser().parse_args()
    times = Times(options.before, options.minutes, options.after, options.minute)
    folder = Path(tempfile.mkdtemp(prefix="millpond-bench-"))
    every: dict[str, list[Minute]] = {}
    absent: dict[str, str] = {}
    try:
        with serve({}) as server:
            stage = Stage(folder, 1, quick=False, only=options.peers, server=server)
            for name, contender, shape in chosen(stage, options.kinds):
                if reason := missing(contender):
                    absent[name] = f"MISSING: {reason}"
                else:
                    every[name] = measured(stage, contender, options.load, times, shape)
                    show_minutes(name, every[name])
    finally:
        shutil.rmtree(folder)
    found = judged(every, absent)
    show("held open", found)
    if options.json is not None:
        data = {name: [asdict(one) for one in minutes] for name, minutes in every.items()}
        options.json.write_text(json.dumps({"load": options.load, **asdict(times), "of": data}))
    if options.plot is not None:
        options.plot.write_text(plot(every, options.load, times))
    return 1 if options.check and found.missed() else 0


if __name__ == "__main__":
    sys.exit(main())
