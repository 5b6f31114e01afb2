"""What durable pools on SQLite promise, beside huey, litequeue and persist-queue.

submit   tasks stored a second: one after another, in bulk, and by 100 submitters of one process
drain    50,000 queued no-ops run by one worker process: T15
latency  from a submit in one process to the start in another that is idle
writers  how long a submit takes while four processes submit
fleet    four worker processes on one file beside one
scale    1,000,000 queued beside 10,000: T12
fair     turns and limits over 10,000 keys beside plain fifo: T11, for information
idle     a worker with nothing to do: memory (T16), CPU time, reads

Contenders run interleaved, in a new order every round, each in processes of its own and on a fresh
file of one disk. Figures are medians; a ratio is the median, over the rounds, of the ratio within
one, our lower rate over their higher one, and is never rounded in our favour. A measurement during
which the disk was slowed by others is taken again, up to three times. How safe each keeps
a task is printed above the figures: they compare only between those that promise as much.
`--check` exits 1 if a must is missed; `--quick` takes one round of a tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import sqlite_idle
import sqlite_scale
import sqlite_speed
from actors import CALM, fsync_cost
from figures import Found
from sqlite_contenders import CONTENDERS, PACKAGES, SURVIVES
from sqlite_stage import Stage
from table import show

SECTIONS: dict[str, Callable[[Stage], Found]] = {
    "submit": sqlite_speed.measure_submit,
    "drain": sqlite_speed.measure_drain,
    "latency": sqlite_speed.measure_latency,
    "writers": sqlite_scale.measure_writers,
    "fleet": sqlite_scale.measure_fleet,
    "scale": sqlite_scale.measure_scale,
    "fair": sqlite_scale.measure_fair,
    "idle": sqlite_idle.measure_idle,
}


def show_machine(stage: Stage) -> None:
    """Print the setup, and the durability of each contender."""
    stage.fsync = fsync_cost(stage.folder, 200)
    print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{os.cpu_count()} cores, fsync {stage.fsync * 1e3:.3f} ms, rounds {stage.rounds}"
    )
    print(", ".join(f"{package} {version(package)}" for package in PACKAGES.values()))
    for name, contender in CONTENDERS.items():
        print(f"  {name:20} {SURVIVES[contender.durability]}")
        print(f"  {'':20} a task of a killed worker: {contender.keeps}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all unless given")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="one round of a tenth")
    parser.add_argument("--once", action="store_true", help="do not wait until the disk is calm")
    parser.add_argument("--only", default="", help="contenders with this in their name")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; else a temporary one")
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--check", action="store_true", help="exit 1 if a must is missed")
    options = parser.parse_args()
    if unknown := set(options.sections) - SECTIONS.keys():
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    folder = Path(tempfile.mkdtemp(prefix="millpond-bench-", dir=options.folder))
    rounds = options.rounds or (1 if options.quick else 3)
    stage = Stage(folder, rounds, options.quick, options.only, options.once)
    every: dict[str, Found] = {}
    try:
        if not options.json:
            show_machine(stage)
        for name in options.sections or SECTIONS:
            every[name] = SECTIONS[name](stage)
            stage.forget()
            if not options.json:
                show(name, every[name])
    finally:
        shutil.rmtree(folder)
    print(
        f"\n{stage.calm} measurements on a calm disk, {stage.uneasy} while an fsync took more than "
        f"{CALM:g} times the {stage.fsync * 1e3:.3f} ms that it can take",
        file=sys.stderr if options.json else sys.stdout,
    )
    missed = [what for found in every.values() for what in found.missed()]
    if options.json:
        sections = {name: found.data() for name, found in every.items()}
        print(json.dumps({"python": platform.python_version(), "missed": missed} | sections))
    elif missed:
        print(f"\nmissed: {'; '.join(missed)}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
