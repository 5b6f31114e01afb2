"""A steady mixed load on one store, for long: nothing may grow, nothing may be lost.

Two worker processes and a submitter, as bench/soak_load.py has them: ten minutes on a SQLite file,
an hour on a PostgreSQL server. Once a second the memory and descriptors of each process are read,
and the size of the file with its WAL; or, on a server, the dead rows, the size of tables and of
indexes, and what a task writes to the log. What is judged is the second half: the mean of its last
fifth may exceed that of its first by less than 2 %, or what bench/soak_ground.py says. At the end
every task that was taken must have ended, once. Exits 1 if any of it does not hold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from figures import cautious
from processes import Use, use_of
from soak_ground import GROUNDS, Bound, Ground

HERE = Path(__file__).parent
WORKERS = 2

Process = subprocess.Popen[str]
Samples = dict[str, list[float]]


@contextmanager
def started(role: str, url: str, given: dict[str, Any]) -> Iterator[Process]:
    """Start a process and wait until it is ready; kill it if it is still there at the end."""
    command = [sys.executable, str(HERE / "soak_load.py"), role, url, json.dumps(given)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise SystemExit(f"the {role} process ended with {process.wait()}")
            yield process
        finally:
            if process.poll() is None:
                process.kill()


class Watch:
    """Reads the processes and the store once a second."""

    def __init__(self, processes: dict[str, Process], ground: Ground) -> None:
        self.processes = processes
        self.ground = ground
        self.samples: Samples = {}
        self.last: dict[str, Use] = {}

    def note(self, name: str, value: float) -> None:
        """Add a sample."""
        self.samples.setdefault(name, []).append(value)

    def read(self) -> None:
        """Take one sample of everything."""
        for name, process in self.processes.items():
            self.last[name] = use = use_of(process.pid)
            self.note(f"{name}: resident MB", use.resident / 1e6)
            self.note(f"{name}: descriptors", use.descriptors)
        for name, value in self.ground.read().items():
            self.note(name, value)

    def run(self, seconds: float) -> None:
        """Read for so many seconds."""
        end = time.monotonic() + seconds
        shown = sys.stderr.isatty()
        while (now := time.monotonic()) < end:
            self.read()
            if dead := [name for name, one in self.processes.items() if one.poll() is not None]:
                raise SystemExit(f"ended before its time: {', '.join(dead)}")
            if shown:
                print(f"\r\033[K{end - now:.0f} s to go", end="", file=sys.stderr, flush=True)
            time.sleep(max(now + 1.0 - time.monotonic(), 0.0))
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class Growth(NamedTuple):
    """What something was at the beginning and at the end of the second half."""

    name: str
    early: float
    late: float
    peak: float
    bound: Bound

    @property
    def part(self) -> float:
        """How much it has grown, as a part of what it was."""
        return self.late / self.early - 1.0

    @property
    def holds(self) -> bool:
        """Whether that is little enough."""
        return self.part < self.bound.part or self.late - self.early < self.bound.slack


def growths(samples: Samples, ground: Ground) -> list[Growth]:
    """Compare the first and the last fifth of the second half."""
    found = []
    for name, values in samples.items():
        half = values[len(values) // 2 :]
        fifth = max(len(half) // 5, 1)
        early, late = statistics.fmean(half[:fifth]), statistics.fmean(half[-fifth:])
        bound = ground.bounds.get(name, Bound())
        found.append(Growth(name, early, late, max(values), bound))
    return found


def unaccounted(answer: dict[str, Any]) -> list[str]:
    """Return what does not add up, in words."""
    pools = answer["pools"]
    taken = {**answer["taken"], "after": pools["grow"]["completed"]}
    wrong = []
    for name, pool in pools.items():
        ended = pool["completed"] + pool["failed"] + pool["cancelled"]
        if pool["left"]:
            wrong.append(f"pool {name}: {pool['left']} task(s) have not ended")
        if ended + pool["left"] != taken[name]:
            wrong.append(f"pool {name}: {taken[name]} tasks were taken, {ended} ended")
    return wrong


def soak(ground: Ground, seconds: float, rate: float) -> tuple[Watch, dict[str, Any]]:
    """Run the load; return the samples, and the results of the tasks."""
    url = ground.url
    given = {"seconds": seconds, "rate": rate, "keep": min(30.0, seconds / 20)}
    with ExitStack() as stack:
        processes = {
            f"worker {number}": stack.enter_context(started("work", url, given))
            for number in range(1, WORKERS + 1)
        }
        processes["submitter"] = stack.enter_context(started("submit", url, given))
        watch = Watch(processes, ground)
        watch.run(seconds - 1.0)
        submitter = processes.pop("submitter")
        assert submitter.stdout is not None
        found = submitter.stdout.readline()
        if not found:
            raise SystemExit(f"the submitter ended with {submitter.wait()} and no answer")
        answer: dict[str, Any] = json.loads(found)
        for process in processes.values():
            process.communicate()
            assert process.returncode == 0, process.returncode
    return watch, answer


def show(watch: Watch, answer: dict[str, Any], seconds: float) -> None:
    """Print the samples."""
    ended = sum(pool["completed"] + pool["failed"] for pool in answer["pools"].values())
    print(f"{ended:,} tasks ended in {seconds:,.0f} s, {ended / seconds:,.0f}/s")
    for name, use in watch.last.items():
        print(f"  {name}: {use.cpu / seconds:.1%} of a core")
    print(f"  {'in the second half':28} {'from':>10} {'to':>10} {'growth':>9} {'peak':>10}")
    for one in growths(watch.samples, watch.ground):
        growth = cautious(one.part * 100, up=True)
        slack = f", or {one.bound.slack:,g}" if one.bound.slack else ""
        print(
            f"  {one.name:28} {one.early:10,.2f} {one.late:10,.2f} {growth:>7} % {one.peak:10,.2f}"
            f"  (under {one.bound.part:.0%}{slack}) {'met' if one.holds else 'MISSED'}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--store", choices=sorted(GROUNDS), default="sqlite")
    parser.add_argument("--minutes", type=float, help="else ten on a file, sixty on a server")
    parser.add_argument("--rate", type=float, default=400.0, help="tasks submitted a second")
    parser.add_argument("--folder", type=Path, help="where to put a file; else a temporary one")
    parser.add_argument("--samples", type=Path, help="write every sample to this file, as JSON")
    options = parser.parse_args()
    make = GROUNDS[options.store]
    minutes = make.minutes if options.minutes is None else options.minutes
    with make(options.folder, minutes) as ground:
        watch, answer = soak(ground, minutes * 60.0, options.rate)
    if options.samples is not None:
        options.samples.write_text(json.dumps({"samples": watch.samples, "tasks": answer}))
    show(watch, answer, minutes * 60.0)
    wrong = unaccounted(answer)
    for text in wrong:
        print(f"  WRONG: {text}")
    return 1 if wrong or not all(one.holds for one in growths(watch.samples, ground)) else 0


if __name__ == "__main__":
    sys.exit(main())
