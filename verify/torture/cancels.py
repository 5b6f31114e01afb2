"""Cancels: how long it took until a handler in another process noticed that it is cancelled."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import msgspec

from millpond.core.task import Fence
from verify.torture.ledger import (
    AttemptBegan,
    AttemptEnded,
    CancelNoticed,
    CancelRequested,
    ProcessEnded,
    SignalSent,
)
from verify.torture.recovery import Span, write_outages

if TYPE_CHECKING:
    from verify.torture.evidence import Evidence
    from verify.torture.replay import Replay

HEARD_WITHIN = 10.0
"""Seconds after which an undisturbed handler that noticed nothing has missed its cancel."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """A cancel sent while a handler ran in a process without faults."""

    task: int
    way: str
    seconds: float
    """From the call to the handler's word; infinite if there was none."""
    stood_still: bool
    """Whether no process could write meanwhile: store down, or locked by a frozen one."""


class _Run(msgspec.Struct, kw_only=True):
    """The latest attempt of a task, as its handler wrote it down."""

    began: AttemptBegan
    noticed: float | None = None
    ended: float | None = None
    given_up: bool = False
    """Whether its worker stopped it because it could not renew, so it could notice nothing."""

    @property
    def fence(self) -> Fence:
        return Fence(self.began.task, self.began.attempt, self.began.token)


def cancels(evidence: Evidence, replay: Replay) -> list[Cancel]:
    """Return the cancels that a handler had to notice, and when it did."""
    still = write_outages(evidence)
    faults = _blows(evidence)
    found = []
    for call, run in _calls(evidence):
        held = replay.held.get(run.fence)
        heard = run.noticed
        last = call.wall + HEARD_WITHIN if heard is None else heard
        hurt = any(run.began.wall <= at <= last for at in faults.get(run.began.pid, ()))
        lost = held is not None and held.lost
        if hurt or (heard is None and run.ended is not None and (lost or run.given_up)):
            continue
        if run.ended is not None and run.ended < call.wall:
            continue
        found.append(
            Cancel(
                task=call.task,
                way=call.way,
                seconds=inf if heard is None else max(heard - call.wall, 0.0),
                stood_still=any(Span(call.wall, last).shared(one) > 0 for one in still),
            )
        )
    return found


def _calls(evidence: Evidence) -> list[tuple[CancelRequested, _Run]]:
    """Return each cancel with the attempt that ran when it was sent."""
    latest: dict[int, _Run] = {}
    runs: dict[Fence, _Run] = {}
    calls = []
    for line in evidence.lines:
        match line:
            case AttemptBegan(pool="off"):
                run = latest[line.task] = _Run(began=line)
                runs[run.fence] = run
            case CancelNoticed():
                runs[Fence(line.task, line.attempt, line.token)].noticed = line.wall
            case AttemptEnded() if (fence := Fence(line.task, line.attempt, line.token)) in runs:
                runs[fence].ended, runs[fence].given_up = line.wall, line.how == "stopped"
            case CancelRequested():
                calls.append((line, latest[line.task]))
            case _:
                pass
    return calls


def _blows(evidence: Evidence) -> dict[int, list[float]]:
    """Return when each process was hurt, or ended."""
    faults: dict[int, list[float]] = {}
    for line in evidence.lines:
        if isinstance(line, SignalSent | ProcessEnded):
            faults.setdefault(line.child, []).append(line.wall)
    return faults
