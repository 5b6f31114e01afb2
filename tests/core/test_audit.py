"""Audit records are derived from the task and its arrow."""

import pytest
from tests.core.making import queued

from millpond.core.audit import Record, RecordKind, command_record, record
from millpond.core.lifecycle import LIFECYCLE, Status, Transition
from millpond.core.spec import PoolSpec, fifo
from millpond.core.task import Call, Dedupe

KINDS = {
    Transition.SUBMIT: RecordKind.SUBMIT,
    Transition.UPDATE: RecordKind.UPDATE,
    Transition.REFUSE: RecordKind.DROP,
    Transition.EVICT: RecordKind.DROP,
    Transition.CLAIM: RecordKind.CLAIM,
    Transition.LEASE: RecordKind.DEQUEUE,
    Transition.RETRY: RecordKind.RETRY,
    Transition.CANCEL: RecordKind.CANCEL,
    Transition.LOSE: RecordKind.LEASE_EXPIRED,
    Transition.EXHAUST: RecordKind.LEASE_EXPIRED,
    Transition.REDRIVE: RecordKind.CONTROL,
    Transition.COMPLETE: RecordKind.SETTLE,
    Transition.FAIL: RecordKind.SETTLE,
    Transition.RELEASE: RecordKind.SETTLE,
    Transition.EXPIRE: RecordKind.SETTLE,
    Transition.STALE: RecordKind.SETTLE,
    Transition.CORRUPT: RecordKind.SETTLE,
    Transition.UNKNOWN: RecordKind.SETTLE,
}


@pytest.mark.parametrize("arrow", list(LIFECYCLE))
def test_every_arrow_has_a_kind(arrow: tuple[Status | None, Transition]) -> None:
    """A record says what it is about, where from and where to."""
    before, event = arrow
    task = queued(PoolSpec(name="p"), 1)
    task.status = LIFECYCLE[arrow]
    entry = record(task, event, before, at=3.0)
    assert (KINDS[event], before, LIFECYCLE[arrow]) == (entry.kind, entry.before, entry.after)


def test_a_record_shows_the_task_after_the_transition() -> None:
    """Every field comes from the task or the arrow; nothing is written by hand beside it."""
    spec = PoolSpec(name="p", lanes=2, order=fifo())
    task = queued(
        spec,
        4,
        now=10.0,
        key="acme",
        share="s",
        weight=5,
        run=8,
        owner="me",
        attempts=9,
        idempotency_key="k",
        dedupe=Dedupe.RUN,
        on_complete=Call("notify"),
    )
    task.status, task.attempt, task.runs, task.token = Status.RUNNING, 2, 3, 77
    task.worker, task.reason, task.fresh = "w", "because", False
    expected = Record(
        at=12.0,
        kind=RecordKind.DEQUEUE,
        pool="p",
        task=4,
        event=Transition.LEASE,
        before=Status.QUEUED,
        after=Status.RUNNING,
        attempt=2,
        attempts=9,
        runs=3,
        token=77,
        worker="w",
        key="acme",
        share="s",
        lane=task.lane,
        seq=4,
        sequence=4,
        due=10.0,
        weight=5,
        fresh=False,
        run=8,
        owner="me",
        function="work",
        idempotency_key="k",
        dedupe="run",
        callback=True,
        cause=1,
        reason="because",
    )
    assert expected == record(task, Transition.LEASE, Status.QUEUED, at=12.0, cause=1)


def test_a_record_without_a_key_names_no_way_to_dedupe() -> None:
    """How long a key counts is only said where there is a key."""
    entry = record(queued(PoolSpec(name="p"), 1), Transition.SUBMIT, None, at=0.0)
    assert (None, None, False) == (entry.idempotency_key, entry.dedupe, entry.callback)


def test_an_order_is_a_record_without_an_arrow() -> None:
    """Operators' orders and the end of a run are control records."""
    entry = command_record("p", "pause", at=1.0, task=3, run=4)
    assert (RecordKind.CONTROL, None, "pause") == (entry.kind, entry.event, entry.detail)
    assert (3, 4) == (entry.task, entry.run)
