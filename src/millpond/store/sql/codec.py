"""Encode tasks as rows, and decode rows as tasks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from millpond.core.lifecycle import Status
from millpond.core.log_fields import about
from millpond.core.task import UNREADABLE, Call, NewTask, Task
from millpond.errors import MillpondError

log = logging.getLogger("millpond.store")

Row: TypeAlias = tuple[Any, ...]

SEQ_BITS = 40
SEQS = (1 << SEQ_BITS) - 1

_QUEUED, _RUNNING, _COMPLETED = Status.QUEUED, Status.RUNNING, Status.COMPLETED

_pack = msgspec.msgpack.Encoder().encode

body_of: Callable[[NewTask], bytes] = _pack
"""Returns the encoded body of a task: everything that only an update changes."""

_unpack_new = msgspec.msgpack.Decoder(NewTask).decode
_unpack_steps = msgspec.msgpack.Decoder(dict[str, bytes]).decode


def place_of(pool: int, seq: int) -> int:
    """Return the place of a task: by pool, then by seq."""
    return pool << SEQ_BITS | seq


def seq_at(place: int) -> int:
    """Return the seq of a place."""
    return place & SEQS


class TaskRow(Task, kw_only=True):
    """A task, and its row as stored."""

    grp: int | None = None
    """The group in which it is ready; 0 = it is delayed; None = it is not in the queue."""
    listed: bool = False
    """Whether the bound of its pool lists it."""
    parked_at: float | None = None
    claim: int | None = None
    claim_revision: int | None = None
    stored: Row | None = None
    """The changeable columns of its row as stored; None = it has no row yet."""
    stored_at: int = 0
    """The place of that row."""
    stored_live: bool = True
    stored_started: bool = False
    """Whether only its start was written since."""
    updated: bool = False
    """Whether an update changed its body, rank or expiry since it was written."""


def new_of(body: bytes, identifier: int, pool: str) -> NewTask:
    """Return the task of a body; a damaged one has no function, so that no worker runs it."""
    try:
        new = _unpack_new(body)
    except (msgspec.MsgspecError, MillpondError, ValueError, TypeError) as error:
        # Also a value past its bound, however it came here: no verb could store its end.
        return _unreadable(identifier, pool, error)
    if new.id != identifier or new.pool != pool:
        return _unreadable(identifier, pool, f"it is that of task {new.id} in pool {new.pool!r}")
    return new


def _unreadable(identifier: int, pool: str, why: object) -> NewTask:
    _log_unreadable(identifier, pool, why)
    return NewTask(id=identifier, pool=pool, call=Call(UNREADABLE), attempts=1)


def _log_unreadable(identifier: int, pool: str, why: object) -> None:
    """Log once that a task cannot be read."""
    if identifier not in _logged:
        if len(_logged) > 10_000:
            _logged.clear()
        _logged.add(identifier)
        log.error(
            "cannot read the stored body of task %d in pool %r: %s",
            identifier,
            pool,
            why,
            extra=about("task.unreadable", pool=pool, task=identifier, reason=str(why)),
        )


_logged: set[int] = set()
"""Ids of damaged tasks that were logged."""


def live_row(task: TaskRow, pool: int) -> Row:
    """Return the row of a task that waits or runs, in the order of the table's columns."""
    new = task.new
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
        *live_state(task),
    )


def live_state(task: TaskRow) -> Row:
    """Return the changeable columns of a live task, in the order of the table."""
    return (
        task.due,
        task.claim,
        task.claim_revision,
        task.cancel_requested + task.interrupt_requested,
        task.parked_at,
        task.need if task.parked else None,
        task.error,
        _progress_text(task),
        _packed_steps(task),
        1 if task.status is _RUNNING else 0,
        task.attempt,
        task.runs,
        1 if task.fresh else 0,
        1 if task.listed else 0,
        task.token,
        task.worker,
        task.started_at,
        task.first_started_at,
        task.reason,
        task.grp,
    )


def waits_untouched(task: TaskRow) -> bool:
    """Return whether a task is queued and unchanged since its submit."""
    return (
        task.grp is not None
        and not task.runs
        and not task.token
        and task.reason is None
        and not task.cancel_requested
        and not task.claimed
        and task.error is None
        and task.progress is None
        and task.steps is None
        and not task.misfits
    )


def untouched_row(task: TaskRow, pool: int) -> Row:
    """Return the arguments that insert such a task; '' stands for NULL, cheaper to pass."""
    new = task.new
    return (
        pool << SEQ_BITS | task.seq,
        new.id,
        pool,
        task.rank,
        new.key or "",
        task.lane or "",
        task.sequence,
        task.submitted_at,
        "" if task.expires_at is None else task.expires_at,
        new.owner or "",
        "" if new.run is None else new.run,
        task.due,
        1 if task.fresh else 0,
        1 if task.listed else 0,
        task.grp,
    )


def untouched_state(task: TaskRow) -> Row:
    """Return the `live_state` of such a task."""
    fresh, listed = 1 if task.fresh else 0, 1 if task.listed else 0
    nothing = None
    return (
        *(task.due, nothing, nothing, 0, nothing, nothing, nothing, nothing, nothing),
        *(0, 0, 0, fresh, listed, 0, nothing, nothing, nothing, nothing, task.grp),
    )


CHANGING = 11
"""The first column of a live row that may change."""
COLUMNS = 31


def only_started(task: TaskRow) -> bool:
    """Return whether a queued task was only started."""
    stored = task.stored
    if stored is None or stored[9] or task.stored_started or task.error != stored[6]:
        return False
    return _as_stored(task, stored, 1) and _began_now(task, stored)


def only_claimed(task: TaskRow) -> bool:
    """Return whether a queued task was only prefetched."""
    stored = task.stored
    return (
        stored is not None
        and stored[1] is None
        and task.claim is not None
        and task.error == stored[6]
        and task.first_started_at == stored[17]
        and task.started_at == stored[16]
        and task.reason == stored[18]
        and _as_stored(task, stored, 0)
    )


def only_ended(task: TaskRow) -> bool:
    """Return whether a task was only completed since it was written."""
    stored = task.stored
    if stored is None or task.error is not None:
        return False
    if task.stored_started:
        return _as_stored(task, stored, 1)
    return stored[9] == 1 and _as_stored(task, stored, 0)


def only_ran(task: TaskRow) -> bool:
    """Return whether a task was only started and completed."""
    stored = task.stored
    if stored is None or stored[9] or task.stored_started or task.error is not None:
        return False
    return _as_stored(task, stored, 1) and _began_now(task, stored)


def _began_now(task: TaskRow, stored: Row) -> bool:
    first = task.first_started_at
    return bool(first == stored[17] or (stored[17] is None and first == task.started_at))


def _as_stored(task: TaskRow, stored: Row, starts: int) -> bool:
    """Return whether a task is as it was stored, but for claims and `starts` starts.

    A task with one of the fields that few have is never as stored.
    """
    return (
        task.attempt == stored[10] + starts
        and task.runs == stored[11] + starts
        and task.due == stored[0]
        and task.cancel_requested + task.interrupt_requested == stored[3]
        and task.progress is None
        and task.steps is None
        and not task.misfits
        and stored[7] is None
        and stored[8] is None
        and not task.parked
        and stored[5] is None
    )


def _progress_text(task: TaskRow) -> str | None:
    if task.progress is None:
        return None
    fraction, text = task.progress
    if "\0" in text:
        # PostgreSQL keeps no NUL in a text.
        return f"{fraction!r}\\{json.dumps(text)}"
    return f"{fraction!r} {text}"


LeasedBodies: TypeAlias = dict[int, tuple[int, NewTask]]
"""The bodies of tasks that were leased here, each with the token of its lease."""


def live_task(row: Row, pool: str, known: LeasedBodies) -> TaskRow:
    """Return the task of a live row followed by its body."""
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
    leased = known.get(identifier)
    if leased is not None and leased[0] == token and worker is not None:
        # No update changes a task that a worker holds.
        new = leased[1]
    else:
        new = new_of(body, identifier, pool)
    optional = _NONE_STORED
    if progress is not None or steps is not None:
        optional, wrong = _optional_fields(progress, steps)
        if wrong is not None:
            # Who ran it now would do again what its lost steps had done.
            _log_unreadable(identifier, pool, wrong)
            new = msgspec.structs.replace(new, call=Call(UNREADABLE))
    if new.call.function == UNREADABLE:
        # What its row says as well is known nevertheless: it must be found where it stands.
        new = msgspec.structs.replace(new, key=row[4], owner=row[9], run=row[10])
    if grp is not None and not runs and function is None and not cancel_requested and not error:
        # Most that are read wait for their first start: less is to be said of them.
        return TaskRow(
            new=new,
            status=_QUEUED,
            seq=place & SEQS,
            rank=rank,
            lane=lane,
            sequence=sequence,
            submitted_at=submitted_at,
            due=due,
            attempt=attempt,
            fresh=bool(fresh),
            token=token,
            expires_at=expires_at,
            reason=reason,
            grp=grp,
            listed=bool(listed),
            stored=row[CHANGING:COLUMNS],
            stored_at=place,
        )
    return TaskRow(
        new=new,
        status=_RUNNING if running else _QUEUED,
        seq=place & SEQS,
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
        cancel_requested=cancel_requested > 0,
        interrupt_requested=cancel_requested > 1,
        parked=function is not None,
        reason=reason,
        error=error,
        **optional,
        grp=grp,
        listed=bool(listed),
        parked_at=parked_at,
        claim=claim,
        claim_revision=claim_revision,
        stored=row[CHANGING:COLUMNS],
        stored_at=place,
    )


_MISFITS = "\x1e"
"""The name under which the steps of a row keep the signatures that did not fit."""


def _packed_steps(task: TaskRow) -> bytes | None:
    if not task.misfits:
        return None if task.steps is None else _pack(task.steps)
    return _pack({**(task.steps or {}), _MISFITS: ",".join(task.misfits).encode()})


_NONE_STORED: dict[str, Any] = {}


def _optional_fields(
    progress: str | None, steps: bytes | None
) -> tuple[dict[str, Any], str | None]:
    """Return progress and steps of a task, and the error if they cannot be decoded."""
    try:
        optional = _unpacked_steps(steps)
        if progress is not None:
            optional["progress"] = _progress(progress)
    except (msgspec.MsgspecError, ValueError, TypeError, AttributeError) as error:
        return {}, f"its stored steps or progress are damaged ({error})"
    return optional, None


def _unpacked_steps(stored: bytes | None) -> dict[str, Any]:
    if stored is None:
        return {}
    steps: dict[str, bytes] | None = _unpack_steps(stored)
    misfits = (steps or {}).pop(_MISFITS, None)
    if misfits is None:
        return {"steps": steps}
    return {"steps": steps or None, "misfits": tuple(misfits.decode().split(","))}


def _progress(stored: str) -> tuple[float, str]:
    fraction, _, text = stored.partition(" ")
    if "\\" in fraction:
        fraction, _, text = stored.partition("\\")
        text = json.loads(text)
    return float(fraction), text


def ended_row(task: TaskRow, pool: int) -> Row:
    """Return the row of a task that has ended."""
    status = task.status
    return (
        place_of(pool, task.seq),
        pool,
        status.value,
        1 if status is _COMPLETED else 0,
        task.finished_at,
        task.reason,
        task.attempt,
        task.runs,
        task.result,
        task.error,
        task.rank,
        task.lane,
        task.sequence,
        task.submitted_at,
        task.due,
        task.token,
        task.started_at,
        task.first_started_at,
        task.expires_at,
        task.cancel_requested + task.interrupt_requested,
        1 if task.fresh else 0,
        _progress_text(task),
        _packed_steps(task),
    )


def ended_task(row: Row, pool: str) -> TaskRow:
    """Return the task of an ended row followed by its id and body."""
    (
        place,
        _,
        status,
        _,
        finished_at,
        reason,
        attempt,
        runs,
        result,
        error,
        rank,
        lane,
        sequence,
        submitted_at,
        due,
        token,
        started_at,
        first_started_at,
        expires_at,
        cancel_requested,
        fresh,
        progress,
        steps,
        identifier,
        body,
    ) = row
    optional, wrong = _optional_fields(progress, steps)
    if wrong is not None:
        _log_unreadable(identifier, pool, wrong)
    return TaskRow(
        new=new_of(body, identifier, pool),
        status=Status(status),
        seq=place & SEQS,
        rank=rank,
        lane=lane,
        sequence=sequence,
        submitted_at=submitted_at,
        due=due,
        attempt=attempt,
        runs=runs,
        fresh=bool(fresh),
        token=token,
        started_at=started_at,
        first_started_at=first_started_at,
        finished_at=finished_at,
        expires_at=expires_at,
        cancel_requested=cancel_requested > 0,
        interrupt_requested=cancel_requested > 1,
        reason=reason,
        result=result,
        error=error,
        **optional,
        stored=row,
        stored_at=place,
        stored_live=False,
    )


ENDED_ID = 23
"""The index of the id behind the columns of an ended row."""
