"""How quick a queue on SQLite is: submits, a drain by one worker process, a start from idle."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

from actors import ActFailed
from contender import Contender
from drains import Drained, median_ratio, rate_of, show_drains, worst_ratio
from figures import Found, quantile
from sqlite_contenders import (
    CONTENDERS,
    HUEY,
    HUEY_OFF,
    LITEQUEUE,
    OURS,
    OURS_NORMAL,
    PERSIST,
)
from sqlite_stage import Actor, Stage, act

SUBMITTERS = 100
SECONDS = 15.0
"""After which a drain is stopped; its rate is that of what it had started."""


# Submits


def submitted(stage: Stage, contender: Contender, how: str, count: int) -> float:
    """Return how many tasks a second were stored."""
    with stage.fresh() as path:
        answer = act(contender, how, path, count=count, submitters=SUBMITTERS)
    assert answer["stored"] == count, answer
    return count / float(answer["seconds"])


def submits(stage: Stage) -> dict[str, Callable[[], float]]:
    """Return every way to store tasks."""
    single, many = stage.size(5_000, 500), stage.size(50_000, 10_000)
    counts = {"submit": single, "bulk": many, "fan": stage.size(20_000, 4_000)}
    ways: dict[str, Callable[[], float]] = {}
    for name, contender in CONTENDERS.items():
        if not stage.chosen(contender):
            continue
        for how in ("submit", "bulk", *(["fan"] if contender.kind == "millpond" else [])):
            if how == "bulk" and contender.kind in ("huey", "persistqueue"):
                continue  # Neither has a way to store many at once.
            ways[f"{name}, {WORDS[how]}"] = partial(submitted, stage, contender, how, counts[how])
    return ways


WORDS = {
    "submit": "one after another",
    "bulk": "bulk, 1,000 at a time",
    "fan": f"{SUBMITTERS} submitters of one process",
}


def measure_submit(stage: Stage) -> Found:
    """T15: a hundred submitters of one process share their commits."""
    found = Found()
    rounds = stage.interleaved(submits(stage))
    for name, rates in rounds.done().items():
        found.add(name, statistics.median(rates), "/s")
    found.absent |= rounds.failed
    ours, theirs = f"{OURS.name}, {WORDS['fan']}", f"{HUEY.name}, {WORDS['submit']}"
    if rounds.has(ours, theirs):
        ratio = median_ratio(rounds.of[ours], rounds.of[theirs])
        found.reach(f"T15 {SUBMITTERS} submitters / huey full single", ratio, 3.0, goal=8.0)
    one = f"{OURS.name}, {WORDS['submit']}"
    if rounds.has(one, theirs):
        ratio = median_ratio(rounds.of[one], rounds.of[theirs])
        found.add("millpond full single / huey full single", ratio, "x")
    return found


# Drains


def drained(
    stage: Stage, contender: Contender, count: int, concurrency: int, **shape: int
) -> Drained:
    """Drain a filled file with one worker process."""
    shape = {"max_concurrent": concurrency, **shape} if contender.kind == "millpond" else {}
    seconds = SECONDS / 4 if stage.quick else SECONDS
    with stage.filled(contender, count, shape=shape) as path:
        answer = act(
            *(contender, "work", path),
            count=count,
            concurrency=concurrency,
            seconds=seconds,
            shape=shape,
        )
    return rate_of([answer], count)


AHEAD = 500


def drains(stage: Stage) -> dict[str, Callable[[], Drained]]:
    """Return every way to drain the same backlog."""
    count = stage.size(50_000, 5_000)
    ways: dict[str, Callable[[], Drained]] = {}
    for contender in (OURS, OURS_NORMAL):
        if not stage.chosen(contender):
            continue
        for slots, ahead in ((1, 0), (10, 0), (100, 0), (10, AHEAD), (100, AHEAD)):
            ways[ours_named(contender, slots, ahead)] = partial(
                drained, stage, contender, count, slots, prefetch=ahead
            )
    for contender in (HUEY, HUEY_OFF, LITEQUEUE, PERSIST):
        if stage.chosen(contender):
            for threads in (1, 10):
                ways[f"{contender.name}, threads={threads}"] = partial(
                    drained, stage, contender, count, threads
                )
    return ways


def ours_named(contender: Contender, slots: int, ahead: int) -> str:
    """Return the name of one of our ways."""
    return f"{contender.name}, C={slots}, prefetch={ahead}"


def measure_drain(stage: Stage) -> Found:
    """T15: a drain with every promise on, against one that deletes a task before it runs it."""
    found = Found()
    rounds = stage.interleaved(drains(stage))
    show_drains(found, rounds)
    theirs = [f"{HUEY.name}, threads={threads}" for threads in (1, 10)]
    if not rounds.has(*theirs):
        return found
    best = [
        max(each, key=lambda one: one.most)
        for each in zip(*(rounds.of[n] for n in theirs), strict=True)
    ]
    for slots, ahead in ((100, 0), (100, AHEAD), (10, 0), (1, 0)):
        name = ours_named(OURS, slots, ahead)
        if rounds.has(name):
            ratio = worst_ratio(rounds.of[name], best)
            label = f"{name} / huey full, its best"
            if slots == 100:
                found.reach(f"T15 {label}", ratio, 5.0, goal=15.0)
            else:
                found.add(label, ratio, "x")
    return found


# Latency

CONCURRENCY = 10
WARM = 5
"""So many first tasks are not counted."""


def lags_of(stage: Stage, contender: Contender, count: int) -> list[float]:
    """Return the seconds from before each submit, in one process, to its start in another."""
    with stage.fresh() as path:
        act(contender, "fill", path, count=0)
        given = {"count": count, "concurrency": CONCURRENCY, "seconds": 120.0}
        with Actor(contender, "work", path, lags=True, stay=True, **given) as worker:
            worker.ready()
            with Actor(contender, "beat", path, count=count) as other:
                other.ready()
                worker.go()
                other.go().answer()
            lags: list[float] = worker.answer()["lags"]
    if len(lags) != count:
        raise ActFailed(f"{contender.name}: {len(lags)} of {count} tasks started")
    return lags[WARM:]


def measure_latency(stage: Stage) -> Found:
    """From a submit in one process to the start in another that has nothing to do."""
    found = Found()
    count = stage.size(1_000, 100)
    rounds = stage.interleaved(
        {
            contender.name: partial(lags_of, stage, contender, count)
            for contender in CONTENDERS.values()
            if stage.chosen(contender)
        }
    )
    for name, taken in rounds.done().items():
        middle, late = (
            statistics.median(quantile(lags, part) for lags in taken) for part in (0.5, 0.99)
        )
        worst = max(max(lags) for lags in taken)
        note = f"p99 {late * 1e3:,.2f} ms, worst {worst * 1e3:,.1f} ms"
        found.add(f"{name}: p50", middle * 1e3, "ms", note=note)
    found.absent |= rounds.failed
    for contender in (OURS, OURS_NORMAL):
        if rounds.has(contender.name):
            late = max(quantile(lags, 0.99) for lags in rounds.of[contender.name])
            found.must(f"{contender.name}: p99 of the worst round", late * 1e3, 50.0, "ms")
    return found
