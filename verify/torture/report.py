"""The report of a torture: a table for people, and the same as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.store.url_redaction import shown
from verify.torture.auditor import Check, Verdict
from verify.torture.plan import Settings
from verify.torture.recovery import percentile

if TYPE_CHECKING:
    from collections.abc import Iterator

SHOWN = 5
"""How many breaks of one promise the table lists; the JSON has all."""


class Shortfall(msgspec.Struct, frozen=True):
    """Something that the torture did not try often enough to prove anything by it."""

    what: str
    seen: float
    wanted: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a torture came to."""

    seed: int
    url: str
    seconds: float
    clean: bool
    checks: list[Check]
    facts: dict[str, int | float]
    recovery: dict[str, float]
    cancels: dict[str, float]
    idle: dict[str, float]
    """Statements of idle workers per second, if counted."""
    shortfalls: list[Shortfall]
    unfinished: str | None = None
    """Work that was not finished in time, if any."""


WANTED = {
    "processes killed": 80,
    "processes frozen": 15,
    "processes stopped": 5,
    "leases lost": 200,
    "killed by their own task": 10,
    "stale settles refused": 5,
    "retries": 250,
    "released": 5,
    "duplicates answered": 250,
    "tasks cancelled while they ran": 250,
    "met: fair: all 6 slots taken": 100,
    "met: fair: all 2 of a key or lane taken": 100,
    "met: lanes: all 4 slots taken": 50,
    "met: ordered: all 4 slots taken": 50,
    "met: priority: all 5 slots taken": 100,
    "met: rate: rate of 20 used up": 50,
    "met: bounded: bound of 25 reached": 20,
    "met: ahead: claimed ahead": 100,
    "met: ahead: all 2 of a key or lane taken": 20,
}
"""What a whole torture must have done: one that meets no limit proves nothing about it."""


WANTED_OF_A_SERVER = {"connections cut by the server": 40, "crashes of the server": 3}
"""And what must have been done to a server that is ours."""


def report(settings: Settings, verdict: Verdict, seconds: float, *, full: bool) -> Report:
    """Return the report; a whole torture must also have tried hard enough."""
    short = [
        Shortfall(what, verdict.facts.get(what, 0), wanted)
        for what, wanted in _wanted(settings, full=full).items()
        if verdict.facts.get(what, 0) < wanted
    ]
    recovery = {
        **_timed([one.in_peace for one in verdict.recoveries]),
        "disturbed": float(sum(one.disturbed for one in verdict.recoveries)),
        "max in all": max((one.seconds for one in verdict.recoveries), default=0.0),
    }
    return Report(
        seed=settings.seed,
        url=shown(settings.url),
        seconds=round(seconds, 1),
        clean=verdict.clean and not short,
        checks=verdict.checks,
        facts=verdict.facts,
        recovery=_rounded(recovery),
        cancels=_rounded(_timed([one.seconds for one in verdict.cancels if not one.stood_still])),
        idle=_rounded(verdict.idle),
        shortfalls=short,
    )


def _wanted(settings: Settings, *, full: bool) -> dict[str, int]:
    if not full:
        return {}
    return WANTED | (WANTED_OF_A_SERVER if settings.crashes else {})


def _timed(seconds: list[float]) -> dict[str, float]:
    """Return how many there were, and how long they took."""
    return {
        "count": float(len(seconds)),
        "p50": percentile(seconds, 0.5),
        "p99": percentile(seconds, 0.99),
        "max": max(seconds, default=0.0),
    }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def lines_of(result: Report) -> Iterator[str]:
    """Yield the table, line by line."""
    yield f"{'promise':62}{'checked':>10}{'broken':>8}"
    for check in result.checks:
        yield f"{check.name:62}{check.seen:>10,}{len(check.broken):>8,}"
        for broken in check.broken[:SHOWN]:
            yield f"    BROKEN  {broken}"
    yield ""
    for name, value in result.facts.items():
        yield f"{name:62}{value:>10,}"
    yield ""
    kills = result.recovery
    yield (
        f"recovery of {kills['count']:.0f} workers killed with leases: "
        f"p50 {kills['p50']:.3f} s, p99 {kills['p99']:.3f} s, max {kills['max']:.3f} s"
    )
    yield (
        f"{kills['disturbed']:.0f} of them were disturbed, and took {kills['max in all']:.3f} s at "
        "most: no process could write, or a fault hit the recovering process as well"
    )
    heard = result.cancels
    yield (
        f"{heard['count']:.0f} cancels of running handlers, until they noticed: "
        f"p50 {heard['p50']:.3f} s, p99 {heard['p99']:.3f} s, max {heard['max']:.3f} s"
    )
    if result.idle:
        yield "idle workers, in a second: " + ", ".join(
            f"{value:.2f} {name}" for name, value in result.idle.items()
        )
    for short in result.shortfalls:
        yield f"NOT ENOUGH  {short.what}: {short.seen:g} of {short.wanted:g}"
    if result.unfinished is not None:
        yield f"UNFINISHED  {result.unfinished}"
    verdict = "clean" if result.clean else "BROKEN"
    yield f"{verdict}: seed {result.seed}, {result.seconds:.0f} s"
