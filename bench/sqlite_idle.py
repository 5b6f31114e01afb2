"""What a worker on SQLite costs while there is nothing to do: memory, CPU time, reads."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from actors import HERE, ActFailed
from contender import Contender
from figures import Found
from processes import Use, use_of
from sqlite_contenders import HUEY, LITEQUEUE, OURS, PERSIST
from sqlite_stage import Actor, Stage, act

CONCURRENCY = 10
SETTLED = 2.0
"""Seconds after which a worker that was just started is taken to be idle."""
APP, WORKER = "millpond, an application with one pool", "millpond worker, the same application"
COMMAND = Path(sys.executable).with_name("millpond")


@contextmanager
def worker_of(contender: Contender, path: Path) -> Iterator[int]:
    """Start a worker; give its process."""
    act(contender, "fill", path, count=0)
    with Actor(contender, "idle", path, concurrency=CONCURRENCY) as actor:
        yield actor.ready().process.pid


@contextmanager
def application(path: Path) -> Iterator[int]:
    """Start our worker as an application has it, with nothing of the benchmark in its process."""
    environment = {**os.environ, "BENCH_URL": f"sqlite:///{path}"}
    with subprocess.Popen(
        [sys.executable, str(HERE / "sqlite_app.py")], stdout=subprocess.PIPE, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise ActFailed(f"{APP}: ended with {process.wait()} before it was ready")
            yield process.pid
        finally:
            process.kill()


@contextmanager
def command(path: Path) -> Iterator[int]:
    """Start our worker as `millpond worker` does."""
    process = subprocess.Popen(
        [str(COMMAND), "worker", "--concurrency", str(CONCURRENCY), "sqlite_app:mp"],
        cwd=HERE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "BENCH_URL": f"sqlite:///{path}"},
    )
    try:
        time.sleep(SETTLED)
        if process.poll() is not None:
            raise ActFailed(f"{WORKER}: ended with {process.returncode}")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def used(
    stage: Stage, start: Callable[[Path], AbstractContextManager[int]], seconds: float
) -> tuple[Use, Use]:
    """Return what an idle worker used at the beginning and at the end of a while."""
    with stage.fresh() as path, start(path) as process:
        time.sleep(SETTLED)
        before = use_of(process)
        time.sleep(seconds)
        return before, use_of(process)


def measure_idle(stage: Stage) -> Found:
    """T16: a worker with nothing to do is small, and does nothing."""
    found = Found()
    seconds = 2.0 if stage.quick else 10.0
    ways = {
        contender.name: partial(used, stage, partial(worker_of, contender), seconds)
        for contender in (OURS, HUEY, LITEQUEUE, PERSIST)
        if stage.chosen(contender)
    }
    if stage.chosen(OURS):
        ways[APP] = partial(used, stage, application, seconds)
        if COMMAND.exists():
            ways[WORKER] = partial(used, stage, command, seconds)
    rounds = stage.interleaved(ways)
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
    for name in (APP, WORKER):
        if rounds.has(name):
            largest = max(after.resident for _, after in rounds.of[name]) / 1e6
            found.must(f"T16 {name}: worst round", largest, 40.0, "MB", goal=30.0)
    return found
