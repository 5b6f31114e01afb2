"""Tasks and records for tests, with everything that does not matter left to defaults."""

from typing import Any

from millpond.core.lease import Leased
from millpond.core.lifecycle import Status
from millpond.core.order.rank import lane_of, rank
from millpond.core.order.ring import Ring, Seat, Share
from millpond.core.rows import DictRows
from millpond.core.spec import PoolSpec
from millpond.core.task import Call, Fence, NewTask, Task


def new_task(identifier: int, **fields: Any) -> NewTask:
    """A task of pool `p` that calls `work`."""
    return NewTask(id=identifier, **{"pool": "p", "call": Call("work"), **fields})


def queued(spec: PoolSpec, seq: int, *, now: float = 0.0, due: float = 0.0, **fields: Any) -> Task:
    """A queued task as a store would keep it; its id is its seq."""
    new = new_task(seq, **fields)
    lane = None
    if spec.lanes is not None:
        lane = str(seq % spec.lanes) if new.key is None else lane_of(new.key, spec.lanes)
    elif spec.ordered:
        lane = new.key
    return Task(
        new=new,
        status=Status.QUEUED,
        seq=seq,
        rank=rank(spec.order, new.priority, now, seq),
        lane=lane,
        sequence=seq,
        submitted_at=now,
        due=max(due, now),
    )


def leased(attempt: int = 1, *, max_attempts: int = 3) -> Leased:
    """A lease of task 1."""
    return Leased(
        fence=Fence(1, attempt, 77),
        pool="p",
        call=Call("work"),
        key=None,
        lane=None,
        sequence=1,
        max_attempts=max_attempts,
        timeout=None,
        run=None,
        weight=1,
        submitted_at=0.0,
        labels={},
        options=b"",
    )


def seats(ring: Ring) -> dict[Share, Seat]:
    """Return the seats of a ring in memory."""
    assert isinstance(ring._seats, DictRows)
    return dict(ring._seats.items())
