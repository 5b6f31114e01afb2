"""How quick a queue on PostgreSQL is: drains, submits, a start from idle, and the log it writes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from actors import ActFailed, Rounds
from contender import Contender
from drains import Drained, median_ratio, rate_of, show_drains, worst_ratio
from figures import Found, quantile
from postgres_contenders import (
    AWA,
    GRAPHILE,
    GRAPHILE_PLAIN,
    OBAN,
    OURS,
    PEERS,
    PGQUEUER,
    PROCRASTINATE,
    RAW,
    missing,
)
from postgres_stage import Actor, Stage, act

SECONDS = 15.0
"""After which a drain is stopped; its rate is that of what it had started."""
AHEAD = 500


def note_missing(found: Found, stage: Stage, *contenders: Contender) -> None:
    """Say loudly who was to be measured and is not here."""
    for contender in contenders:
        reason = missing(contender)
        if reason is not None and any(one in contender.name for one in stage.only.split(",")):
            found.absent[contender.name] = f"MISSING: {reason}"


# Drains


def drained(
    stage: Stage, contender: Contender, count: int, concurrency: int, ahead: int = 0
) -> Drained:
    """Drain a filled database with one worker process."""
    shape = {"max_concurrent": concurrency, "prefetch": ahead} if contender == OURS else {}
    seconds = SECONDS / 3 if stage.quick else SECONDS
    # A pool is filled by who declares it otherwise: what is stored is the same.
    filled = {"shape": {"max_concurrent": concurrency}} if shape else {}
    with stage.fresh(contender, count, **filled) as url:
        answer = act(
            *(contender, "work", url),
            count=count,
            concurrency=concurrency,
            seconds=seconds,
            shape=shape,
        )
    return rate_of([answer], count)


def named(contender: Contender, slots: int, ahead: int = 0) -> str:
    """Return the name of a way to drain."""
    return f"{contender.name}, C={slots}" + (f", prefetch={ahead}" if ahead else "")


def drains(stage: Stage) -> dict[str, Callable[[], Drained]]:
    """Return the ways to drain the same backlog that the wanted rows need."""
    count = stage.size(50_000, 5_000)
    wanted: list[tuple[tuple[str, ...], Contender, int, int]] = [
        (("T5", "T6"), OURS, 100, AHEAD),
        (("T7",), OURS, 10, 0),
        (("T7",), OURS, 100, 0),
        (("T5",), GRAPHILE, 100, 0),
        (("T6", "T7"), PGQUEUER, 100, 0),
        (("T7",), PGQUEUER, 10, 0),
        # For information.
        ((), OURS, 10, AHEAD),
        ((), GRAPHILE, 10, 0),
        ((), GRAPHILE_PLAIN, 100, 0),
        ((), PROCRASTINATE, 100, 0),
        ((), OBAN, 100, 0),
        ((), AWA, 100, 0),
        ((), RAW, 100, 0),
        ((), RAW, AHEAD, 0),
    ]
    return {
        named(contender, slots, ahead): partial(drained, stage, contender, count, slots, ahead)
        for rows, contender, slots, ahead in wanted
        if stage.wants(*rows) and stage.chosen(contender)
    }


def measure_drain(stage: Stage) -> Found:
    """T5, T6, T7: a backlog run by one worker process, every promise kept."""
    found = Found()
    judged = (GRAPHILE, PGQUEUER)
    note_missing(found, stage, *(judged if stage.rows else (*PEERS, RAW)))
    rounds = stage.interleaved(drains(stage))
    show_drains(found, rounds)
    ahead = named(OURS, 100, AHEAD)
    targets = (
        ("T5", ahead, named(GRAPHILE, 100), 1.0, 2.0),
        ("T6", ahead, named(PGQUEUER, 100), 3.0, 7.0),
        ("T7", named(OURS, 10), named(PGQUEUER, 10), 3.0, 5.0),
        ("T7", named(OURS, 100), named(PGQUEUER, 100), 2.5, 5.0),
    )
    for row, ours, theirs, least, goal in targets:
        if stage.wants(row):
            compare(found, rounds, f"{row} {ours} / {theirs}", ours, theirs, least, goal)
    return found


def compare(
    found: Found,
    rounds: Rounds[Drained],
    label: str,
    ours: str,
    theirs: str,
    least: float,
    goal: float,
) -> None:
    """Add a target, or say that it could not be judged."""
    if rounds.has(ours, theirs):
        ratio = worst_ratio(rounds.of[ours], rounds.of[theirs])
        found.reach(label, ratio, least, goal=goal)
    else:
        found.absent[label] = "one of the two was not measured"


# Submits

SUBMITTERS = 100
WORDS = {
    "submit": "one after another",
    "bulk": "bulk, 1,000 at a time",
    "fan": f"{SUBMITTERS} submitters of one process",
}


def submitted(stage: Stage, contender: Contender, how: str, count: int) -> float:
    """Return how many tasks a second were stored."""
    with stage.fresh(contender) as url:
        answer = act(contender, how, url, count=count, submitters=SUBMITTERS)
    if answer["stored"] != count:
        raise ActFailed(f"{answer['stored']:,} of {count:,} tasks were stored")
    return count / float(answer["seconds"])


def submits(stage: Stage) -> dict[str, Callable[[], float]]:
    """Return the ways to store tasks that the wanted rows need."""
    counts = {
        "submit": stage.size(5_000, 500),
        "bulk": stage.size(50_000, 10_000),
        "fan": stage.size(20_000, 4_000),
    }
    every = [one for one in (OURS, *PEERS, RAW) if one != GRAPHILE_PLAIN and stage.chosen(one)]
    singles = every if not stage.rows else [OURS, PGQUEUER, RAW]
    ways: list[tuple[Contender, str]] = []
    if stage.wants("T8"):
        ways += [(one, "submit") for one in singles if stage.chosen(one)] + [(OURS, "fan")]
    if stage.wants("T9"):
        ways += [(one, "bulk") for one in every]
    return {
        f"{one.name}, {WORDS[how]}": partial(submitted, stage, one, how, counts[how])
        for one, how in ways
    }


def measure_submit(stage: Stage) -> Found:
    """T8, T9: tasks stored a second, each answered once it is on the disk."""
    found = Found()
    note_missing(found, stage, *PEERS, RAW)
    rounds = stage.interleaved(submits(stage))
    for name, rates in rounds.done().items():
        found.add(name, statistics.median(rates), "/s")
    found.absent |= rounds.failed
    if stage.wants("T8"):
        for ours, other, least, goal in (
            ("submit", PGQUEUER, 1.1, 1.3),
            ("fan", RAW, 5.0, 15.0),
        ):
            mine, theirs = f"{OURS.name}, {WORDS[ours]}", f"{other.name}, {WORDS['submit']}"
            label = f"T8 {WORDS[ours]} / {other.name}, {WORDS['submit']}"
            if rounds.has(mine, theirs):
                ratio = median_ratio(rounds.of[mine], rounds.of[theirs])
                found.reach(label, ratio, least, goal=goal)
            else:
                found.absent[label] = "one of the two was not measured"
    if stage.wants("T9"):
        judge_bulk(found, rounds)
    return found


def judge_bulk(found: Found, rounds: Rounds[float]) -> None:
    """Set our bulk submit against that of the best peer of each round."""
    mine = f"{OURS.name}, {WORDS['bulk']}"
    peers = [rounds.of[name] for one in PEERS if rounds.has(name := f"{one.name}, {WORDS['bulk']}")]
    label = f"T9 {WORDS['bulk']} / best peer"
    if not peers or not rounds.has(mine):
        found.absent[label] = "no peer was measured, or we were not"
        return
    best = [max(rates) for rates in zip(*peers, strict=True)]
    found.reach(label, median_ratio(rounds.of[mine], best), 1.5, goal=3.0)


# Latency

CONCURRENCY = 10
WARM = 5
"""So many first tasks are not counted."""
SETTLED = 1.5
"""Seconds after which a worker that was just started is taken to be idle."""


def lags_of(stage: Stage, contender: Contender, count: int) -> list[float]:
    """Return the seconds from before each submit, in one process, to its start in another."""
    with stage.fresh(contender) as url:
        given = {"count": count, "concurrency": CONCURRENCY, "seconds": 120.0}
        with Actor(contender, "work", url, lags=True, stay=True, **given) as worker:
            worker.ready().go()
            with Actor(contender, "beat", url, count=count) as other:
                other.ready()
                time.sleep(SETTLED)
                other.go().answer()
            lags: list[float] = worker.answer()["lags"]
    if len(lags) != count:
        raise ActFailed(f"{contender.name}: {len(lags)} of {count} tasks started")
    return lags[WARM:]


def measure_latency(stage: Stage) -> Found:
    """T10: from a submit in one process to the start in another that has nothing to do."""
    found = Found()
    note_missing(found, stage, *PEERS)
    count = stage.size(1_000, 100)
    rounds = stage.interleaved(
        {
            contender.name: partial(lags_of, stage, contender, count)
            for contender in (OURS, *PEERS)
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
    peers = [rounds.of[one.name] for one in PEERS if rounds.has(one.name)]
    for part, word in ((0.5, "p50"), (0.99, "p99")):
        label = f"T10 idle latency {word} / best peer's"
        if not peers or not rounds.has(OURS.name):
            found.absent[label] = "no peer was measured, or we were not"
            continue
        best = [min(quantile(lags, part) for lags in each) for each in zip(*peers, strict=True)]
        ours = [quantile(lags, part) for lags in rounds.of[OURS.name]]
        found.must(label, median_ratio(ours, best), 0.9, goal=0.6)
    return found


# The log

KIB = 1024.0


def logged(
    stage: Stage, contender: Contender, count: int, how: str, ahead: int = 0
) -> tuple[float, float]:
    """Return the bytes of log for each task: until it was stored, and from there until settled."""
    slots = 100
    shape = {"max_concurrent": slots, "prefetch": ahead} if contender == OURS else {}
    given = {"count": count, "shape": shape}
    with stage.fresh(contender, shape=shape) as url:
        begun = stage.written()
        act(contender, how, url, **given)
        stored = stage.written()
        seconds = 120.0
        answer = act(contender, "work", url, concurrency=slots, seconds=seconds, **given)
        settled = stage.written()
    if answer["empty"] is None or answer["executed"] != count:
        raise ActFailed(f"{answer['executed']:,} of {count:,} tasks ran in {seconds:g} s")
    return (stored - begun) / count, (settled - stored) / count


def measure_log(stage: Stage) -> Found:
    """T18: what a task writes to the server's log, from its submit until it is settled."""
    found = Found()
    note_missing(found, stage, *PEERS, RAW)
    count, few = stage.size(20_000, 2_000), stage.size(5_000, 500)
    judged = f"{OURS.name}, C=100, bulk submit"
    ways = {
        judged: partial(logged, stage, OURS, count, "bulk"),
        f"{judged}, prefetch={AHEAD}": partial(logged, stage, OURS, count, "bulk", AHEAD),
        f"{OURS.name}, C=100, submitted one by one": partial(logged, stage, OURS, few, "submit"),
    } | {
        f"{one.name}, C=100, bulk submit": partial(logged, stage, one, count, "bulk")
        for one in (*PEERS, RAW)
        if one != GRAPHILE_PLAIN and stage.chosen(one)
    }
    rounds = stage.interleaved(ways)
    for name, taken in rounds.done().items():
        storing, settling = (statistics.median(column) for column in zip(*taken, strict=True))
        total = statistics.median(map(sum, taken))
        found.add(name, total, "B", note=f"submit {storing:,.0f} B, run {settling:,.0f} B")
    found.absent |= rounds.failed
    if rounds.has(judged):
        most = max(map(sum, rounds.of[judged])) / KIB
        found.must(f"T18 log per task, submit to settled, {judged}", most, 1.2, "KiB", goal=0.7)
    return found
