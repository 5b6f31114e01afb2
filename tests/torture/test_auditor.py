"""The auditor finds nothing wrong with a clean history, and each doctored one out."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from verify.torture.auditor import Verdict, audit
from verify.torture.evidence import Evidence
from verify.torture.ledger import (
    AnyEntry,
    AttemptBegan,
    AttemptEnded,
    CallbackRan,
    CancelNoticed,
    CancelRequested,
    IdleMeasured,
    ProcessEnded,
    ResultReceived,
    RunDrained,
    SubmitConfirmed,
)

from millpond import Rate, Status, bounded, fair_round_robin
from millpond.core.audit import Record
from millpond.core.lifecycle import Transition
from millpond.core.task import CALLBACKS

replace = msgspec.structs.replace


def copy_of(evidence: Evidence) -> Evidence:
    return replace(
        evidence,
        specs=dict(evidence.specs),
        lines=list(evidence.lines),
        records=list(evidence.records),
        rows=dict(evidence.rows),
    )


def broken(verdict: Verdict) -> dict[str, list[str]]:
    return {check.name: check.broken for check in verdict.checks if check.broken}


def test_a_clean_history_is_found_clean(clean: Evidence) -> None:
    """Nothing is found wrong, and there was something to look at: losses, zombies, limits met."""
    verdict = audit(clean)
    assert {} == broken(verdict)
    assert verdict.clean
    for fact in ("leases lost", "stale settles refused", "retries", "duplicates answered"):
        assert verdict.facts[fact] > 0, fact
    assert len(verdict.cancels) > 0
    met = {name for name in verdict.facts if name.startswith("met: ")}
    assert {"met: fair: all 6 slots taken", "met: rate: rate of 20 used up"} <= met


# Ways to doctor a history


def line_of(evidence: Evidence, kind: type[Any], **facts: object) -> int:
    """Return the place of the first line of a kind that has these facts."""
    return next(
        place
        for place, line in enumerate(evidence.lines)
        if isinstance(line, kind) and all(getattr(line, name) == it for name, it in facts.items())
    )


def change_line(evidence: Evidence, place: int, **facts: object) -> None:
    changed: AnyEntry = replace(evidence.lines[place], **facts)
    evidence.lines[place] = changed


def record_of(evidence: Evidence, fits: Callable[[Record], bool]) -> int:
    return next(place for place, record in enumerate(evidence.records) if fits(record))


def change_record(evidence: Evidence, place: int, **facts: object) -> None:
    evidence.records[place] = replace(evidence.records[place], **facts)


def completed(evidence: Evidence) -> int:
    """Return a confirmed task that completed."""
    taken = (line.task for line in evidence.of(SubmitConfirmed) if not line.duplicate)
    return next(task for task in taken if evidence.rows[task].status is Status.COMPLETED)


def change_row(evidence: Evidence, task: int, **facts: object) -> None:
    evidence.rows[task] = replace(evidence.rows[task], **facts)


def change_spec(evidence: Evidence, pool: str, **facts: object) -> None:
    evidence.specs[pool] = replace(evidence.specs[pool], **facts)


def lose_a_row(evidence: Evidence) -> None:
    del evidence.rows[completed(evidence)]


def leave_a_task_queued(evidence: Evidence) -> None:
    change_row(evidence, completed(evidence), status=Status.QUEUED)


def forget_an_item(evidence: Evidence) -> None:
    del evidence.lines[line_of(evidence, SubmitConfirmed, duplicate=False)]


def hold_a_stranger(evidence: Evidence) -> None:
    evidence.rows[1] = evidence.rows[completed(evidence)]


def fail_what_should_complete(evidence: Evidence) -> None:
    change_row(evidence, completed(evidence), status=Status.FAILED)


def swap_a_result(evidence: Evidence) -> None:
    task = completed(evidence)
    change_row(evidence, task, result=msgspec.json.encode("0 by 1/77"))


def settle_without_an_end(evidence: Evidence) -> None:
    del evidence.lines[line_of(evidence, AttemptEnded, how="returned")]


def settle_what_raised(evidence: Evidence) -> None:
    change_line(evidence, line_of(evidence, AttemptEnded, how="returned"), how="raised")


def settle_before_the_end(evidence: Evidence) -> None:
    place = line_of(evidence, AttemptEnded, how="returned")
    change_line(evidence, place, wall=evidence.lines[place].wall + 60)


def a_fence_given_to_another(evidence: Evidence) -> None:
    place = record_of(evidence, lambda record: record.event is Transition.COMPLETE)
    change_record(evidence, place, token=evidence.records[place].token + 1)


def one_slot_too_many(evidence: Evidence) -> None:
    change_spec(evidence, "fair", max_concurrent=5)


def one_of_a_key_too_many(evidence: Evidence) -> None:
    change_spec(evidence, "fair", max_per_key=1)


def one_claim_too_many(evidence: Evidence) -> None:
    change_spec(evidence, "ahead", prefetch=1)


def one_callback_too_many(evidence: Evidence) -> None:
    change_spec(evidence, "priority" + CALLBACKS, max_concurrent=0)


def overtake_in_a_lane(evidence: Evidence) -> None:
    """Say that a task which had to wait in its lane was the first there."""
    submitted: list[int] = []
    for record in evidence.records:
        if record.pool == "lanes" and record.lane == "0" and record.event is Transition.SUBMIT:
            submitted.append(record.task or 0)
        if (
            record.pool == "lanes"
            and record.event is Transition.LEASE
            and record.task in submitted[:-1]
        ):
            break
    for place, record in enumerate(evidence.records):
        if record.task == submitted[-1]:
            change_record(evidence, place, sequence=0)


def an_arrow_that_is_missing(evidence: Evidence) -> None:
    del evidence.records[record_of(evidence, lambda record: record.event is Transition.LEASE)]


def a_budget_overdrawn(evidence: Evidence) -> None:
    retried = {record.task for record in evidence.records if record.event is Transition.RETRY}
    for place, record in enumerate(evidence.records):
        if record.task in retried:
            change_record(evidence, place, attempts=1)


def one_waiting_too_many(evidence: Evidence) -> None:
    change_spec(evidence, "bounded", backpressure=bounded(24))


def one_key_for_two_tasks(evidence: Evidence) -> None:
    keyed = [record.task for record in evidence.records if record.idempotency_key == "only-397"]
    assert not keyed, "an unused key"
    submits = [
        place
        for place, record in enumerate(evidence.records)
        if record.event is Transition.SUBMIT and record.pool == "twice"
    ]
    for place in submits[:2]:
        change_record(evidence, place, idempotency_key="only-397")


def an_unfair_share(evidence: Evidence) -> None:
    weights = {"tenant-0": 0.05}
    change_spec(evidence, "fair", order=fair_round_robin(weights=weights))


def a_callback_that_was_not_stored(evidence: Evidence) -> None:
    place = record_of(evidence, lambda record: record.pool == "priority" + CALLBACKS)
    task = evidence.records[place].task
    evidence.records = [record for record in evidence.records if record.task != task]


def a_callback_stored_later(evidence: Evidence) -> None:
    place = record_of(evidence, lambda record: record.cause is not None)
    change_record(evidence, place, at=evidence.records[place].at + 1e-6)


def a_start_too_fast(evidence: Evidence) -> None:
    change_spec(evidence, "rate", rates=(Rate(20, per=1.0, burst=7),))


def a_start_too_early(evidence: Evidence) -> None:
    place = record_of(
        evidence, lambda record: record.event is Transition.SUBMIT and record.pool == "fair"
    )
    change_record(evidence, place, due=evidence.records[place].due + 60)


def a_clock_that_goes_back(evidence: Evidence) -> None:
    change_record(evidence, len(evidence.records) // 2, at=evidence.records[0].at)


def an_attempt_begun_twice(evidence: Evidence) -> None:
    evidence.lines.append(evidence.lines[line_of(evidence, AttemptBegan)])


def a_run_without_a_lease(evidence: Evidence) -> None:
    again = line_of(evidence, AttemptBegan)
    evidence.lines.append(replace(evidence.lines[again], token=1, attempt=9))


def a_run_without_an_end(evidence: Evidence) -> None:
    last = len(evidence.records) - 1
    while evidence.records[last].event is not Transition.COMPLETE:
        last -= 1
    del evidence.records[last]


def a_clock_that_ran_away(evidence: Evidence) -> None:
    half = len(evidence.records) // 2
    for place in range(half, len(evidence.records)):
        change_record(evidence, place, at=evidence.records[place].at + 0.5)


def poison_that_completed(evidence: Evidence) -> None:
    """Say that the last item was to kill its process."""
    settings = evidence.settings
    evidence.settings = replace(settings, poisoned=1)
    poisoned = max(line.item for line in evidence.of(SubmitConfirmed)) + 1
    place = line_of(evidence, SubmitConfirmed, task=completed(evidence))
    evidence.lines.append(replace(evidence.lines[place], item=poisoned))


def a_callback_that_never_ran(evidence: Evidence) -> None:
    task = next(evidence.of(CallbackRan)).task
    evidence.lines = [
        line for line in evidence.lines if not (isinstance(line, CallbackRan) and line.task == task)
    ]


def a_callback_that_was_lied_to(evidence: Evidence) -> None:
    change_line(evidence, line_of(evidence, CallbackRan, status="completed"), status="failed")


def another_task_for_a_key(evidence: Evidence) -> None:
    change_line(
        evidence, line_of(evidence, SubmitConfirmed, duplicate=True), task=completed(evidence)
    )


def a_key_made_twice(evidence: Evidence) -> None:
    change_line(evidence, line_of(evidence, SubmitConfirmed, duplicate=True), duplicate=False)


def a_run_that_was_not_drained(evidence: Evidence) -> None:
    del evidence.lines[line_of(evidence, RunDrained)]


def a_page_not_visited(evidence: Evidence) -> None:
    change_line(evidence, line_of(evidence, RunDrained), completed=49)


def a_drain_that_returned_too_early(evidence: Evidence) -> None:
    place = line_of(evidence, RunDrained)
    change_line(evidence, place, wall=evidence.lines[place].wall - 1)


def a_page_visited_twice(evidence: Evidence) -> None:
    place = record_of(
        evidence, lambda record: record.pool == "crawl" and record.event is Transition.SUBMIT
    )
    change_record(evidence, place, task=7)


def a_waiter_given_another_result(evidence: Evidence) -> None:
    change_line(evidence, line_of(evidence, ResultReceived, status="completed"), result="0 by 1/77")


def a_waiter_with_another_outcome(evidence: Evidence) -> None:
    change_line(evidence, line_of(evidence, ResultReceived, status="completed"), status="failed")


def gone(evidence: Evidence, *, code: int, expected: bool) -> None:
    evidence.lines.append(
        ProcessEnded(
            pid=1,
            wall=0.0,
            mono=0.0,
            child=99,
            role="worker",
            number=0,
            code=code,
            expected=expected,
        )
    )


def a_worker_that_fell_over(evidence: Evidence) -> None:
    gone(evidence, code=1, expected=False)


def a_worker_that_died_on_its_own(evidence: Evidence) -> None:
    gone(evidence, code=-9, expected=False)


def a_worker_that_stopped_badly(evidence: Evidence) -> None:
    gone(evidence, code=1, expected=True)


def a_cancel_without_effect(evidence: Evidence) -> None:
    change_row(evidence, next(evidence.of(CancelRequested)).task, status=Status.COMPLETED)


def a_handler_that_noticed_nothing(evidence: Evidence) -> None:
    cancelled = next(evidence.of(CancelRequested)).task
    for kind in (CancelNoticed, AttemptEnded):
        del evidence.lines[line_of(evidence, kind, task=cancelled)]


def handlers_that_noticed_late(evidence: Evidence) -> None:
    for place, line in enumerate(evidence.lines):
        if isinstance(line, CancelNoticed):
            change_line(evidence, place, wall=line.wall + 1.0)


def idle_workers_that_asked_too_much(evidence: Evidence) -> None:
    rest: dict[str, Any] = {"workers": 10, "seconds": 30.0, "transactions": 301, "statements": None}
    evidence.lines.append(IdleMeasured(pid=1, wall=0.0, mono=0.0, **rest))


DOCTORED = [
    ("cancelled tasks ended cancelled", a_cancel_without_effect),
    ("cancel reaches a running handler", a_handler_that_noticed_nothing),
    ("cancel reaches a running handler", handlers_that_noticed_late),
    ("10 idle workers", idle_workers_that_asked_too_much),
    ("0 lost", lose_a_row),
    ("0 lost", leave_a_task_queued),
    ("0 lost", forget_an_item),
    ("rows and audit agree", lose_a_row),
    ("rows and audit agree", hold_a_stranger),
    ("rows and audit agree", leave_a_task_queued),
    ("each ended as planned", fail_what_should_complete),
    ("results are of the attempt", swap_a_result),
    ("0 settles applied by a zombie", settle_without_an_end),
    ("0 settles applied by a zombie", settle_what_raised),
    ("0 settles applied by a zombie", settle_before_the_end),
    ("each end is of the fence in force", a_fence_given_to_another),
    ("no start above a limit", one_slot_too_many),
    ("no start above a limit", one_of_a_key_too_many),
    ("no start above a limit", one_claim_too_many),
    ("no start above a limit", one_callback_too_many),
    ("lanes start in sequence", overtake_in_a_lane),
    ("tasks move only along", an_arrow_that_is_missing),
    ("charged runs within", a_budget_overdrawn),
    ("never more waiting", one_waiting_too_many),
    ("one idempotency key", one_key_for_two_tasks),
    ("fair shares", an_unfair_share),
    ("a task's end and its callback", a_callback_that_was_not_stored),
    ("a task's end and its callback", a_callback_stored_later),
    ("starts within the rate", a_start_too_fast),
    ("nothing started before", a_start_too_early),
    ("the store's clock", a_clock_that_goes_back),
    ("surplus runs", an_attempt_begun_twice),
    ("surplus runs", a_run_without_a_lease),
    ("surplus runs", a_run_without_an_end),
    ("no handler began before its lease", a_clock_that_ran_away),
    ("tasks that kill their process", poison_that_completed),
    ("callbacks ran", a_callback_that_never_ran),
    ("callbacks ran", a_callback_that_was_lied_to),
    ("two submitters, one key", another_task_for_a_key),
    ("two submitters, one key", a_key_made_twice),
    ("runs visited each page", a_run_that_was_not_drained),
    ("runs visited each page", a_page_not_visited),
    ("runs visited each page", a_page_visited_twice),
    ("runs visited each page", a_drain_that_returned_too_early),
    ("waiters got the right result", a_waiter_given_another_result),
    ("waiters got the right result", a_waiter_with_another_outcome),
    ("no process ended by itself", a_worker_that_fell_over),
    ("no process ended by itself", a_worker_that_died_on_its_own),
    ("no process ended by itself", a_worker_that_stopped_badly),
]


@pytest.mark.parametrize(
    ("promise", "doctor"), DOCTORED, ids=[doctor.__name__ for _, doctor in DOCTORED]
)
def test_a_doctored_history_is_found_out(
    clean: Evidence, promise: str, doctor: Callable[[Evidence], None]
) -> None:
    """The check that stands for a promise speaks where the evidence says it was broken."""
    doctored = copy_of(clean)
    doctor(doctored)
    found = broken(audit(doctored))
    assert any(name.startswith(promise) for name in found), found
