"""Why a task is not running: the facts from the store, and the sentence for people."""

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
    """Everything in the store that decides when one task starts."""

    task: int
    pool: str
    status: Status
    reason: str | None = None
    """Why the task ended or was dropped."""
    function: str = ""
    attempt: int = 0
    """Charged attempts so far."""
    attempts: int = 1
    error: bytes | None = None
    """The error of its last attempt."""
    worker: str | None = None
    """The worker that runs or has prefetched it."""
    started_at: float | None = None
    timeout: float | None = None
    """Seconds that one attempt may run."""
    cancel_requested: bool = False
    interrupt_requested: bool = False

    due: float = 0.0
    parked: bool = False
    misfit: bool = False
    """Parked because its arguments fit none of the signatures tried so far."""
    closure_of: str | None = None
    """The only process that can run this closure."""
    workers: int = 0
    """Live workers that could run it."""

    paused: bool = False
    held_until: float = 0.0
    """No task of the pool starts before this moment."""
    running: int = 0
    max_concurrent: int = 1
    full_budgets: tuple[tuple[str, int, int], ...] = ()
    """The exhausted budgets of the pool: name, running, limit."""

    unit: str | None = None
    """The task's lane in a pool with lanes, else its key."""
    in_lane: bool = False
    unit_paused: bool = False
    unit_held_until: float = 0.0
    unit_running: int = 0
    unit_limit: int | None = None
    behind: int | None = None
    """The sequence number in its lane that must end first."""

    ahead: int = 0
    """How many queued, due tasks come first: in the pool, or in its share of a fair pool."""
    among: int = 0
    """How many tasks wait in its pool, where that is too many to count those that come first."""
    rate_at: float = 0.0
    """When the rate limits of its pool and key allow a start."""
    no_slot: str | None = None
    """Who holds the slots of the calling process; the store does not know this."""


def explain(facts: Facts, now: float) -> str:
    """Return in words why a task is not running, or where it runs."""
    if facts.status is Status.RUNNING:
        sentence = f"running on worker {facts.worker} for {span(now - (facts.started_at or now))}"
        sentence += _overdue(facts, now)
        if facts.interrupt_requested:
            return f"{sentence}; interrupted"
        return f"{sentence}; cancel requested" if facts.cancel_requested else sentence
    if facts.status.terminal:
        return f"{facts.status}: {facts.reason}" if facts.reason else str(facts.status)
    if facts.worker is not None:
        return f"claimed ahead by worker {facts.worker}, starts when one of its slots is free"
    reasons = "; ".join(_reasons(facts, now))
    if facts.no_slot is not None:
        return f"{reasons}; {facts.no_slot}" if reasons else f"ready, but {facts.no_slot}"
    return reasons or "ready: starts when a worker asks next"


def _overdue(facts: Facts, now: float) -> str:
    """Return a note that the handler still runs after its timeout, or an empty text."""
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
    """Yield every reason that keeps a queued task from starting, operator actions first."""
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
    elif facts.among and facts.due <= now:
        yield f"among {facts.among:,} that wait in its pool"
    if facts.rate_at > now:
        yield f"rate refills in {span(facts.rate_at - now)}"
    if not facts.workers and not facts.parked:
        whose = "" if facts.closure_of is None else f" of {facts.closure_of}"
        yield f"no live worker{whose}"


def _parked(facts: Facts) -> str:
    if not facts.misfit:
        return f"parked: no worker knows function {facts.function!r}"
    sentence = f"parked: its arguments do not fit function {facts.function!r} on any live worker"
    return f"{sentence}{_first_words(facts.error, 400)}"


def _stops(facts: Facts, now: float) -> Iterator[str]:
    """Yield pauses and holds."""
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
    """Return the first line of an error, shortened."""
    lines = (error or b"").decode("utf-8", "replace").splitlines()
    words = lines[0].strip() if lines else ""
    if not words:
        return ""
    return f": {words}" if len(words) <= most else f": {words[:most].rstrip()} ..."


_SPANS = ((172_800.0, 86_400.0, "d"), (7_200.0, 3_600.0, "h"), (120.0, 60.0, "min"))


def span(seconds: float) -> str:
    """Return a duration for people: 0.5 s, 3 s, 5 min, 2 h, 4 d."""
    for least, unit, name in _SPANS:
        if seconds >= least:
            return f"{seconds / unit:.0f} {name}"
    if seconds <= 0:
        return "0 s"
    return f"{max(round(seconds, 1), 0.1):g} s"
