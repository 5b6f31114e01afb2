"""What many cost on PostgreSQL: a million queued tasks, many keys, several workers."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from functools import partial

from actors import ActFailed
from drains import Drained, median_ratio, rate_of, show_drains, worst_ratio
from figures import Found
from postgres_contenders import OURS
from postgres_stage import Actor, Stage, act
from shapes import FLOW, KEYS, SHAPES, SLOTS, Shape

FEW, MILLION = 10_000, 1_000_000
PART_TIME = 60.0
"""Seconds in which that many must have started."""


def part_of(stage: Stage, shape: Shape, queued: int, part: int) -> Drained:
    """Run some of the queued tasks with one worker process, and leave the others."""
    with stage.fresh(OURS, queued, shape=shape) as url:
        answer = act(
            *(OURS, "work", url),
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
    few, many = stage.size(FEW, FEW // 10), stage.size(MILLION, MILLION // 20)
    for name, shape in SHAPES.items():
        few_named, many_named = (f"{name}, {queued:,} queued" for queued in (few, many))
        # The same number is run of both: all of the few, and as many of the million.
        rounds = stage.interleaved(
            {
                few_named: partial(part_of, stage, shape, few, few),
                many_named: partial(part_of, stage, shape, many, few),
            }
        )
        for label, taken in rounds.done().items():
            cpu = statistics.median(one.cpu for one in taken) * 1e6
            rate = statistics.median(one.starts for one in taken)
            found.add(label, rate, "/s", note=f"{cpu:,.0f} us CPU each")
        found.absent |= rounds.failed
        if rounds.has(few_named, many_named):
            lots, less = rounds.of[many_named], rounds.of[few_named]
            ratio = median_ratio([one.starts for one in lots], [one.starts for one in less])
            found.reach(f"T12 {name}, {many:,} / {few:,} queued", ratio, 0.7, goal=0.95)
        stage.forget()
    return found


# Fairness and limits


def whole_of(stage: Stage, shape: Shape, count: int) -> Drained:
    """Drain everything with one worker process."""
    with stage.fresh(OURS, count, shape=shape) as url:
        answer = act(
            *(OURS, "work", url), count=count, concurrency=SLOTS, seconds=60.0, shape=shape
        )
    return rate_of([answer], count)


def measure_fair(stage: Stage) -> Found:
    """T11: what turns and limits over 10,000 keys cost beside plain fifo."""
    found = Found()
    count = stage.size(50_000, 10_000)
    shapes = {"fifo": SHAPES["fifo"], "fair": SHAPES["fair"], "flow": FLOW}
    rounds = stage.interleaved(
        {name: partial(whole_of, stage, shape, count) for name, shape in shapes.items()}
    )
    show_drains(found, rounds)
    for name, label in (
        ("fair", "T11 fair + max_per_key + max_concurrent"),
        ("flow", "T11 flow: the same + a budget, a rate by weight and one per key"),
    ):
        if rounds.has("fifo", name):
            ratio = worst_ratio(rounds.of[name], rounds.of["fifo"])
            found.reach(f"{label}, {KEYS:,} keys / fifo", ratio, 0.45, goal=0.7)
    return found


# Several workers

WORKERS = 4
PAUSE = 0.005
EACH = 4
"""How many a worker runs at once: four workers then want 3,200 starts a second at most, which
leaves two cores idle for part of the time."""


def fleet(stage: Stage, count: int, workers: int) -> Drained:
    """Drain one database with several worker processes that begin together."""
    shape = {"max_concurrent": WORKERS * EACH}
    given = {"count": count, "concurrency": EACH, "pause": PAUSE, "seconds": 60.0, "shape": shape}
    with stage.fresh(OURS, count, shape=shape) as url, ExitStack() as stack:
        team = [stack.enter_context(Actor(OURS, "work", url, **given)) for _ in range(workers)]
        for actor in team:
            actor.ready()
        for actor in team:
            actor.go()
        answers = [actor.answer() for actor in team]
    return rate_of(answers, count)


def measure_fleet(stage: Stage) -> Found:
    """T14: four worker processes start four times as many tasks, unless the CPU is used up."""
    found = Found()
    count = stage.size(8_000, 1_000)
    one, four = (f"{workers} worker(s), C={EACH} each" for workers in (1, WORKERS))
    rounds = stage.interleaved(
        {one: partial(fleet, stage, count, 1), four: partial(fleet, stage, count, WORKERS)}
    )
    show_drains(found, rounds)
    if rounds.has(one, four):
        # By their starts: several workers notice a little late that nothing is left.
        fours, ones = ([each.starts for each in rounds.of[name]] for name in (four, one))
        label = f"T14 {WORKERS} workers / 1, {PAUSE * 1e3:g} ms handlers"
        found.reach(label, median_ratio(fours, ones), 3.0, goal=3.8)
    return found
