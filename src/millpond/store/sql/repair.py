"""Repair: make inconsistent rows consistent, and record that.

Rows go wrong when a person edits them by hand, or a disk damages them. Tasks that can still run do.
A task of which too little is left ends as `failed: corrupt`, and is listed. A task that is held by
an unknown worker is given up as if that worker had died. Then everything is recounted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from millpond.core.admit import Reason
from millpond.core.lifecycle import Status
from millpond.store.sql.codec import TaskRow, ended_row, new_of, seq_at
from millpond.store.sql.consistency import check_rows
from millpond.store.sql.pool import SqlPool
from millpond.store.sql.unclaimed import SqlFresh
from millpond.store.sql.unit_of_work import SqlTables

if TYPE_CHECKING:
    from millpond.store.sql.database import Connection, Dialect

MANY = 50_000
"""Above so many tasks a check only runs on request: it takes seconds."""


def find_damage(
    connection: Connection, dialect: Dialect, *, at_any_size: bool = False
) -> list[str]:
    """Return every inconsistency; reads only.

    In a store of very many tasks it only looks for tasks without a known worker, unless
    `at_any_size`.
    """
    sql = dialect.sql
    for statement in dialect.begin_reading:
        connection.execute(statement)
    try:
        if not at_any_size and connection.execute(sql["count_of_all"]).fetchone()[0] > MANY:
            lost = connection.execute(sql["lost_holders"]).fetchall()
            return [f"worker {worker} holds tasks, and is not there" for (worker,) in lost]
        if "all_ways" in sql:
            connection.execute(sql["all_ways"])
        return check_rows(connection, dialect, thorough=False)
    finally:
        connection.execute("ROLLBACK")


def repair_rows(connection: Connection, dialect: Dialect, now: float) -> None:
    """Repair everything, inside the open transaction."""
    sql = dialect.sql
    if connection.execute(sql["meta"]).fetchone() is None:
        connection.execute(sql["new_meta"])
    for name in sorted(name for name in sql if name.startswith("mend_")):
        connection.execute(sql[name])
    for (worker,) in connection.execute(sql["lost_holders"]).fetchall():
        owner = worker.rpartition("/")[0] or None
        # It comes back as one that is long overdue: recovery knows what to do.
        held = (worker, owner, 0.0, 1.0, 0, None, "[]", 0)
        connection.execute(sql["save_worker"], held)
    connection.execute(sql["mend_6_ahead"])
    tables = SqlTables(connection, dialect, 0)
    moment = max(now, tables.latest)
    _end_lost_bodies(tables, moment)
    for pool in tables.pools.all():
        _recount(tables, pool, moment)
    _count_runs(tables)
    tables.end(moment)
    tables.write()


def _end_lost_bodies(tables: SqlTables, now: float) -> None:
    """End tasks that are neither queued, running nor ended, visibly."""
    for place, identifier, body in tables.ask("lost_bodies").fetchall():
        if not tables.pools.understands(place >> 40):
            continue
        pool = tables.pools.numbered(place >> 40)
        task = TaskRow(
            new=new_of(body, identifier, pool.name),
            status=Status.FAILED,
            seq=seq_at(place),
            rank=0,
            lane=None,
            sequence=0,
            submitted_at=now,
            due=now,
            finished_at=now,
            reason=Reason.CORRUPT,
        )
        tables.ask("add_ended", ended_row(task, pool.number))
        pool.totals[Status.FAILED] = pool.totals.get(Status.FAILED, 0) + 1


def _recount(tables: SqlTables, pool: SqlPool, now: float) -> None:
    """Queue all waiting tasks again, and recount."""
    tasks = sorted(tables.live(pool), key=lambda task: task.seq)
    for task in tasks:
        assert isinstance(task, TaskRow)  # noqa: S101 - of these tables they all are
        task.grp, task.listed = None, False
    held = [task for task in tasks if task.worker is not None]
    pool.live = len(tasks)
    pool.claimed = sum(task.claimed for task in held)
    pool.running = len(held) - pool.claimed
    pool.holding = dict(Counter(task.worker or "" for task in held if not task.claimed))
    pool.starved, pool.hungry = {}, {}
    pool.kept = tables.ask("kept_of_pool", (pool.number,)).fetchone()[0]
    pool.dead = pool.count_dead()
    pool.parked.count = pool.parked_apart = 0
    pool.fresh = SqlFresh(pool, 0)
    pool.backlog = pool.backlog.emptied(
        Counter(task.unit for task in held if task.unit is not None)
    )
    for task in tasks:
        if task.worker is None and isinstance(task, TaskRow):
            _requeue(tables, pool, task, now)
    pool.backlog.flush(now)
    tables.record_command(pool.name, "mend", now)


def _requeue(tables: SqlTables, pool: SqlPool, task: TaskRow, now: float) -> None:
    if task.fresh:
        pool.fresh.add(task)
    parked_at, task.parked_at, task.parked = task.parked_at, None, False
    pool.backlog.add(task, now)
    if parked_at is not None:
        pool.backlog.flush(now)
        tables.park(pool, task, now)
        task.parked_at = parked_at


def _count_runs(tables: SqlTables) -> None:
    """Recount the live tasks of each open run: a lost task must not keep it open."""
    rows = tables.ask("live_counts_of_runs").fetchall()
    for identifier, state, live in rows:
        run = tables.runs.take_in(identifier, state)
        tables.ask("date_run", (run.finished_at, identifier))
        if run.live != live:
            run.live = live
            run.finished_at = None if live else run.finished_at
            tables.touch_run(run)
