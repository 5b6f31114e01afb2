"""What a worker on SQLite costs while there is nothing to do: memory, CPU time, reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from contender import Contender
from figures import Found
from idle import (
    APP,
    COMMAND,
    CONCURRENCY,
    WORKER,
    application,
    command,
    judge_memory,
    show_used,
    use_during,
)
from processes import Use
from sqlite_contenders import HUEY, LITEQUEUE, OURS, PERSIST
from sqlite_stage import Actor, Stage, act


@contextmanager
def worker_of(contender: Contender, path: Path) -> Iterator[int]:
    """Start a worker; give its process."""
    act(contender, "fill", path, count=0)
    with Actor(contender, "idle", path, concurrency=CONCURRENCY) as actor:
        yield actor.ready().process.pid


def used(
    stage: Stage, start: Callable[[Path], AbstractContextManager[int]], seconds: float
) -> tuple[Use, Use]:
    """Return what an idle worker used at the beginning and at the end of a while."""
    with stage.fresh() as path, start(path) as process:
        return use_during(process, seconds)


def on_file(
    start: Callable[[str], AbstractContextManager[int]],
) -> Callable[[Path], AbstractContextManager[int]]:
    """Return what starts our own worker on a file."""
    return lambda path: start(f"sqlite:///{path}")


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
        ways[APP] = partial(used, stage, on_file(application), seconds)
        if COMMAND.exists():
            ways[WORKER] = partial(used, stage, on_file(command), seconds)
    rounds = stage.interleaved(ways)
    show_used(found, rounds, seconds)
    judge_memory(found, rounds, 40.0, 30.0)
    return found
