"""Cancels: from the call to the handler's word, where nothing else came between them."""

from math import inf
from typing import Any

import pytest
from verify.torture.auditor import cancelled_in_time
from verify.torture.cancels import Cancel, cancels
from verify.torture.evidence import Evidence
from verify.torture.ledger import (
    AnyEntry,
    AttemptBegan,
    AttemptEnded,
    CancelNoticed,
    CancelRequested,
    SignalSent,
)
from verify.torture.plan import Settings
from verify.torture.replay import Replay

PID = 40
RUN: dict[str, Any] = {"task": 1, "attempt": 1, "token": 5}


def when(at: float, pid: int = PID) -> dict[str, Any]:
    return {"pid": pid, "wall": at, "mono": at}


def began(at: float, attempt: int = 1, pid: int = PID) -> AttemptBegan:
    return AttemptBegan(**when(at, pid), **{**RUN, "attempt": attempt}, pool="off", item="off 1")


def cancel_requested(at: float) -> CancelRequested:
    return CancelRequested(**when(at, 2), task=1, way="interrupt")


def noticed(at: float, attempt: int = 1) -> list[AnyEntry]:
    run = {**RUN, "attempt": attempt}
    return [CancelNoticed(**when(at), **run), AttemptEnded(**when(at), **run, how="stopped")]


def found(*lines: AnyEntry) -> list[Cancel]:
    evidence = Evidence(
        settings=Settings(url="", home="", seed=0), specs={}, lines=[*lines], records=[], rows={}
    )
    return cancels(evidence, Replay({}))


def test_a_cancel_counts_from_the_call_to_the_handlers_word() -> None:
    """Whatever it did before."""
    (one,) = found(began(1.0), cancel_requested(3.0), *noticed(3.25))
    assert (1, "interrupt", False) == (one.task, one.way, one.stood_still)
    assert 0.25 == pytest.approx(one.seconds)


def test_a_handler_that_says_nothing_has_not_heard() -> None:
    """In a process without faults."""
    (one,) = found(began(1.0), cancel_requested(3.0))
    assert inf == one.seconds
    assert ["task 1 (interrupt) never noticed"] == cancelled_in_time([one], 1.0).broken


@pytest.mark.parametrize("at", [2.0, 3.1, 9.0])
def test_a_process_that_was_hurt_need_not_hear(at: float) -> None:
    """Before it could, or while it should have; long afterwards is no excuse."""
    fault = SignalSent(**when(at, 1), child=PID, how="killed")
    assert [] == found(began(1.0), cancel_requested(3.0), fault)
    late = SignalSent(**when(20.0, 1), child=PID, how="killed")
    assert [inf] == [one.seconds for one in found(began(1.0), cancel_requested(3.0), late)]


def test_the_attempt_that_runs_is_the_one_to_hear() -> None:
    """An earlier one was lost with its process."""
    lost = SignalSent(**when(1.5, 1), child=41, how="killed")
    (one,) = found(began(1.0, pid=41), lost, began(2.0, 2), cancel_requested(3.0), *noticed(3.5, 2))
    assert 0.5 == pytest.approx(one.seconds)


def test_a_handler_that_had_ended_is_not_asked() -> None:
    """It was over before it was called off."""
    over = AttemptEnded(**when(2.0), **RUN, how="stopped")
    assert [] == found(began(1.0), over, cancel_requested(3.0))


def test_a_handler_that_its_worker_gave_up_need_not_hear() -> None:
    """It cannot renew its lease, and stops what it runs; who returns has not heard."""
    stopped = AttemptEnded(**when(4.0), **RUN, how="stopped")
    assert [] == found(began(1.0), cancel_requested(3.0), stopped)
    returned = AttemptEnded(**when(4.0), **RUN, how="returned")
    assert [inf] == [one.seconds for one in found(began(1.0), cancel_requested(3.0), returned)]


def cancel(seconds: float, *, stood_still: bool = False) -> Cancel:
    return Cancel(task=1, way="thread", seconds=seconds, stood_still=stood_still)


def test_one_in_a_hundred_may_be_late() -> None:
    """Two may not; those during a write outage do not count."""
    fine = [cancel(0.1) for _ in range(99)]
    assert not cancelled_in_time([*fine, cancel(2.0), cancel(5.0, stood_still=True)], 1.0).broken
    assert cancelled_in_time([*fine, cancel(2.0), cancel(2.0)], 1.0).broken
    assert not cancelled_in_time([*fine, cancel(2.0), cancel(2.0)], 3.0).broken
