"""The stored timeline, and the stored moments that move with it."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.log_fields import about
from millpond.core.store_time import KEPT, TOLERANCE, Jump, Timeline, alike, confirmation
from millpond.core.ticks import rounded, ticks
from millpond.store.sql.codec import SEQ_BITS, new_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.core.control import Prune
    from millpond.store.sql.codec import Row
    from millpond.store.sql.unit_of_work import SqlTables

log = logging.getLogger("millpond.store")

LOGGED_AGAIN_AFTER = 3600.0
"""Seconds after which a similar jump is logged again."""

_SAID = {
    "back": (
        "the clock of {where} was set back by {by:.0f} s (to {at}); the store's time goes on from "
        "where it was, and waits for the clock"
    ),
    "forward": (
        "the clock of {where} is {by:.0f} s ahead of what has passed (it says {at}); the store's "
        "time does not follow it unless it stays there: check the clock (ntp) of that machine"
    ),
    "followed": (
        "the clock of {where} stays {by:.0f} s ahead (at {at}): the store's time follows it now"
    ),
    "stepped back": (
        "the clock of {where} stays {by:.0f} s behind the store's time (at {at}): the store goes "
        "back to it, and moments stored meanwhile are moved by as much"
    ),
    "gap": "nothing was written to {where} for {by:.0f} s, by a clock that says {at}",
}


class _Kept(msgspec.Struct, array_like=True):
    """The parts of a timeline that are stored as text."""

    steps: int = 0
    doubtful: float = 0.0
    doubted_at: float = 0.0
    jumps: tuple[tuple[str, float, float], ...] = ()


_decode = msgspec.json.Decoder(_Kept).decode


def timeline_of(meta: Row) -> Timeline:
    """Return the timeline in a row of `meta`."""
    latest, behind, since, text = meta[0], *meta[8:11]
    if not text:
        return Timeline(latest, behind, since)
    try:
        kept = _decode(text)
    except msgspec.MsgspecError:
        kept = _Kept()
    jumps = tuple(Jump(*jump) for jump in kept.jumps)
    return Timeline(latest, behind, since, kept.steps, kept.doubtful, kept.doubted_at, jumps)


def clock_text(known: Timeline) -> str:
    """Return the text of a timeline; empty if the clock was never set."""
    kept = _Kept(known.steps, known.doubtful, known.doubted_at, known.jumps)
    return "" if kept == _Kept() else msgspec.json.encode(kept).decode()


def said(jump: Jump, where: str) -> str:
    """Return the log message of a jump."""
    return _SAID[jump.kind].format(where=where, by=abs(jump.by), at=shown(jump.at))


def shown(moment: float) -> str:
    """Return a moment for people; one outside the calendar as a number."""
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return f"{moment:.0f}"


def clock_risks(meta: Row | None, wall: float, where: str) -> Iterator[str]:
    """Yield what `doctor` reports about a store's time, by a row of `meta` and a clock."""
    if meta is None:
        return
    known = timeline_of(meta)
    if known.behind > TOLERANCE:
        yield (
            f"the clock of {where} is {known.behind:.0f} s ahead of the store's time, since "
            f"{shown(known.since)} by that clock; the store follows if it stays there for "
            f"{confirmation(known.behind):.0f} s: check the clock"
        )
    ahead = known.latest - wall
    if ahead > TOLERANCE:
        yield (
            f"the time of {where} is {ahead:.0f} s ahead of the clock ({shown(known.latest)}): a "
            "clock was wrong, or is; workers bring the store back once theirs have been right for "
            "a minute"
        )
    if known.doubtful:
        yield (
            f"{known.doubtful:.0f} s that passed without a witness do not count for retention yet: "
            "nothing is removed because of them for an hour"
        )
    for jump in known.jumps:
        yield f"noticed before: {said(jump, where)}"


class JumpLog:
    """Logs clock jumps: each once, also where two clocks that differ take turns."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._logged: list[tuple[Jump, float]] = []

    def add(self, jump: Jump, now: float) -> None:
        """Log a jump, unless a similar one was logged; `now` is by a steady clock."""
        self._logged = [one for one in self._logged if now - one[1] < LOGGED_AGAIN_AFTER][-KEPT:]
        known = any(alike(one, jump) for one, _ in self._logged)
        if not known:
            self._logged.append((jump, now))
        quiet = known or jump.kind == "gap"
        log.log(
            logging.DEBUG if quiet else logging.WARNING,
            said(jump, self._where),
            extra=about("clock.jumped", reason=jump.kind),
        )


def without_doubt(prune: Prune, known: Timeline) -> Prune:
    """Return a Prune without the doubtful seconds of the timeline."""
    if not known.doubtful:
        return prune
    moments = {name: getattr(prune, name) for name in prune.__struct_fields__}
    earlier = {
        name: moment - known.doubtful
        for name, moment in moments.items()
        if name.endswith("_before") and moment is not None
    }
    return msgspec.structs.replace(prune, **earlier)


def move_moments(unit: SqlTables, step: float) -> None:
    """Move stored moments with the store's time, and store the new time.

    Nothing of the unit may be used afterwards. Forward, no lease is lost: those who hold one could
    not have renewed it. Back, moments written while the time was ahead are moved back.
    """
    if step > 0.0:
        unit.ask("lengthen_leases", (step,))
        unit.leader.until += step
        unit.write()
        return
    by, now = -step, unit.latest
    if "unfold" in unit.dialect.sql:
        unit.ask("unfold", (None,))
    unit.ask("move_0_firings", (now, now, now))
    given = _given_moments(unit, now, by)
    for name, times in _MOVED.items():
        unit.ask(name, (by, *[now] * times))
    for place, moment in given:
        unit.ask("save_due", (moment, place))
    ahead = now + by / 2
    for name, moves in (("move_pool", by), ("move_unit", by), ("move_tat", ticks(by))):
        unit.ask(name, (moves, ticks(ahead) if name == "move_tat" else ahead))
    unit.ask("move_leases", (now, now))
    for listed, save in (("tats_of_pools", "save_tats"), ("buckets_of_budgets", "save_buckets")):
        for which, text in unit.ask(listed).fetchall():
            moved = _moved(json.loads(text or "[]"), ticks(ahead), ticks(by))
            unit.ask(save, (json.dumps(moved), which))
    unit.leader.until = min(unit.leader.until, now)
    unit.write()


_MOVED = {
    "move_1_due": 3,
    "move_2_expiry": 1,
    "move_3_parked": 1,
    "move_4_first": 1,
    "move_5_start": 1,
    "move_6_submit": 1,
    "move_7_end": 1,
    "move_8_key": 1,
    "move_9_audit": 1,
}
"""Statements, and how often each takes the current moment."""


def _given_moments(unit: SqlTables, now: float, by: float) -> list[tuple[int, float]]:
    """Return the tasks with run_at, whose moment does not move with the store.

    A moment that is nearer than the store goes back by was reckoned from the wrong time: it moves.
    """
    found = unit.ask("timed_ahead", (now, now, by)).fetchall()
    given = []
    for place, identifier, body in found:
        new = new_of(body, identifier, unit.pools.numbered(place >> SEQ_BITS).name)
        if new.run_at is not None:
            given.append((place, rounded(new.run_at)))
    return given


def _moved(given: Any, ahead: int, by: int) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return buckets of rates with their future moments moved, in microseconds."""
    if isinstance(given, list):
        return [_moved(one, ahead, by) for one in given]
    return given - by if isinstance(given, int) and given > ahead else given
