"""Constraints: what is true of every row.

As constraints of the tables they would be the last to say no. But the server reads a constraint
from its text again with every statement that writes to the table: with those of a pool an update of
its row took 52 us instead of 27, with those of a task an insert 46 instead of 20. So only
the tables of tests have them all, and `millpond doctor` looks whether they hold in others. Two are
kept everywhere, where limits of keys are counted: an update of a unit or of a group takes 1.3 us
more of 34 with one of them, one of a pool 3.4 us with one and 10 with three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_COUNTS = ("running", "claimed", "fresh", "ready", "later", "parked", "parked_apart", "kept")


def _flags(*columns: str) -> Iterator[str]:
    return (f"{column} IN (0, 1)" for column in columns)


def _not_below_zero(*columns: str) -> Iterator[str]:
    return (f"{column} >= 0" for column in columns)


GUARDS: Mapping[str, Sequence[str]] = {
    "millpond_meta": ("one = 1",),
    "millpond_pool": (
        *_flags("paused", "closed", "grouped", "special"),
        *_not_below_zero(*_COUNTS, "resting", "unit_timers", "fading"),
        "live >= running + claimed",
    ),
    "millpond_live": (
        *_flags("running", "fresh", "listed"),
        "cancel_requested IN (0, 1, 2)",
        "attempt >= 0",
        "runs >= attempt",
        # The lifecycle, once more: what runs has a holder and a fence and is out of the queue.
        "running = 0 OR (worker IS NOT NULL AND grp IS NULL AND claim IS NULL AND attempt > 0)",
        "running = 1 OR (worker IS NULL) = (claim IS NULL)",
        "claim IS NULL OR grp IS NULL",
        "fresh = 0 OR (running = 0 AND claim IS NULL AND runs = 0)",
        "parked_at IS NULL OR running = 0",
    ),
    "millpond_lease": ("(started_at = 'infinity') = (claims IS NOT NULL)",),
    "millpond_ended": (
        "status IN ('completed', 'failed', 'cancelled', 'rejected')",
        "completed = (status = 'completed')::integer",
    ),
    "millpond_unit": (*_flags("paused", "blocked"), *_not_below_zero("running", "groups")),
    "millpond_group": (*_flags("ready"), *_not_below_zero("tasks")),
    "millpond_seat": (
        *_flags("resting"),
        "turn >= 0 OR (turn = -1 AND resting = 0 AND owner = '')",
    ),
    "millpond_worker": (*_not_below_zero("ahead"),),
    "millpond_audit": ("(told IS NULL) <> (ids IS NULL)",),
}
"""Conditions for the rows of each table."""


def constraints() -> str:
    """Return the statements that add the constraints."""
    return "; ".join(
        f"ALTER TABLE {table} " + ", ".join(f"ADD CHECK ({guard})" for guard in guards)
        for table, guards in GUARDS.items()
    )


COUNTING = ("millpond_pool", "millpond_unit", "millpond_group", "millpond_worker")
"""The tables with counts: one row per pool, key or worker, not per task."""


def breaches(tables: Sequence[str] = tuple(GUARDS)) -> str:
    """Return the query that counts violations of each constraint, with one scan per table."""
    return " UNION ALL ".join(
        f"SELECT format('%s row(s) of {table.removeprefix('millpond_')} are not as they must be: "  # noqa: S608 - our own words
        f"%s', count(*), guard.said) FROM {table} CROSS JOIN LATERAL (VALUES "
        + ", ".join(f"({_text(guard)}, {guard})" for guard in guards)
        + ") AS guard (said, holds) WHERE NOT guard.holds GROUP BY guard.said"
        for table, guards in GUARDS.items()
        if table in tables
    )


def _text(guard: str) -> str:
    return "'" + guard.replace("'", "''") + "'"
