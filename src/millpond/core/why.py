"""Why a task is not running: the facts a store knows, and the sentence people read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.lifecycle import Status

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    cancel_requested: bool = False
    interrupt_requested: bool = False

    due: float = 0.0
    parked: bool = False
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


def explain(facts: Facts, now: float) -> str:
    """Return why a task is not running, in words; or where it is, if that is the reason."""
    if facts.status is Status.RUNNING:
        told = f"running on worker {facts.worker} for {span(now - (facts.started_at or now))}"
        if facts.interrupt_requested:
            return f"{told}; interrupted"
        return f"{told}; told to stop" if facts.cancel_requested else told
    if facts.status.terminal:
        return f"{facts.status}: {facts.reason}" if facts.reason else str(facts.status)
    if facts.worker is not None:
        return f"claimed ahead by worker {facts.worker}, starts when one of its slots is free"
    return "; ".join(_reasons(facts, now)) or "ready: starts when a worker asks next"


def _reasons(facts: Facts, now: float) -> Iterator[str]:
    """Yield everything that keeps a queued task from starting, what a person can change first."""
    yield from _stops(facts, now)
    if facts.parked:
        yield f"parked: no worker knows function {facts.function!r}"
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


def _stops(facts: Facts, now: float) -> Iterator[str]:
    """Yield what somebody ordered: pauses and holds."""
    if facts.paused:
        yield "pool paused"
    if facts.unit_paused:
        yield f"{_unit(facts)} paused"
    if facts.held_until > now:
        yield f"pool held back for {span(facts.held_until - now)}"
    if facts.unit_held_until > now:
        yield f"{_unit(facts)} held back for {span(facts.unit_held_until - now)}"


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
