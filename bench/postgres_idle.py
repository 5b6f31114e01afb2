"""What a worker on PostgreSQL costs while there is nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

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
from postgres_contenders import OURS, PEERS
from postgres_speed import note_missing
from postgres_stage import Actor, Stage
from processes import Use


@contextmanager
def worker_of(contender: Contender, url: str) -> Iterator[int]:
    """Start a worker; give its process."""
    with Actor(contender, "idle", url, concurrency=CONCURRENCY) as actor:
        yield actor.ready().process.pid


def used(
    stage: Stage,
    contender: Contender,
    start: Callable[[str], AbstractContextManager[int]],
    seconds: float,
) -> tuple[Use, Use]:
    """Return what an idle worker used at the beginning and at the end of a while."""
    with stage.fresh(contender) as url, start(url) as process:
        return use_during(process, seconds)


def measure_idle(stage: Stage) -> Found:
    """T16: a worker with nothing to do is small, and does nothing."""
    found = Found()
    note_missing(found, stage, *PEERS)
    seconds = 2.0 if stage.quick else 10.0
    ways = {
        contender.name: partial(used, stage, contender, partial(worker_of, contender), seconds)
        for contender in (OURS, *PEERS)
        if stage.chosen(contender)
    }
    ways[APP] = partial(used, stage, OURS, application, seconds)
    if COMMAND.exists():
        ways[WORKER] = partial(used, stage, OURS, command, seconds)
    rounds = stage.interleaved(ways)
    show_used(found, rounds, seconds)
    judge_memory(found, rounds, 60.0, 45.0)
    return found
