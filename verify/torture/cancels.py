"""Cancels: how long it took until a handler in another process noticed that it is cancelled."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import msgspec

from millpond.core.task import Fence
from verify.torture.ledger import Began, CalledOff, Ended, Gone, Noticed, Struck
from verify.torture.recovery import Span, nobody_could_write

if TYPE_CHECKING:
    from verify.torture.evidence import Evidence
    from verify.torture.replay import Replay

HEARD_WITHIN = 10.0
"""Seconds after which whoever was told nothing, and hurt by nobody, was told nothing at all."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """A cancel that was sent while a handler ran in a process that nobody hurt."""

    task: int
    way: str
    seconds: float
    """From the call to the handler's word; infinite if there was none."""
    stood_still: bool
    """Whether nobody could write in the meantime: the store was away, or its lock a frozen's."""


class _Run(msgspec.Struct, kw_only=True):
    """The latest attempt of a task, as its handler wrote it down."""

    began: Began
    noticed: float | None = None
    ended: float | None = None
    given_up: bool = False
    """Whether its worker stopped it, as it does where it cannot renew: it is to notice no more."""

    @property
    def fence(self) -> Fence:
        return Fence(self.began.task, self.began.attempt, self.began.token)


def cancels(evidence: Evidence, replay: Replay) -> list[Cancel]:
    """Return the cancels that a handler had to notice, and when it did."""
    still = nobody_could_write(evidence)
    blows = _blows(evidence)
    found = []
    for call, run in _calls(evidence):
        held = replay.held.get(run.fence)
        heard = run.noticed
        last = call.wall + HEARD_WITHIN if heard is None else heard
        hurt = any(run.began.wall <= at <= last for at in blows.get(run.began.pid, ()))
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


def _calls(evidence: Evidence) -> list[tuple[CalledOff, _Run]]:
    """Return each cancel with the attempt that ran when it was sent."""
    latest: dict[int, _Run] = {}
    runs: dict[Fence, _Run] = {}
    calls = []
    for line in evidence.lines:
        match line:
            case Began(pool="off"):
                run = latest[line.task] = _Run(began=line)
                runs[run.fence] = run
            case Noticed():
                runs[Fence(line.task, line.attempt, line.token)].noticed = line.wall
            case Ended() if (fence := Fence(line.task, line.attempt, line.token)) in runs:
                runs[fence].ended, runs[fence].given_up = line.wall, line.how == "stopped"
            case CalledOff():
                calls.append((line, latest[line.task]))
            case _:
                pass
    return calls


def _blows(evidence: Evidence) -> dict[int, list[float]]:
    """Return when each process was hurt, or ended."""
    blows: dict[int, list[float]] = {}
    for line in evidence.lines:
        if isinstance(line, Struck | Gone):
            blows.setdefault(line.child, []).append(line.wall)
    return blows
