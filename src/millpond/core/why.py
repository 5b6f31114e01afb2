"""Why a task is not running: the facts a store knows, and the sentence people read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.lifecycle import Status
from millpond.core.ticks import in_utc

if TYPE_CHECKING:
    from collections.abc import Iterator


TIME_TO_STOP = 1.0
"""Seconds after its timeout at which a task that still runs is said to have timed out."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a store knows about one task that decides when it starts."""

    task: int
    pool: str
    status: Status
    reason: str | None = None
    """Why it ended, or was dropped."""
    function: str = ""
    attempt: int = 0
    """Charged attempts so far."""
    attempts: int = 1
    error: bytes | None = None
    """What its last attempt left behind."""
    worker: str | None = None
    """Who runs it, or holds it ahead."""
    started_at: float | None = None
    timeout: float | None = None
    """Seconds that one attempt may run."""
    cancel_requested: bool = False
    interrupt_requested: bool = False

    due: float = 0.0
    parked: bool = False
    misfit: bool = False
    """Parked because its arguments fit no signature of its function that was tried."""
    closure_of: str | None = None
    """The only process that can run it."""
    workers: int = 0
    """Live workers that could run it."""

    paused: bool = False
    held_until: float = 0.0
    """Nothing of the pool starts before."""
    running: int = 0
    max_concurrent: int = 1
    full_budgets: tuple[tuple[str, int, int], ...] = ()
    """Budgets of the pool of which nothing is left: name, running, limit."""

    unit: str | None = None
    """Its lane where lanes are strict, else its key."""
    in_lane: bool = False
    unit_paused: bool = False
    unit_held_until: float = 0.0
    unit_running: int = 0
    unit_limit: int | None = None
    behind: int | None = None
    """The sequence of its lane that must end first."""

    ahead: int = 0
    """Queued, due tasks that order puts before it: of its pool, in a fair pool of its share."""
    rate_at: float = 0.0
    """When the rates of its pool and key let it start."""
    no_slot: str | None = None
    """Who holds the slots of the process that asks; no store knows that."""


def explain(facts: Facts, now: float) -> str:
    """Return why a task is not running, in words; or where it is, if that is the reason."""
    if facts.status is Status.RUNNING:
        told = f"running on worker {facts.worker} for {span(now - (facts.started_at or now))}"
        told += _overdue(facts, now)
        if facts.interrupt_requested:
            return f"{told}; interrupted"
        return f"{told}; told to stop" if facts.cancel_requested else told
    if facts.status.terminal:
        return f"{facts.status}: {facts.reason}" if facts.reason else str(facts.status)
    if facts.worker is not None:
        return f"claimed ahead by worker {facts.worker}, starts when one of its slots is free"
    reasons = "; ".join(_reasons(facts, now))
    if facts.no_slot is not None:
        return f"{reasons}; {facts.no_slot}" if reasons else f"ready, but {facts.no_slot}"
    return reasons or "ready: starts when a worker asks next"


def _overdue(facts: Facts, now: float) -> str:
    """Return that a running task has timed out, if its handler has not stopped in good time."""
    if facts.timeout is None or facts.started_at is None:
        return ""
    over_at = facts.started_at + facts.timeout
    if now - over_at <= TIME_TO_STOP:
        return ""
    at = in_utc(over_at)
    return (
        f"; it timed out at {at}, {span(now - over_at)} ago, and its handler still runs: it keeps "
        "its slot until it ends"
    )


def _reasons(facts: Facts, now: float) -> Iterator[str]:
    """Yield everything that keeps a queued task from starting, what a person can change first."""
    yield from _stops(facts, now)
    if facts.parked:
        yield _parked(facts)
    if facts.due > now:
        yield _timer(facts, now)
    if facts.behind is not None:
        yield f"behind sequence {facts.behind} of its lane"
    elif facts.unit_limit is not None and facts.unit_running >= facts.unit_limit:
        yield f"{_unit(facts)} at {facts.unit_running}/{facts.unit_limit}"
    if facts.running >= facts.max_concurrent:
        yield f"pool at {facts.running}/{facts.max_concurrent}"
    for name, running, limit in facts.full_budgets:
        yield f"budget {name} at {running}/{limit}"
    if facts.ahead:
        yield f"{facts.ahead} ahead"
    if facts.rate_at > now:
        yield f"rate refills in {span(facts.rate_at - now)}"
    if not facts.workers and not facts.parked:
        whose = "" if facts.closure_of is None else f" of {facts.closure_of}"
        yield f"no live worker{whose}"


def _parked(facts: Facts) -> str:
    if not facts.misfit:
        return f"parked: no worker knows function {facts.function!r}"
    told = f"parked: its arguments do not fit function {facts.function!r} on any live worker"
    return f"{told}{_first_words(facts.error, 400)}"


def _stops(facts: Facts, now: float) -> Iterator[str]:
    """Yield what somebody ordered: pauses and holds."""
    if facts.paused:
        yield "pool paused"
    if facts.unit_paused:
        yield f"{_unit(facts)} paused"
    if facts.held_until > now:
        yield f"pool held back for {span(facts.held_until - now)} (resume ends that)"
    if facts.unit_held_until > now:
        left = span(facts.unit_held_until - now)
        yield f"{_unit(facts)} held back for {left} (resume ends that)"


def _timer(facts: Facts, now: float) -> str:
    wait = span(facts.due - now)
    if not facts.attempt and facts.error is None:
        return f"scheduled for {wait} from now"
    failed = f"attempt {facts.attempt} of {facts.attempts} failed"
    return f"retry in {wait} ({failed}{_first_words(facts.error)})"


def _unit(facts: Facts) -> str:
    return f"{'lane' if facts.in_lane else 'key'} {facts.unit}"


def _first_words(error: bytes | None, most: int = 80) -> str:
    """Return the beginning of what an attempt left behind, as far as it is text."""
    lines = (error or b"").decode("utf-8", "replace").splitlines()
    words = lines[0].strip() if lines else ""
    if not words:
        return ""
    return f": {words}" if len(words) <= most else f": {words[:most].rstrip()} ..."


_SPANS = ((172_800.0, 86_400.0, "d"), (7_200.0, 3_600.0, "h"), (120.0, 60.0, "min"))


def span(seconds: float) -> str:
    """Return a length of time as people say it: 0.5 s, 3 s, 5 min, 2 h, 4 d."""
    for least, unit, name in _SPANS:
        if seconds >= least:
            return f"{seconds / unit:.0f} {name}"
    return f"{round(max(seconds, 0.0), 1):g} s"
