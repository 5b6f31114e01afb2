"""What durable pools on PostgreSQL promise, beside other queues on the same server.

drain    50,000 queued no-ops run by one worker process: T5, T6, T7
submit   tasks stored a second, one after another, in bulk, by 100 submitters: T8, T9
latency  from a submit in one process to the start in another that is idle: T10
fair     turns and limits over 10,000 keys beside plain fifo: T11
scale    1,000,000 queued beside 10,000: T12
fleet    four worker processes beside one: T14
idle     a worker with nothing to do: T16
log      what a task writes to the server's log: T18

The server is PostgreSQL as it comes: fsync and synchronous_commit are on. Contenders run
interleaved, in a new order every round, each in processes of its own and on a fresh database that
was vacuumed and analyzed after it was filled, right after a checkpoint. Figures are medians; a
ratio is the median, over the rounds, of the ratio within one, our lower rate over their higher
one, and is never rounded in our favour. A measurement during which the disk was slowed by others
is taken again, up to three times. Who is missing is said, and counts as a target missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import postgres_idle
import postgres_scale
import postgres_speed
from actors import CALM, fsync_cost
from figures import Found
from postgres_contenders import CONTENDERS, missing
from postgres_stage import Stage
from table import show
from verify.servers.postgres import serve

SECTIONS: dict[str, tuple[Callable[[Stage], Found], frozenset[str]]] = {
    "drain": (postgres_speed.measure_drain, frozenset({"T5", "T6", "T7"})),
    "submit": (postgres_speed.measure_submit, frozenset({"T8", "T9"})),
    "latency": (postgres_speed.measure_latency, frozenset({"T10"})),
    "fair": (postgres_scale.measure_fair, frozenset({"T11"})),
    "scale": (postgres_scale.measure_scale, frozenset({"T12"})),
    "fleet": (postgres_scale.measure_fleet, frozenset({"T14"})),
    "idle": (postgres_idle.measure_idle, frozenset({"T16"})),
    "log": (postgres_speed.measure_log, frozenset({"T18"})),
}
ROWS = frozenset[str]().union(*(rows for _, rows in SECTIONS.values()))


def machine_of(stage: Stage) -> dict[str, str]:
    """Return what is measured with; refuse a server that does not wait for the disk."""
    settings = stage.settings()
    if settings["fsync"] != "on" or settings["synchronous_commit"] != "on":
        raise SystemExit(f"the server does not keep what it answered: {settings}")
    stage.fsync = fsync_cost(stage.folder, 200)
    return {
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        "fsync of this disk": f"{stage.fsync * 1e3:.3f} ms",
        "rounds": str(stage.rounds) + (" of a tenth" if stage.quick else ""),
        **settings,
    }


def show_machine(machine: dict[str, str]) -> None:
    """Print what is measured with, who takes part, and what each keeps."""
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    for name, contender in CONTENDERS.items():
        reason = missing(contender)
        word = f"MISSING: {reason}" if reason else f"a task of a killed worker: {contender.keeps}"
        print(f"  {name:28} {word}")


def rows_of(text: str) -> frozenset[str]:
    """Return the rows that a list with commas names."""
    rows = frozenset(one.strip().upper() for one in text.split(",") if one.strip())
    if unknown := rows - ROWS:
        there = ", ".join(sorted(ROWS, key=lambda row: int(row[1:])))
        raise argparse.ArgumentTypeError(f"no row {', '.join(sorted(unknown))}; there are {there}")
    return rows


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("--only", type=rows_of, default=frozenset(), help="rows, as in T5,T7")
    options.add_argument("--peers", default="", help="who has one of these, with commas, in a name")
    options.add_argument("--rounds", type=int)
    options.add_argument("--quick", action="store_true", help="one round of a tenth")
    options.add_argument("--json", action="store_true", help="print data instead of a table")
    options.add_argument("--check", action="store_true", help="exit 1 if a must is missed")
    return options


def measure(stage: Stage, *, quietly: bool) -> dict[str, Found]:
    """Measure every section of which a row is wanted."""
    every: dict[str, Found] = {}
    for name, (section, rows) in SECTIONS.items():
        if not stage.wants(*rows):
            continue
        every[name] = section(stage)
        stage.forget()
        if not quietly:
            show(name, every[name])
    return every


def main() -> int:
    options = parser().parse_args()
    folder = Path(tempfile.mkdtemp(prefix="millpond-bench-"))
    rounds = options.rounds or (1 if options.quick else 3)
    try:
        with serve({}) as server:
            stage = Stage(
                folder, rounds, options.quick, options.peers, server=server, rows=options.only
            )
            machine = machine_of(stage)
            if not options.json:
                show_machine(machine)
            every = measure(stage, quietly=options.json)
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
        print(json.dumps({"machine": machine, "missed": missed} | sections))
    elif missed:
        print(f"\nmissed: {'; '.join(missed)}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
