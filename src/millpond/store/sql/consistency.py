"""Consistency: check that the tables agree with each other.

Counts are kept beside the rows they count, so that nothing has to be counted while work is done.
Count everything once more, and report each difference. It only reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millpond.core.run import Run
from millpond.errors import NewerPool
from millpond.store.sql.budget import must_know_budget
from millpond.store.sql.pool import spec_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.store.sql.database import Connection, Dialect

_RUNS = "check_run_counts"
_OF_NO_WORK = ("check_audit", "check_keys", "check_settings", "check_runs")

_decode_run = msgspec.json.Decoder(Run).decode


def check_rows(connection: Connection, dialect: Dialect, *, thorough: bool = True) -> list[str]:
    """Return every inconsistency as one sentence; none = all is well.

    It looks at every row, and at one moment of them all if the caller has begun a transaction.
    What is not `thorough` leaves out what no work depends on.
    """
    left_out = (_RUNS,) if thorough else (_RUNS, *_OF_NO_WORK)
    checks = sorted(n for n in dialect.sql if n.startswith("check_") and n not in left_out)
    wrong = [
        *(said for name in checks for (said,) in connection.execute(dialect.sql[name])),
        *_runs(connection, dialect),
    ]
    # Work does not depend on these, nor could a repair correct them.
    return [*wrong, *_newer(connection, dialect)] if thorough else wrong


def _newer(connection: Connection, dialect: Dialect) -> Iterator[str]:
    """Yield one sentence for each pool and budget that only a newer version understands."""
    for name, read in (("pools", lambda row: spec_of(row[2])), ("budgets", must_know_budget)):
        for row in connection.execute(dialect.sql[name]).fetchall():
            try:
                read(row)
            except NewerPool as error:
                yield str(error)


def _runs(connection: Connection, dialect: Dialect) -> Iterator[str]:
    for identifier, finished_at, state, live in connection.execute(dialect.sql[_RUNS]):
        run = _decode_run(state)
        if run.live != live:
            yield f"run {identifier} says {run.live} live tasks, and there are {live}"
        if run.finished_at != finished_at:
            yield f"run {identifier} does not say twice when it finished"
        if finished_at is not None and live:
            yield f"run {identifier} is over, and {live} of its tasks are live"
