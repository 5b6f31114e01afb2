"""The verbs: each is one uninterrupted change of the tables, and its answer.

A verb reads no clock and draws no chance: its moment and its entropy are arguments. The caller
makes sure that nothing else changes the tables meanwhile: a store in memory by not awaiting, a
store on disk by a transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.run import view as run_view
from millpond.core.ticks import rounded
from millpond.store.protocol import (
    Admission,
    BatchAnswer,
    ControlAnswer,
    LeaseAnswer,
    RecoverAnswer,
    RenewAnswer,
    SettleAnswer,
    SubmitAnswer,
)
from millpond.store.verbs.bulk import settle_all
from millpond.store.verbs.control import control as _control
from millpond.store.verbs.control import pool_named
from millpond.store.verbs.lease import lease as _lease
from millpond.store.verbs.prefetch import wanted_pools
from millpond.store.verbs.recover import more, next_recovery
from millpond.store.verbs.recover import recover as _recover
from millpond.store.verbs.submit import admission
from millpond.store.verbs.submit import submit as _submit
from millpond.store.verbs.submit import take_committed as _take_committed
from millpond.store.verbs.workers import leads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.core.control import Command
    from millpond.core.lease import LeaseRequest
    from millpond.core.settle import Settlement
    from millpond.core.task import NewTask
    from millpond.store.protocol import Batch
    from millpond.store.verbs.settle import Ended
    from millpond.store.verbs.tables import Tables


def _begin(tables: Tables, now: float, entropy: int | None) -> float:
    tables.begin(entropy)
    moment = rounded(now)
    # Time never goes back here, whatever a clock does: a due task stays due.
    if moment > tables.latest:  # noqa: PLR1730 - max costs a call
        tables.latest = moment
    return tables.latest


def _effects(tables: Tables) -> dict[str, Any]:
    """Return the parts of the answers of all verbs that concern others than their callers."""
    return {
        "finished_runs": tables.finished_runs(),
        "wakes": tables.wakes(),
        "ended": tables.endings.ended(),
        "emptied": tables.endings.emptied(),
    }


def submit(
    tables: Tables, batches: Sequence[Batch], now: float, entropy: int | None = None
) -> SubmitAnswer:
    """Accept batches, each as a whole or not at all where its pool's policy says so."""
    now = _begin(tables, now, entropy)
    answers = [_submit(tables, batch, now) for batch in batches]
    tables.end(now)
    return SubmitAnswer(
        batches=tuple([_with_run(tables, answer) for answer in answers]),
        **_effects(tables),
    )


def take_committed(
    tables: Tables, tasks: Sequence[NewTask], now: float, entropy: int | None = None
) -> SubmitAnswer:
    """Store tasks that callers submitted inside their own transactions; all are accepted."""
    now = _begin(tables, now, entropy)
    for new in tasks:
        _take_committed(tables, new, now)
    tables.end(now)
    return SubmitAnswer(
        batches=(),
        **_effects(tables),
    )


def _with_run(tables: Tables, answer: BatchAnswer) -> BatchAnswer:
    """Return the answer with its run as it is after the verb: an empty seed has ended already."""
    if answer.run is None:
        return answer
    run = run_view(tables.runs.require(answer.run.id), resumed=answer.run.resumed)
    return msgspec.structs.replace(answer, run=run)


def lease(tables: Tables, ask: LeaseRequest, now: float, entropy: int | None = None) -> LeaseAnswer:
    """Give a worker the next tasks of a pool, within every limit in force."""
    now = _begin(tables, now, entropy)
    pool_named(tables, ask.pool)
    answer = _lease(tables, ask, now)
    tables.end(now)
    if not tables.has_news:
        return answer
    return msgspec.structs.replace(
        answer,
        **_effects(tables),
    )


def renew(
    tables: Tables, worker: str, lease: float, now: float, entropy: int | None = None
) -> RenewAnswer:
    """Renew all leases of a worker for `lease` seconds; one that was declared dead has none."""
    check.number("lease", lease, above=0.0)
    now = _begin(tables, now, entropy)
    row = tables.workers.get(worker)
    if row is None:
        return RenewAnswer(alive=False)
    tables.renew(row, lease, now)
    cancelled, interrupted = tables.stop_requests_of(row)
    return RenewAnswer(
        alive=True,
        cancelled=cancelled,
        interrupted=interrupted,
        give_back=wanted_pools(tables, row, now) if row.ahead else (),
    )


def settle(
    tables: Tables,
    settlements: Sequence[Settlement],
    now: float,
    entropy: int | None = None,
    *,
    then: LeaseRequest | None = None,
) -> SettleAnswer:
    """End attempts, each only with its current fence, and lease the next if asked."""
    now = _begin(tables, now, entropy)
    # Before any change: a verb happens as a whole or not at all.
    for one in settlements:
        for new in one.follow_ups:
            pool_named(tables, new.pool)
    if then is not None:
        pool_named(tables, then.pool)
    ended = settle_all(tables, settlements, now)
    leased = _lease(tables, then, now) if then is not None else None
    tables.end(now)
    return SettleAnswer(
        settled=tuple([one[0] for one in ended]),
        after=tuple([one[1] for one in ended]),
        started=tuple([one[3] for one in ended]),
        follow_ups=_follow_up_admissions(tables, ended),
        lease=leased,
        **_effects(tables),
    )


def _follow_up_admissions(tables: Tables, ended: list[Ended]) -> tuple[tuple[Admission, ...], ...]:
    """Return the admissions of follow-ups as they are after the verb."""
    return tuple([tuple([admission(tables, taken) for taken in one[2]]) for one in ended])


def recover(
    tables: Tables,
    limit: int,
    now: float,
    entropy: int | None = None,
    *,
    generation: int | None = None,
) -> RecoverAnswer:
    """Apply what only time causes: lose expired leases, fail expired and long-parked tasks."""
    now = _begin(tables, now, entropy)
    if generation is not None and not leads(tables, generation, now):
        return RecoverAnswer(moved=0, deposed=True)
    moved = _recover(tables, limit, now)
    tables.end(now)
    return RecoverAnswer(
        moved=moved,
        more=more(tables, now),
        next_at=next_recovery(tables, now),
        **_effects(tables),
        lost=tables.endings.lost(),
    )


def control(
    tables: Tables, command: Command, now: float, entropy: int | None = None
) -> ControlAnswer:
    """Carry out a command."""
    by: str | None = getattr(command, "by", None)
    if by is not None:
        check.storable("by", by, bounds.MAX_SUBMITTED_BY)
    now = _begin(tables, now, entropy)
    tables.by = by
    try:
        count, revision, left = _control(tables, command, now)
    finally:
        tables.by = None
    tables.end(now)
    cancelled, interrupted = tables.stop_requests()
    return ControlAnswer(
        count=count,
        revision=revision,
        more=left,
        cancelled=cancelled,
        interrupted=interrupted,
        **_effects(tables),
        lost=tables.endings.lost(),
    )
