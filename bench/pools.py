"""What pools in one process promise: what a task costs, how that grows, what is kept, what is left.

map      T3: 10,000 items through pool.map beside aiometer, at most 100 at a time
submit   T4: 10,000 submits and waits beside aiojobs, limit 100: one at a time, and fanned out
latency  from submit to the first step of the handler, on an idle pool
scale    1,000,000 calls queued over 10,000 keys, fifo and fair: cost per task, memory, closing
runs     1,000 drains at once on one pool: how long after its last handler each returns
memory   an idle pool, a queued closure, and what is left of ended tasks after retention
idle     CPU time and store verbs of 100 pools with nothing to do
process  from a timeout to the death of a child process, 30 times
sync     bench/sync.py: what a thread pays beyond its hop to the loop

Each section runs in a process of its own. Contenders run interleaved, in a new order every round.
Times are CPU time of the process, and wall time beside it: on a machine that others use, only the
first repeats. Figures are medians; a ratio is the median, over the rounds, of the ratio within one.
`--check` judges CPU time and exits 1 if a must is missed; `--quick` takes fewer rounds, and 100,000
for a million.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys

from figures import Found, Plan

SECTIONS = {
    "map": "pools_speed:measure_map",
    "submit": "pools_speed:measure_submit",
    "latency": "pools_speed:measure_latency",
    "scale-fifo": "pools_scale:measure_fifo",
    "scale-fair": "pools_scale:measure_fair",
    "runs": "pools_scale:measure_runs",
    "memory": "pools_keep:measure_memory",
    "idle": "pools_keep:measure_idle",
    "process": "pools_kill:measure_kills",
    "sync": "pools_sync:measure_sync",
}


def measure_here(name: str, plan: Plan) -> Found:
    """Run a section in this process."""
    module, function = SECTIONS[name].split(":")
    found: Found = getattr(importlib.import_module(module), function)(plan)
    return found


def measure_apart(name: str, plan: Plan) -> Found:
    """Run a section where nothing else has been: no memory, no garbage, no other pools."""
    command = [sys.executable, __file__, "--here", name, "--rounds", str(plan.rounds)]
    if plan.quick:
        command.append("--quick")
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return Found.read(json.loads(answer.stdout))


def show(found: Found) -> None:
    """Print a section."""
    for figure in found.figures:
        wall = "" if figure.wall is None else f"  (wall {figure.wall:,.2f})"
        print(f"  {figure.name:58} {figure.value:12,.2f} {figure.unit}{wall}")
    for target in found.targets:
        goal = "" if target.goal is None else f", goal {target.goal:g}"
        wall = "" if target.wall is None else f"  (wall {target.wall:,.2f})"
        word = "holds" if target.holds else "MISSED"
        print(
            f"  {target.name:58} {target.value:12,.2f} {target.unit}"
            f" ({target.bound}{goal}) {word}{wall}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all unless given")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, a tenth of a million")
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--check", action="store_true", help="exit 1 if a must is missed")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    plan = Plan(options.rounds or (3 if options.quick else 9), options.quick)
    if options.here is not None:
        json.dump(measure_here(options.here, plan).data(), sys.stdout)
        return 0
    if unknown := set(options.sections) - SECTIONS.keys():
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    every: dict[str, Found] = {}
    for name in options.sections or SECTIONS:
        every[name] = measure_apart(name, plan)
        if not options.json:
            print(name)
            show(every[name])
    missed = [what for found in every.values() for what in found.missed()]
    if options.json:
        sections = {name: found.data() for name, found in every.items()}
        print(json.dumps({"python": platform.python_version(), "missed": missed} | sections))
    elif missed:
        print(f"missed: {'; '.join(missed)}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
