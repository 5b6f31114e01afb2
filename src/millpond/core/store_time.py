"""Store time: what time it is in a store, given what a wall clock says that may have been set.

A store's time is the wall clock's minus a correction, `behind`, which is 0 as long as nobody sets
the clock. The rule has four parts:

- The clock was set back: store time goes on from where it was (`behind` is negative), a little
  slower than the clock, until the clock has caught up. Time neither goes back nor stands still.
- It was set back by more than a quarter of an hour, and stays there: to wait until it has caught up
  would take too long, so the store steps back to it, and the caller moves the moments it has stored
  (`step` < 0).
- It was set forward, which a process notices whose steady clock says otherwise: store time goes on
  at the old pace (`behind` is positive). Set right again, nothing has happened. If it stays there,
  the store follows after a hundredth of the jump, an hour at most (`step` > 0).
- Nobody was there to notice: a store that stood idle takes the clock's word at once.

What time alone must not destroy waits longer: `doubtful` seconds of a jump do not count for
retention until the clock has confirmed them by going on from there.
"""

from __future__ import annotations

from typing import NamedTuple

from millpond.core.ticks import rounded

TOLERANCE = 60.0
"""Seconds by which a wall clock may be ahead of what a process can vouch for: SQL knows it too."""

NOISE = 0.05
"""Seconds that a clock may seem to go back by, because two processes read it."""

DRIFT, DRIFT_PART = 1.0, 0.03
"""Seconds, and the part of what has passed, by which a process may think it later than it is."""

SLOWER = 0.02
"""The part of real time by which store time falls back to a clock that is behind it."""

SLEWED = 900.0
"""Seconds that a store may be ahead of the clock and wait for it; beyond, it steps back."""

SHORTEST_DOUBT, LONGEST_DOUBT = 60.0, 3600.0
"""Seconds for which a clock must go on from where it was set before the store follows it."""

LONGEST_WITNESS = 3600.0
"""Seconds for which what a process can vouch for is added where the clock shows less."""

NOTEWORTHY = 10.0
"""Seconds of a jump that people are told of."""

KEPT = 8
"""How many jumps are remembered."""


class Jump(NamedTuple):
    """One thing that a wall clock did, as `doctor` tells it."""

    kind: str
    """back, forward (noticed, and not followed), followed, gap (nobody was there), stepped back."""
    at: float
    """What the wall clock said then."""
    by: float
    """Seconds; how far it was set, or how far the store followed it."""


class Timeline(NamedTuple):
    """What a store knows of its time."""

    latest: float
    """The latest moment at which anything was written; time does not go back behind it."""
    behind: float = 0.0
    """How many seconds store time is behind the wall clock; negative = ahead of it."""
    since: float = 0.0
    """What the wall clock said when `behind` was last changed."""
    steps: int = 0
    """How often the store's time was moved: what a process knew before that counts no more."""
    doubtful: float = 0.0
    """Seconds that store time moved on by without a witness: they do not count for retention."""
    doubted_at: float = 0.0
    """What the wall clock said then."""
    jumps: tuple[Jump, ...] = ()
    """The last few, oldest first."""


class Reading(NamedTuple):
    """What time it is, and what became of the timeline by asking."""

    timeline: Timeline
    step: float = 0.0
    """Seconds by which store time moves at once: stored moments have to be moved along."""
    jump: Jump | None = None
    """What people should be told of."""


def confirmation(jump: float) -> float:
    """Return how long a clock must go on from where it was set before it is followed."""
    return min(max(abs(jump) / 100.0, SHORTEST_DOUBT), LONGEST_DOUBT)


def is_late(moment: float, vouched: float, latest: float) -> bool:
    """Return whether a clock shows less than has passed: it was set back while nobody looked."""
    return moment < vouched - DRIFT - DRIFT_PART * (vouched - latest)


def read(known: Timeline, wall: float, vouched: float | None = None) -> Reading:
    """Return what time it is, by a wall clock and by what the asking process can vouch for.

    `vouched` is the store's time by a steady clock, since the process last heard of it; None if it
    never has.
    """
    now = _trusted(known, wall)
    passed = vouched
    if vouched is not None and vouched > now.latest + LONGEST_WITNESS:
        # So long ago: who knows what became of the steady clock since. It bounds, and adds nothing.
        passed = None
    went_on = vouched is None or wall - now.behind <= vouched + TOLERANCE
    if now.behind > 0.0 and went_on and wall - now.since >= confirmation(now.behind):
        return _follow(now, wall)
    if now.behind < -SLEWED and went_on and wall - now.since >= SHORTEST_DOUBT:
        return _step_back(now, wall)
    if 0.0 > now.behind >= -SLEWED:
        now = _slewed(now, wall)
    moment = rounded(wall - now.behind)
    was_back = passed is not None and is_late(moment, passed, now.latest)
    if was_back or moment < now.latest - NOISE:
        return _set_back(now, wall, passed)
    ahead = moment - now.latest
    if ahead > TOLERANCE and vouched is not None and moment > vouched + TOLERANCE:
        return _hold(now, wall, max(vouched, now.latest))
    if ahead > TOLERANCE and vouched is None and now.latest > 0.0:
        gap = Jump("gap", wall, ahead)
        moved = now._replace(latest=moment, doubtful=now.doubtful + ahead, doubted_at=wall)
        return Reading(moved, jump=gap)  # nothing to worry people with: stores do stand idle
    return Reading(now._replace(latest=max(moment, now.latest)))


def _trusted(known: Timeline, wall: float) -> Timeline:
    """Count a jump for retention once the clock has gone on from there for long enough."""
    if known.doubtful and wall - known.doubted_at >= min(known.doubtful, LONGEST_DOUBT):
        return known._replace(doubtful=0.0, doubted_at=0.0)
    return known


def _slewed(known: Timeline, wall: float) -> Timeline:
    """Let a clock that is behind gain on the store, without the store's time going back."""
    gained = SLOWER * max(wall - known.since, 0.0)
    behind = min(known.behind + gained, 0.0, wall - known.latest)
    return known._replace(behind=rounded(max(behind, known.behind)), since=max(wall, known.since))


def _set_back(known: Timeline, wall: float, vouched: float | None) -> Reading:
    """Go on from where the store was: as far as the process can vouch for."""
    by = known.latest + known.behind - wall
    latest = known.latest if vouched is None else max(known.latest, rounded(vouched))
    jump = Jump("back", wall, by)
    behind = rounded(wall - latest)
    if abs(behind) <= NOISE:
        behind = 0.0
    after = known._replace(
        latest=latest, behind=behind, since=wall, doubtful=max(known.doubtful - by, 0.0)
    )
    return _noted(after, jump)


def _hold(known: Timeline, wall: float, vouched: float) -> Reading:
    """Do not follow a clock that was set forward, as long as nobody knows whether it is right."""
    latest = rounded(vouched)
    jump = Jump("forward", wall, wall - known.behind - latest)
    return _noted(known._replace(latest=latest, behind=rounded(wall - latest), since=wall), jump)


def _follow(known: Timeline, wall: float) -> Reading:
    """Believe a clock that has gone on from where it was set."""
    after = known._replace(
        latest=max(rounded(wall), known.latest),
        behind=0.0,
        since=wall,
        steps=known.steps + 1,
        doubtful=known.doubtful + known.behind,
        doubted_at=wall,
    )
    reading = _noted(after, Jump("followed", wall, known.behind))
    return reading._replace(step=known.behind)


def _step_back(known: Timeline, wall: float) -> Reading:
    """Go back to a clock that the store is too far ahead of."""
    after = known._replace(
        latest=rounded(wall), behind=0.0, since=wall, steps=known.steps + 1, doubtful=0.0
    )
    reading = _noted(after, Jump("stepped back", wall, -known.behind))
    return reading._replace(step=rounded(known.behind))


def _noted(after: Timeline, jump: Jump) -> Reading:
    if abs(jump.by) < NOTEWORTHY:
        return Reading(after)
    others = [one for one in after.jumps if not alike(one, jump)]
    return Reading(after._replace(jumps=(*others, jump)[-KEPT:]), jump=jump)


def alike(one: Jump, other: Jump) -> bool:
    """Return whether it is the same again: two clocks that differ jump with every word."""
    return one.kind == other.kind and abs(one.by - other.by) < NOTEWORTHY
