"""Tasks as rows: what is stored of a task, and the task that is made of it again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from millpond.core.lifecycle import Status
from millpond.core.task import Call, NewTask, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("millpond.sqlite")

Row: TypeAlias = tuple[Any, ...]

SEQ_BITS = 40
_SEQS = (1 << SEQ_BITS) - 1

_QUEUED, _RUNNING, _COMPLETED = Status.QUEUED, Status.RUNNING, Status.COMPLETED

_pack = msgspec.msgpack.Encoder().encode
_unpack_new = msgspec.msgpack.Decoder(NewTask).decode
_unpack_steps = msgspec.msgpack.Decoder(dict[str, bytes]).decode
_unpack_state = msgspec.msgpack.Decoder().decode


def place_of(pool: int, seq: int) -> int:
    """Return where a task stands: by pool, then by seq."""
    return pool << SEQ_BITS | seq


def seq_at(place: int) -> int:
    """Return the seq of a place."""
    return place & _SEQS


class TaskRow(Task, kw_only=True):
    """A task, and how it stands in the file."""

    grp: int | None = None
    """The group in which it is ready; 0 = it waits for its time; None = it is out of the queue."""
    listed: bool = False
    """Whether the bound of its pool asks which it is."""
    parked_at: float | None = None
    claim: int | None = None
    claim_revision: int | None = None
    stored: Row | None = None
    """The row it was read from, or as it was written last; None = it is in no table yet."""
    stored_at: int = 0
    """The place of that row."""
    stored_live: bool = True


def body_of(new: NewTask) -> bytes:
    """Return the body of a task: what its submitter said, and nothing that changes."""
    return _pack(new)


def new_of(body: bytes, identifier: int, pool: str) -> NewTask:
    """Return what a body says; one that cannot be read has no function, so nobody can run it."""
    try:
        return _unpack_new(body)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        log.error(  # noqa: TRY400 - the trace would lead nowhere
            "the record of task %d in pool %r cannot be read: %s", identifier, pool, error
        )
        return NewTask(id=identifier, pool=pool, call=Call(""), attempts=1)


def live_row(task: TaskRow, pool: int) -> Row:
    """Return the row of a task that waits or runs, in the order of the table's columns."""
    new = task.new
    progress = None if task.progress is None else f"{task.progress[0]!r} {task.progress[1]}"
    return (
        pool << SEQ_BITS | task.seq,
        new.id,
        pool,
        task.rank,
        new.key,
        task.lane,
        task.sequence,
        task.submitted_at,
        task.expires_at,
        new.owner,
        new.run,
        task.due,
        task.claim,
        task.claim_revision,
        task.cancel_requested,
        task.parked_at,
        new.call.function if task.parked else None,
        task.error,
        progress,
        None if task.steps is None else _pack(task.steps),
        task.status is _RUNNING,
        task.attempt,
        task.runs,
        task.fresh,
        task.listed,
        task.token,
        task.worker,
        task.started_at,
        task.first_started_at,
        task.reason,
        task.grp,
    )


CHANGING = 11
"""The first column of a live row that may change."""
STARTING = 20
"""The first column of those that a start changes: running, attempt, ..."""
COLUMNS = 31
ENDED_COLUMNS = 11


def only_started(row: Row, stored: Row) -> bool:
    """Return whether nothing but a start has changed a row."""
    return (
        row[STARTING]
        and not stored[STARTING]
        and row[CHANGING:STARTING] == stored[CHANGING:STARTING]
        and row[21] == stored[21] + 1
        and row[22] == stored[22] + 1
        and (row[28] == stored[28] or (stored[28] is None and row[28] == row[27]))
    )


def live_task(row: Row, pool: str, known: Mapping[int, NewTask]) -> TaskRow:
    """Return the task of a live row with its body behind it."""
    (
        place,
        identifier,
        _,
        rank,
        _,
        lane,
        sequence,
        submitted_at,
        expires_at,
        _,
        _,
        due,
        claim,
        claim_revision,
        cancel_requested,
        parked_at,
        function,
        error,
        progress,
        steps,
        running,
        attempt,
        runs,
        fresh,
        listed,
        token,
        worker,
        started_at,
        first_started_at,
        reason,
        grp,
        body,
    ) = row
    new = known.get(identifier)
    return TaskRow(
        new=new_of(body, identifier, pool) if new is None else new,
        status=_RUNNING if running else _QUEUED,
        seq=place & _SEQS,
        rank=rank,
        lane=lane,
        sequence=sequence,
        submitted_at=submitted_at,
        due=due,
        attempt=attempt,
        runs=runs,
        fresh=bool(fresh),
        token=token,
        worker=worker,
        claimed=claim is not None,
        started_at=started_at,
        first_started_at=first_started_at,
        expires_at=expires_at,
        cancel_requested=bool(cancel_requested),
        parked=function is not None,
        reason=reason,
        error=error,
        progress=None if progress is None else _progress(progress),
        steps=None if steps is None else _unpack_steps(steps),
        grp=grp,
        listed=bool(listed),
        parked_at=parked_at,
        claim=claim,
        claim_revision=claim_revision,
        stored=row,
        stored_at=place,
    )


def _progress(told: str) -> tuple[float, str]:
    fraction, _, text = told.partition(" ")
    return float(fraction), text


def ended_row(task: TaskRow, pool: int) -> Row:
    """Return the row of a task that has ended."""
    rest = (
        task.rank,
        task.lane,
        task.sequence,
        task.submitted_at,
        task.due,
        task.token,
        task.worker,
        task.started_at,
        task.first_started_at,
        task.expires_at,
        task.cancel_requested,
        task.fresh,
        task.progress,
        task.steps,
    )
    status = task.status
    return (
        place_of(pool, task.seq),
        pool,
        status.value,
        status is _COMPLETED,
        task.finished_at,
        task.reason,
        task.attempt,
        task.runs,
        task.result,
        task.error,
        _pack(rest),
    )


def ended_task(row: Row, pool: str) -> TaskRow:
    """Return the task of an ended row with its id and body behind it."""
    place, _, status, _, finished_at, reason, attempt, runs, result, error, state = row[:11]
    identifier, body = row[11:]
    (
        rank,
        lane,
        sequence,
        submitted_at,
        due,
        token,
        worker,
        started_at,
        first_started_at,
        expires_at,
        cancel_requested,
        fresh,
        progress,
        steps,
    ) = _unpack_state(state)
    return TaskRow(
        new=new_of(body, identifier, pool),
        status=Status(status),
        seq=place & _SEQS,
        rank=rank,
        lane=lane,
        sequence=sequence,
        submitted_at=submitted_at,
        due=due,
        attempt=attempt,
        runs=runs,
        fresh=fresh,
        token=token,
        worker=worker,
        started_at=started_at,
        first_started_at=first_started_at,
        finished_at=finished_at,
        expires_at=expires_at,
        cancel_requested=cancel_requested,
        reason=reason,
        result=result,
        error=error,
        progress=None if progress is None else (progress[0], progress[1]),
        steps=steps,
        stored=row,
        stored_at=place,
        stored_live=False,
    )


def plain(task: Task) -> Task:
    """Return a copy of a task without anything about rows: what a view tells."""
    return Task(**{name: getattr(task, name) for name in Task.__struct_fields__})
