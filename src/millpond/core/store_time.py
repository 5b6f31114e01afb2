"""Store time: the time of a store, derived from a wall clock that may have been set.

A store's time is the wall clock's minus a correction, `behind`, which is 0 until the wall clock is
set. The rule has four parts:

- The clock was set back: store time goes on from where it was (`behind` is negative), a little
  slower than the clock, until the clock has caught up. Time neither goes back nor stands still.
- It was set back by more than a quarter of an hour, and stays there: to wait until it has caught up
  would take too long, so the store steps back to it, and the caller moves the moments it has stored
  (`step` < 0).
- It was set forward, which a process notices whose steady clock says otherwise: store time goes on
  at the old pace (`behind` is positive). Set right again, nothing has happened. If it stays there,
  the store follows after a hundredth of the jump, an hour at most (`step` > 0).
- No process ran meanwhile: a store that was idle believes the clock at once.

Retention waits longer: `doubtful` seconds of a jump do not count for it until the clock has
confirmed them by going on from there.
"""

from __future__ import annotations

from typing import NamedTuple

from millpond.core.ticks import rounded

TOLERANCE = 60.0
"""Seconds by which a wall clock may be ahead of a process's steady clock; also in the SQL."""

NOISE = 0.05
"""Seconds by which a clock may seem to go back because two processes read it."""

DRIFT, DRIFT_PART = 1.0, 0.03
"""Seconds, plus a part of the time passed, by which a steady clock may run fast."""

SLOWER = 0.02
"""The part of real time by which store time falls back to a clock that is behind it."""

SLEWED = 900.0
"""Seconds that a store may be ahead of the clock and slow down; beyond, it steps back."""

SHORTEST_DOUBT, LONGEST_DOUBT = 60.0, 3600.0
"""Seconds for which a clock must go on from where it was set before the store follows it."""

LONGEST_WITNESS = 3600.0
"""Seconds for which a steady clock counts where the wall clock shows less."""

NOTEWORTHY = 10.0
"""Seconds from which on a jump is logged."""

KEPT = 8
"""How many jumps are remembered."""


class Jump(NamedTuple):
    """One jump of a wall clock, as `doctor` shows it."""

    kind: str
    """back, forward (noticed, and not followed), followed, gap (no process ran), stepped back."""
    at: float
    """The wall clock at that moment."""
    by: float
    """Seconds; how far it was set, or how far the store followed it."""


class Timeline(NamedTuple):
    """The stored state of a store's time."""

    latest: float
    """The latest moment at which anything was written; time does not go back behind it."""
    behind: float = 0.0
    """How many seconds store time is behind the wall clock; negative = ahead."""
    since: float = 0.0
    """The wall clock when `behind` last changed."""
    steps: int = 0
    """How often the store's time was moved: this invalidates what processes knew before."""
    doubtful: float = 0.0
    """Seconds by which store time moved without a process running: not counted for retention."""
    doubted_at: float = 0.0
    """What the wall clock said then."""
    jumps: tuple[Jump, ...] = ()
    """The last few, oldest first."""


class Reading(NamedTuple):
    """The store's time now, and the timeline after reading it."""

    timeline: Timeline
    step: float = 0.0
    """Seconds by which store time moves at once: stored moments have to be moved along."""
    jump: Jump | None = None
    """A jump to log, if any."""


def confirmation(jump: float) -> float:
    """Return how long a clock must go on from where it was set before it is followed."""
    return min(max(abs(jump) / 100.0, SHORTEST_DOUBT), LONGEST_DOUBT)


def is_late(moment: float, vouched: float, latest: float) -> bool:
    """Return whether a clock shows less than has passed: it was set back unnoticed."""
    return moment < vouched - DRIFT - DRIFT_PART * (vouched - latest)


def read(known: Timeline, wall: float, vouched: float | None = None) -> Reading:
    """Return the store's time, by a wall clock and by the steady clock of this process.

    `vouched` is the store's time as last read plus the steady time since; None before the first
    reading.
    """
    now = _trusted(known, wall)
    passed = vouched
    if vouched is not None and vouched > now.latest + LONGEST_WITNESS:
        # After so long the steady clock is not trusted: it limits, and adds nothing.
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
        return Reading(moved, jump=gap)  # not logged: stores are often idle
    return Reading(now._replace(latest=max(moment, now.latest)))


def _trusted(known: Timeline, wall: float) -> Timeline:
    """Count a jump for retention once the clock has gone on from there for long enough."""
    if known.doubtful and wall - known.doubted_at >= min(known.doubtful, LONGEST_DOUBT):
        return known._replace(doubtful=0.0, doubted_at=0.0)
    return known


def _slewed(known: Timeline, wall: float) -> Timeline:
    """Slow store time down until the clock has caught up; it never goes back."""
    gained = SLOWER * max(wall - known.since, 0.0)
    behind = min(known.behind + gained, 0.0, wall - known.latest)
    return known._replace(behind=rounded(max(behind, known.behind)), since=max(wall, known.since))


def _set_back(known: Timeline, wall: float, vouched: float | None) -> Reading:
    """Go on from where the store was, or from the steady clock of this process."""
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
    """Do not follow a clock that was set forward until it is confirmed."""
    latest = rounded(vouched)
    jump = Jump("forward", wall, wall - known.behind - latest)
    return _noted(known._replace(latest=latest, behind=rounded(wall - latest), since=wall), jump)


def _follow(known: Timeline, wall: float) -> Reading:
    """Follow a clock that has gone on from where it was set."""
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
    """Return whether two jumps are the same: two clocks that differ jump at every reading."""
    return one.kind == other.kind and abs(one.by - other.by) < NOTEWORTHY
