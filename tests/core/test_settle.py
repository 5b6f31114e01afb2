"""Settling: outcome, attempts and policy make the event."""

from typing import Any

import msgspec
import pytest
from tests.core.making import leased, new_task, queued

from millpond.core.backoff import Retry
from millpond.core.lifecycle import LIFECYCLE, Status, Transition
from millpond.core.settle import (
    CALLBACK_ATTEMPTS,
    ENDINGS,
    Ending,
    Interrupted,
    Outcome,
    Raised,
    Settlement,
    Stopped,
    Succeeded,
    Unfit,
    callback,
    event_in_force,
    event_of_loss,
    settle,
)
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, Fence, Task
from millpond.errors import ConfigError

STEADY = Retry(attempts=3, jitter=0.0)

CASES: list[tuple[Outcome, int, Transition, bool, float]] = [
    (Succeeded(b"r"), 1, Transition.COMPLETE, True, 0.0),
    (Succeeded(b"r"), 3, Transition.COMPLETE, True, 0.0),
    (Raised(b"e"), 1, Transition.RETRY, True, 1.0),
    (Raised(b"e"), 2, Transition.RETRY, True, 2.0),
    (Raised(b"e"), 3, Transition.FAIL, True, 0.0),
    (Raised(b"e", final=True), 1, Transition.FAIL, True, 0.0),
    (Raised(b"e", retry_in=9.0), 1, Transition.RETRY, True, 9.0),
    (Raised(b"e", retry_in=9.0), 3, Transition.FAIL, True, 0.0),
    (Raised(b"e", retry_in=9.0, spend=False), 3, Transition.RETRY, False, 9.0),
    (Raised(b"e", retry_in=0.0), 1, Transition.RETRY, True, 0.0),
    (Raised(b"e", final=True, retry_in=9.0, spend=False), 1, Transition.FAIL, True, 0.0),
    (Interrupted(), 3, Transition.RELEASE, False, 0.0),
    (Stopped(), 1, Transition.CANCEL, True, 0.0),
    (Unfit(corrupt=True), 1, Transition.CORRUPT, False, 0.0),
    (Unfit(corrupt=False), 3, Transition.RELEASE, False, 0.0),
]


@pytest.mark.parametrize(("outcome", "attempt", "event", "spend", "wait"), CASES)
def test_an_outcome_becomes_an_event(
    outcome: Outcome, attempt: int, event: Transition, spend: bool, wait: float
) -> None:
    """The table of outcomes by attempt, of three: event, charge and delay."""
    got = settle(leased(attempt), outcome, STEADY, jitter=0.5)
    assert (event, spend, wait) == (got.event, got.spend, got.delay)
    assert Fence(1, attempt, 77) == got.fence


def test_a_settlement_carries_what_the_handler_left() -> None:
    """A result with its follow-ups, or an error; a task that the worker does not know is parked."""
    child = new_task(2)
    done = settle(leased(), Succeeded(b"r", (child,)), STEADY, jitter=0.0)
    assert (b"r", (child,), None) == (done.result, done.follow_ups, done.error)
    failed = settle(leased(), Raised(b"e"), STEADY, jitter=0.0)
    assert (None, (), b"e") == (failed.result, failed.follow_ups, failed.error)
    assert settle(leased(), Unfit(corrupt=False), STEADY, jitter=0.0).parked
    assert not settle(leased(), Interrupted(), STEADY, jitter=0.0).parked


def test_one_attempt_means_at_most_once() -> None:
    """With attempts=1 the first error is the end."""
    got = settle(leased(1, max_attempts=1), Raised(b"e"), Retry.never(), jitter=0.0)
    assert Transition.FAIL == got.event


def running(attempt: int, *, cancelled: bool = False, **fields: Any) -> Task:
    """A running task of three attempts."""
    task = queued(PoolSpec(name="p"), 1, **fields)
    task.status, task.attempt, task.cancel_requested = Status.RUNNING, attempt, cancelled
    return task


IN_FORCE = [
    (Transition.COMPLETE, True, 1, False, Transition.COMPLETE),
    (Transition.COMPLETE, True, 3, True, Transition.COMPLETE),
    (Transition.RETRY, True, 1, False, Transition.RETRY),
    (Transition.RETRY, True, 3, False, Transition.FAIL),
    (Transition.RETRY, False, 3, False, Transition.RETRY),
    (Transition.RETRY, True, 1, True, Transition.CANCEL),
    (Transition.RETRY, False, 1, True, Transition.CANCEL),
    (Transition.RELEASE, False, 1, True, Transition.CANCEL),
    (Transition.RELEASE, False, 1, False, Transition.RELEASE),
    (Transition.FAIL, True, 1, True, Transition.CANCEL),
    (Transition.FAIL, True, 1, False, Transition.FAIL),
    (Transition.COMPLETE, True, 1, True, Transition.COMPLETE),
    (Transition.CANCEL, True, 1, False, Transition.CANCEL),
]


@pytest.mark.parametrize(("settled", "spend", "attempt", "cancelled", "event"), IN_FORCE)
def test_the_store_has_the_last_word(
    settled: Transition, spend: bool, attempt: int, cancelled: bool, event: Transition
) -> None:
    """A cancelled task is not run again, a budget used up is a failure, a result is a result."""
    settlement = Settlement(fence=Fence(1, attempt, 0), event=settled, spend=spend)
    assert event is event_in_force(running(attempt, cancelled=cancelled), settlement)


LOST = [
    (1, False, None, Transition.LOSE),
    (2, False, None, Transition.LOSE),
    (3, False, None, Transition.EXHAUST),
    (1, True, None, Transition.CANCEL),
    (3, True, None, Transition.CANCEL),
    (1, False, "process", Transition.STALE),
    (1, True, "process", Transition.STALE),
]


@pytest.mark.parametrize(("attempt", "cancelled", "owner", "event"), LOST)
def test_a_lost_lease_is_charged(
    attempt: int, cancelled: bool, owner: str | None, event: Transition
) -> None:
    """Attempts left: again. None left: failed. Cancelled: cancelled. A closure: stale."""
    lost = event_of_loss(running(attempt, cancelled=cancelled, owner=owner))
    assert event is lost
    assert (Status.RUNNING, lost) in LIFECYCLE


def test_a_callback_gets_the_outcome_of_its_task() -> None:
    """It stands in the pool's own callback queue, belongs to the run and carries the ending."""
    task = running(2, on_complete=Call("notify", b"args"), run=5, key="acme")
    task.status, task.result, task.reason = Status.COMPLETED, b"r", None
    made = callback(task, 99)
    assert (99, "p~callbacks", Call("notify", b"args")) == (made.id, made.pool, made.call)
    assert (CALLBACK_ATTEMPTS, 5, "task:1") == (made.attempts, made.run, made.submitted_by)
    assert made.is_callback
    assert made.on_complete is None
    ending = Ending(
        task=1,
        pool="p",
        function=task.new.call.function,
        key="acme",
        labels={},
        status="completed",
        reason=None,
        attempt=2,
        result=b"r",
        error=None,
    )
    assert ending == msgspec.msgpack.decode(made.options, type=Ending)


PATIENT = Retry(attempts=9, initial=1.0, jitter=0.0, give_up_after=10.0)


@pytest.mark.parametrize(
    ("outcome", "now", "event"),
    [
        (Raised(b"e"), 0.0, Transition.RETRY),
        (Raised(b"e"), 9.0, Transition.RETRY),
        (Raised(b"e"), 9.5, Transition.FAIL),
        (Raised(b"e"), 60.0, Transition.FAIL),
        (Raised(b"e", retry_in=10.0), 0.0, Transition.RETRY),
        (Raised(b"e", retry_in=11.0), 0.0, Transition.FAIL),
        (Raised(b"e", retry_in=11.0, spend=False), 0.0, Transition.FAIL),
        (Raised(b"e", retry_in=11.0), None, Transition.RETRY),
        (Interrupted(), 60.0, Transition.RELEASE),
        (Succeeded(b"r"), 60.0, Transition.COMPLETE),
    ],
)
def test_jobs_time_out_after_the_promised_time(
    outcome: Outcome, now: float | None, event: Transition
) -> None:
    """No attempt starts later than give_up_after seconds after the first start, at 0."""
    lease = leased()
    assert event is settle(lease, outcome, PATIENT, jitter=0.5, now=now, started_at=0.0).event
    later = msgspec.structs.replace(lease, first_started_at=0.0)
    assert event is settle(later, outcome, PATIENT, jitter=0.5, now=now, started_at=55.0).event


def test_without_a_limit_patience_has_no_end() -> None:
    """Attempts alone decide."""
    assert Transition.RETRY is settle(leased(), Raised(b"e"), STEADY, jitter=0.5, now=1e9).event


@pytest.mark.parametrize("event", Transition)
def test_a_settlement_ends_an_attempt(event: Transition) -> None:
    """Any other event is refused, blamed by name, before a store ever sees it."""
    if event in ENDINGS:
        assert event is Settlement(fence=Fence(1, 1, 0), event=event).event
        return
    with pytest.raises(ConfigError) as caught:
        Settlement(fence=Fence(1, 1, 0), event=event)
    assert ("event", str(event)) == (caught.value.option, caught.value.value)


def test_what_ends_an_attempt_is_an_arrow_from_running() -> None:
    """Six endings; a corrupt record is released first and fails from the queue."""
    assert {"complete", "fail", "cancel", "retry", "release", "corrupt"} == {*map(str, ENDINGS)}
    assert all((Status.RUNNING, event) in LIFECYCLE for event in ENDINGS - {Transition.CORRUPT})
