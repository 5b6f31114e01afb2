"""What a worker costs while there is nothing to do: memory, CPU time, reads."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actors import HERE, ActFailed, Rounds
from figures import Found
from processes import Use, use_of

CONCURRENCY = 10
SETTLED = 2.0
"""Seconds after which a worker that was just started is taken to be idle."""
APP, WORKER = "millpond, an application with one pool", "millpond worker, the same application"
COMMAND = Path(sys.executable).with_name("millpond")


@contextmanager
def application(url: str) -> Iterator[int]:
    """Start our worker as an application has it, with nothing of the benchmark in its process."""
    environment = {**os.environ, "BENCH_URL": url}
    with subprocess.Popen(
        [sys.executable, str(HERE / "idle_app.py")], stdout=subprocess.PIPE, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise ActFailed(f"{APP}: ended with {process.wait()} before it was ready")
            yield process.pid
        finally:
            process.kill()


@contextmanager
def command(url: str) -> Iterator[int]:
    """Start our worker as `millpond worker` does."""
    process = subprocess.Popen(
        [str(COMMAND), "worker", "--concurrency", str(CONCURRENCY), "idle_app:mp"],
        cwd=HERE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "BENCH_URL": url},
    )
    try:
        time.sleep(SETTLED)
        if process.poll() is not None:
            raise ActFailed(f"{WORKER}: ended with {process.returncode}")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def use_during(process: int, seconds: float) -> tuple[Use, Use]:
    """Return what an idle process used at the beginning and at the end of a while."""
    time.sleep(SETTLED)
    before = use_of(process)
    time.sleep(seconds)
    return before, use_of(process)


def show_used(found: Found, rounds: Rounds[tuple[Use, Use]], seconds: float) -> None:
    """Add what each worker used."""
    for name, taken in rounds.done().items():
        memory = statistics.median(after.resident for _, after in taken) / 1e6
        cpu, reads, writes, wakes = (
            statistics.median(
                getattr(after, what) - getattr(before, what) for before, after in taken
            )
            for what in ("cpu", "reads", "writes", "wakes")
        )
        note = (
            f"in {seconds:g} s: {cpu * 1e3:,.0f} ms CPU, {reads:,.0f} reads, {writes:,.0f} writes, "
            f"{wakes:,.0f} wake-ups"
        )
        found.add(f"{name}: resident", memory, "MB", note=note)
    found.absent |= rounds.failed


def judge_memory(found: Found, rounds: Rounds[tuple[Use, Use]], most: float, goal: float) -> None:
    """Add the target of our own workers' memory, in MB."""
    for name in (APP, WORKER):
        if rounds.has(name):
            largest = max(after.resident for _, after in rounds.of[name]) / 1e6
            found.must(f"T16 {name}: worst round", largest, most, "MB", goal=goal)
