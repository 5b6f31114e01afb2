"""What `millpond run` costs per command beside `xargs -P` and GNU parallel, and what it keeps.

speed  a trivial command (`true`, `echo`) for each item, two at a time: T17
kill   10,000 items, SIGKILL in the middle, --resume: every item done, none that was done repeated

Each contender is measured as one types it, from its start to its end, in turns and in a new order
every round. CPU time is that of the contender and of all it started; xargs and parallel keep
nothing, so a run of theirs that is killed begins again. Figures are medians; a ratio is the
median, over the rounds, of the ratio within one, and is never rounded in our favour. `--check`
exits 1 if a must is missed; `--quick` takes one round of a fifth.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from figures import Figure, Found, Plan, Target, Times, Took, cautious, median, ratio

OURS = [sys.executable, "-m", "millpond", "run", "-q"]

CONTENDERS = {
    "millpond run": [*OURS, "-j2"],
    "xargs -P2 -n1": ["xargs", "-P2", "-n1"],
    "GNU parallel": ["parallel", "--will-cite", "-j2"],
}

PEER = "GNU parallel"


def took(arguments: list[str], items: int, folder: Path) -> Took:
    """Run a contender over so many items; return seconds for each."""
    given = "".join(f"{number}\n" for number in range(items)).encode()
    environment = os.environ | {"XDG_STATE_HOME": str(folder)}
    with tempfile.TemporaryFile() as lines:
        lines.write(given)
        lines.seek(0)
        began = time.perf_counter()
        process = subprocess.Popen(
            arguments, stdin=lines, stdout=subprocess.DEVNULL, env=environment, cwd=folder
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{arguments}: {process.returncode}"
    return Took((used.ru_utime + used.ru_stime) / items, wall / items)


def measure_speed(plan: Plan, folder: Path) -> Found:
    """Measure what one trivial command costs."""
    found = Found()
    there = {name: one for name, one in CONTENDERS.items() if shutil.which(one[0])}
    found.absent = dict.fromkeys(CONTENDERS.keys() - there.keys(), "it is not installed")
    items = 500 if plan.quick else 2_000
    for command in ("true", "echo"):
        times: Times = defaultdict(list)
        for _ in range(plan.rounds):
            for name in random.sample(list(there), len(there)):
                times[name].append(took([*there[name], command], items, folder))
        for name in there:
            one = median(times[name])
            found.add(f"{command}, {name}", one.cpu * 1e3, "ms CPU", wall=one.wall * 1e3)
        if PEER in times:
            against = ratio(times["millpond run"], times[PEER])
            worse = max(against.cpu, against.wall)
            found.must(f"T17 {command}, against {PEER}", worse, 1.0, goal=0.5)
    return found


def measure_kill(plan: Plan, folder: Path) -> Found:
    """Kill a run in the middle, resume it, and count how often each item ran."""
    found = Found()
    items = [str(number) for number in range(2_000 if plan.quick else 10_000)]
    log = folder / "log"
    given = folder / "items"
    given.write_text("\n".join(items))
    line = ["-j2", "-a", str(given), "--shell", f"echo {{}} >> {log}"]
    environment = os.environ | {"XDG_STATE_HOME": str(folder)}
    killed = subprocess.Popen([*OURS, *line], env=environment)
    log.touch()
    while len(log.read_bytes().splitlines()) < len(items) // 2:
        assert killed.poll() is None, "it ended before it was killed"
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    shown = subprocess.run(
        [*OURS, "--show", "all", "--json"], env=environment, capture_output=True, check=True
    ).stdout
    kept = [json.loads(one) for one in shown.splitlines()]
    done = {one["item"] for one in kept if one["status"] == "completed"}
    subprocess.run([*OURS, "--resume", *line], env=environment, check=True)
    runs = Counter(log.read_text().splitlines())
    repeated = {item for item, count in runs.items() if count > 1}
    found.add("items", len(items), "")
    found.add("done when it was killed", len(done), "")
    found.add("at work then, or ended and not stored, and run again", len(repeated), "")
    found.must("items not done after --resume", len(set(items) - runs.keys()), 0, "")
    found.must("done before and run again", len(repeated & done), 0, "")
    return found


SECTIONS: dict[str, Callable[[Plan, Path], Found]] = {
    "speed": measure_speed,
    "kill": measure_kill,
}


def line_of(figure: Figure) -> str:
    """Return a figure as a line."""
    value = cautious(figure.value, up=True, digits=2 if figure.unit else 0)
    wall = "" if figure.wall is None else f"  {cautious(figure.wall, up=True)} ms on the wall"
    return f"  {figure.name:58} {value:>10} {figure.unit}{wall}"


def verdict_of(target: Target) -> str:
    """Return a target as a line."""
    goal = "" if target.goal is None else f", goal {target.goal:g}"
    word = "MISSED" if not target.holds else "goal met" if target.reached else "met"
    value = cautious(target.value, up=True, digits=2 if target.unit else 0)
    return f"  {target.name:58} {value:>10} {target.unit} ({target.bound}{goal}) {word}"


def show(name: str, found: Found) -> None:
    """Print a section."""
    print(f"\n{name}")
    for figure in found.figures:
        print(line_of(figure))
    for what, reason in found.absent.items():
        print(f"  {what:58} NOT MEASURED: {reason}")
    for target in found.targets:
        print(verdict_of(target))
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all unless given")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="one round of a fifth")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; else a temporary one")
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--check", action="store_true", help="exit 1 if a must is missed")
    options = parser.parse_args()
    if unknown := set(options.sections) - SECTIONS.keys():
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    plan = Plan(options.rounds or (1 if options.quick else 3), options.quick)
    every: dict[str, Found] = {}
    if not options.json:
        load = os.getloadavg()[0]
        print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}")
    with tempfile.TemporaryDirectory(prefix="millpond-bench-", dir=options.folder) as folder:
        for name in options.sections or SECTIONS:
            own = Path(folder) / name
            own.mkdir()
            every[name] = SECTIONS[name](plan, own)
            if not options.json:
                show(name, every[name])
    missed = [what for found in every.values() for what in found.missed()]
    if options.json:
        sections = {name: found.data() for name, found in every.items()}
        print(json.dumps({"python": platform.python_version(), "missed": missed} | sections))
    elif missed:
        print(f"\nmissed: {'; '.join(missed)}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
