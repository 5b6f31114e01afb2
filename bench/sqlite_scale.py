"""What many cost on SQLite: a million queued tasks, many keys, several processes on one file."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from actors import ActFailed, Rounds
from contender import Contender
from drains import Drained, median_ratio, rate_of, show_drains, worst_ratio
from figures import Found, quantile
from shapes import SHAPES, SLOTS, Shape
from sqlite_contenders import HUEY, LITEQUEUE, OURS, OURS_NORMAL, PERSIST
from sqlite_speed import SECONDS
from sqlite_stage import Actor, Stage, act

FEW, MILLION = 10_000, 1_000_000
PART_TIME = 60.0
"""Seconds in which that many must have started."""


def part_of(stage: Stage, shape: Shape, queued: int, part: int) -> Drained:
    """Run some of the queued tasks with one worker process, and leave the others."""
    with stage.filled(OURS, queued, shape=shape) as path:
        answer = act(
            *(OURS, "work", path),
            count=part,
            slice=True,
            concurrency=SLOTS,
            seconds=PART_TIME,
            shape=shape,
        )
    if answer["counted"] != part:
        raise ActFailed(f"{answer['counted']:,} of {part:,} tasks started in {PART_TIME:g} s")
    return rate_of([answer], part, part=True)


def measure_scale(stage: Stage) -> Found:
    """T12: a task costs the same whether 10,000 or 1,000,000 wait behind it."""
    found = Found()
    if not stage.chosen(OURS):
        return found
    many = stage.size(MILLION, MILLION // 10)
    for name, shape in SHAPES.items():
        few_named, many_named = (f"{name}, {queued:,} queued" for queued in (FEW, many))
        # The same number is run of both: all of the few, and as many of the million.
        rounds = stage.interleaved(
            {
                few_named: partial(part_of, stage, shape, FEW, FEW),
                many_named: partial(part_of, stage, shape, many, FEW),
            }
        )
        for label, taken in rounds.done().items():
            cpu = statistics.median(one.cpu for one in taken) * 1e6
            rate = statistics.median(one.starts for one in taken)
            found.add(label, rate, "/s", note=f"{cpu:,.0f} us CPU each")
        found.absent |= rounds.failed
        if rounds.has(few_named, many_named):
            lots, few = rounds.of[many_named], rounds.of[few_named]
            ratio = median_ratio([one.starts for one in lots], [one.starts for one in few])
            found.reach(f"T12 {name}, {many:,} / {FEW:,} queued", ratio, 0.7, goal=0.95)
        stage.forget()
    return found


# Fairness and limits


def whole_of(stage: Stage, shape: Shape, count: int) -> Drained:
    """Drain everything with one worker process."""
    with stage.filled(OURS, count, shape=shape) as path:
        answer = act(
            *(OURS, "work", path), count=count, concurrency=SLOTS, seconds=60.0, shape=shape
        )
    return rate_of([answer], count)


def measure_fair(stage: Stage) -> Found:
    """T11, for information: what turns and limits over 10,000 keys cost beside plain fifo."""
    found = Found()
    if not stage.chosen(OURS):
        return found
    count = stage.size(50_000, 10_000)
    rounds = stage.interleaved(
        {name: partial(whole_of, stage, SHAPES[name], count) for name in ("fifo", "fair")}
    )
    show_drains(found, rounds)
    if rounds.has("fifo", "fair"):
        ratio = worst_ratio(rounds.of["fair"], rounds.of["fifo"])
        found.add("T11 fair + max_per_key + max_concurrent / fifo (for information)", ratio, "x")
        found.figures[-1].note = "at least 0.45, goal 0.7"
    return found


# Several workers

WORKERS = 4
PAUSE = 0.005


def fleet(
    stage: Stage,
    contender: Contender,
    count: int,
    *,
    workers: int,
    concurrency: int,
    shape: Shape,
    pause: float = 0.0,
) -> Drained:
    """Drain one file with several worker processes that begin together."""
    seconds = SECONDS / 2 if stage.quick else SECONDS * 2
    given = {"count": count, "concurrency": concurrency, "pause": pause, "seconds": seconds}
    with stage.filled(contender, count, shape=shape) as path, ExitStack() as stack:
        actors = [
            stack.enter_context(Actor(contender, "work", path, shape=shape, **given))
            for _ in range(workers)
        ]
        for actor in actors:
            actor.ready()
        for actor in actors:
            actor.go()
        answers = [actor.answer() for actor in actors]
    return rate_of(answers, count)


def fleets(stage: Stage) -> dict[str, Callable[[], Drained]]:
    """Return one worker and four, with and without work to do, limited together and each alone."""
    count, slow = stage.size(50_000, 5_000), stage.size(10_000, 1_000)
    wide, tight = {"max_concurrent": WORKERS * SLOTS}, {"max_concurrent": SLOTS}
    ways: dict[str, Callable[[], Drained]] = {}
    if stage.chosen(OURS):
        ours = partial(fleet, stage, OURS)
        for workers in (1, WORKERS):
            ways[named(workers, WIDE)] = partial(
                ours, count, workers=workers, concurrency=SLOTS, shape=wide
            )
            ways[named(workers, TIGHT)] = partial(
                ours, count, workers=workers, concurrency=SLOTS, shape=tight
            )
            ways[named(workers, SLOW)] = partial(
                ours, slow, workers=workers, concurrency=10, shape=wide, pause=PAUSE
            )
    if stage.chosen(HUEY):
        for workers in (1, WORKERS):
            ways[f"{HUEY.name}, workers={workers}, threads=1"] = partial(
                fleet, stage, HUEY, count, workers=workers, concurrency=1, shape={}
            )
    return ways


WIDE = f"C={SLOTS} each"
TIGHT = f"max_concurrent={SLOTS} for all"
SLOW = f"C=10 each, {PAUSE * 1e3:g} ms handlers"


def named(workers: int, how: str) -> str:
    """Return the name of one of our fleets."""
    return f"{OURS.name}, workers={workers}, {how}"


def measure_fleet(stage: Stage) -> Found:
    """Four worker processes on one file do not get in each other's way."""
    found = Found()
    rounds = stage.interleaved(fleets(stage))
    show_drains(found, rounds)
    for how in (WIDE, TIGHT, SLOW):
        one, four = named(1, how), named(WORKERS, how)
        if not rounds.has(one, four):
            continue
        # By their starts: several workers notice a little late that nothing is left.
        fours, ones = ([one.starts for one in rounds.of[name]] for name in (four, one))
        ratio = median_ratio(fours, ones)
        found.reach(f"{WORKERS} workers / 1, {how}", ratio, 0.8)
    return found


# Several writers

WRITERS = 4


def written(stage: Stage, contender: Contender, each: int) -> list[float]:
    """Have several processes submit one after another; return how long each submit took."""
    with stage.fresh() as path, ExitStack() as stack:
        act(contender, "fill", path, count=0)
        actors = [
            stack.enter_context(Actor(contender, "submit", path, count=each, lags=True))
            for _ in range(WRITERS)
        ]
        for actor in actors:
            actor.ready()
        for actor in actors:
            actor.go()
        answers = [actor.answer() for actor in actors]
    return [lag for answer in answers for lag in answer["lags"]]


def measure_writers(stage: Stage) -> Found:
    """A submit is not kept waiting long while other processes write."""
    found = Found()
    each = stage.size(3_000, 300)
    contenders = (OURS, OURS_NORMAL, HUEY, LITEQUEUE, PERSIST)
    rounds: Rounds[list[float]] = stage.interleaved(
        {
            contender.name: partial(written, stage, contender, each)
            for contender in contenders
            if stage.chosen(contender)
        }
    )
    for name, taken in rounds.done().items():
        middle, late = (
            statistics.median(quantile(lags, part) for lags in taken) for part in (0.5, 0.99)
        )
        worst = max(max(lags) for lags in taken)
        spread = statistics.median(spread_of(lags) for lags in taken)
        note = f"p99 {late * 1e3:,.2f} ms = {spread:,.1f} x, worst {worst * 1e3:,.1f} ms"
        found.add(f"{name}, {WRITERS} writers: p50", middle * 1e3, "ms", note=note)
    found.absent |= rounds.failed
    for contender in (OURS, OURS_NORMAL):
        if rounds.has(contender.name):
            spread = statistics.median(map(spread_of, rounds.of[contender.name]))
            found.must(f"{contender.name}, {WRITERS} writers: p99 / p50", spread, 10.0)
    return found


def spread_of(lags: list[float]) -> float:
    """Return how much longer than most the slowest of a hundred took."""
    return quantile(lags, 0.99) / quantile(lags, 0.5)
