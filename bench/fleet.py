"""Many processes on one PostgreSQL server whose disk is slow.

submit   16 processes that each await one submit at a time: T19
slots    8 workers x 10 slots x 50 ms handlers, of what the slots allow: T20
mix      the same with keys, labels, runs, retries and tenants in turn; detours: T21
frozen   the worst submit of others while a process is frozen: T22
keys     submits with an idempotency key against those without: T24
network  drains over 1 ms of network against none: T25
pools    two pools drained by two processes: T26
few      2 workers x 8 slots x 20 ms handlers, ordinary disk: T28

The server is PostgreSQL as it comes, but each flush of its log takes 2 ms longer (verify/servers/
slow_disk.c), as on a disk of the network. Contenders run interleaved, in a new order every round,
each in processes of its own and on a fresh database. Figures are medians; a ratio is the median,
over the rounds, of the ratio within one.
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
from contextlib import ExitStack
from pathlib import Path

import fleet_frozen
import fleet_keys
import fleet_network
import fleet_pools
import fleet_slots
import fleet_submit
from actors import fsync_cost
from figures import Found
from fleet_stage import FLUSH, FleetStage
from table import show
from verify.servers.postgres import OwnServer, programs_here, slow_server

SECTIONS: dict[str, tuple[Callable[[FleetStage], Found], str]] = {
    "submit": (fleet_submit.measure, "T19"),
    "slots": (fleet_slots.measure_many, "T20"),
    "mix": (fleet_slots.measure_mix, "T21"),
    "frozen": (fleet_frozen.measure, "T22"),
    "keys": (fleet_keys.measure, "T24"),
    "network": (fleet_network.measure, "T25"),
    "pools": (fleet_pools.measure, "T26"),
    "few": (fleet_slots.measure_few, "T28"),
}
SETTINGS = {"max_connections": "200"}


def rows_of(text: str) -> frozenset[str]:
    """Return the rows that a list with commas names."""
    rows = frozenset(one.strip().upper() for one in text.split(",") if one.strip())
    there = {row for _, row in SECTIONS.values()}
    if unknown := rows - there:
        named = f"no row {', '.join(sorted(unknown))}; there are {', '.join(sorted(there))}"
        raise argparse.ArgumentTypeError(named)
    return rows


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("--only", type=rows_of, default=frozenset(), help="rows, as in T19,T20")
    options.add_argument("--peers", default="", help="who has one of these, with commas, in a name")
    options.add_argument("--rounds", type=int)
    options.add_argument("--quick", action="store_true", help="one short round")
    options.add_argument("--json", action="store_true", help="print data instead of a table")
    options.add_argument("--check", action="store_true", help="exit 1 if a must is missed")
    return options


def machine_of(stage: FleetStage) -> dict[str, str]:
    """Return what is measured with."""
    load, _, _ = os.getloadavg()
    return {
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        "load at the start": f"{load:.1f}",
        "fsync of this disk": f"{fsync_cost(stage.folder, 200) * 1e3:.3f} ms",
        "flush of the slow disk": f"+{FLUSH * 1e3:g} ms",
        "rounds": str(stage.rounds) + (", short" if stage.quick else ""),
        **stage.settings(),
    }


def measure(stage: FleetStage, *, quietly: bool) -> dict[str, Found]:
    """Measure every section that is wanted."""
    every: dict[str, Found] = {}
    for name, (section, row) in SECTIONS.items():
        if stage.wants(row):
            every[name] = section(stage)
            stage.forget()
            if not quietly:
                show(name, every[name])
    return every


def main() -> int:
    options = parser().parse_args()
    rounds = options.rounds or (1 if options.quick else 3)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="millpond-bench-"))
        stack.callback(shutil.rmtree, folder)
        slow = stack.enter_context(slow_server(FLUSH, SETTINGS))
        stage = FleetStage(
            *(folder, rounds, options.quick, options.peers),
            once=True,
            server=slow,
            rows=options.only,
            ordinary=lambda: OwnServer(programs_here(), SETTINGS),
        )
        machine = machine_of(stage)
        if not options.json:
            print(", ".join(f"{name} {value}" for name, value in machine.items()))
        every = measure(stage, quietly=options.json)
    missed = [what for found in every.values() for what in found.missed()]
    if options.json:
        sections = {name: found.data() for name, found in every.items()}
        print(json.dumps({"machine": machine, "missed": missed} | sections))
    elif missed:
        print(f"\nmissed: {'; '.join(missed)}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
