"""Submits by the server: one call stores the plain tasks of several submits to one pool.

What is not plain is left to the verbs, as in `fast_path.py`.
"""

from __future__ import annotations

import math
from array import array as packed
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from millpond.core.lifecycle import Status
from millpond.core.plan import Wake
from millpond.core.run import Run
from millpond.core.run import view as run_view
from millpond.core.ticks import rounded
from millpond.store.postgres.encoding import (
    BINARY,
    TEXT,
    array,
    array_of_bigints,
    collapsed,
    sent,
)
from millpond.store.postgres.unit_of_work import is_plain, plain_text
from millpond.store.protocol import Admission, BatchAnswer, InOrder, SubmitAnswer
from millpond.store.sql.codec import body_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millpond.core.task import NewTask
    from millpond.store.postgres.encoding import Sent
    from millpond.store.protocol import Batch

_QUEUED = Status.QUEUED

_MANY, _FEW, _MUCH = 1000, 50, 1 << 19
"""Submits with more tasks than the first, or more than the second and so many bytes of arguments,
are encoded in a thread. Up to there that takes a part of the time of making these tasks, and
waking a thread and its answer would come on top."""

_Message: TypeAlias = "tuple[str, str] | None"
"""The notification of a commit, and its channel."""


class FastSubmit:
    """One call: new plain tasks of several submits, all for one pool."""

    def __init__(
        self,
        pool: str,
        submits: Sequence[Sequence[Batch]],
        now: float | None,
        message: tuple[str, str] | None = None,
    ) -> None:
        self._pool = pool
        self._message = (None, None) if message is None else message
        """The notification of its commit, and its channel."""
        self._submits = submits
        tasks = [new for batches in submits for batch in batches for new in batch.tasks]
        self._tasks = tasks
        self._ids = packed("q", [new.id for new in tasks])
        self._now = None if now is None else rounded(now)

    def arguments(self, at_most: Callable[[], float | None]) -> list[Sent]:
        """Return the arguments of the function."""
        tasks = self._tasks
        # Where all are alike, the first says it for all.
        some, times = (tasks[:1], len(tasks)) if self._alike() else (tasks, 1)
        keyed = any(new.idempotency_key for new in some)
        keys, shares = [new.key for new in some] * times, [new.share for new in some] * times
        return [
            sent(self._now),
            sent(at_most()),
            sent(self._pool),
            array_of_bigints(self._ids),
            array(list(map(body_of, tasks))),
            array(collapsed([plain_text(new) for new in (tasks if keyed else some)])),
            _if_any(keys),
            array(collapsed([new.priority for new in some])),
            sent(None) if shares == keys else _if_any(shares),
            _if_any([new.delay for new in some] * times),
            _if_any([new.run_at for new in some] * times),
            _if_any([new.expires_in for new in some] * times),
            *(_idempotency(tasks, some) if keyed else [array([])] * 4),
            _if_any([new.run for new in some] * times),
            sent(self._opened()),
            *map(sent, self._message),
        ]

    def is_large(self) -> bool:
        """Return whether encoding it takes too long for the event loop."""
        if len(self._tasks) > _MANY:
            return True
        few = len(self._tasks) <= _FEW
        return not few and sum([len(new.call.payload) for new in self._tasks]) > _MUCH

    def _alike(self) -> bool:
        """Return whether it is one batch of tasks that are alike."""
        return len(self._submits) == 1 and len(self._submits[0]) == 1 and self._submits[0][0].alike

    def _opened(self) -> str | None:
        """Return the runs to open, as JSON; None if there is none."""
        runs = [
            batch.run for batches in self._submits for batch in batches if batch.run is not None
        ]
        return msgspec.json.encode(runs).decode() if runs else None

    def answers(self, answer: FastSubmitAnswer) -> list[SubmitAnswer]:
        """Return the answer to each submit."""
        wakes = () if answer.wake_at is None else (Wake(self._pool, answer.wake_at),)
        admissions = _admissions(self._submits, self._ids, answer)
        return [
            SubmitAnswer(
                batches=tuple(
                    [_batch_answer(batch, next(admissions), answer.moment) for batch in batches]
                ),
                wakes=wakes,
            )
            for batches in self._submits
        ]


class FastSubmitAnswer(msgspec.Struct, frozen=True):
    """The answer of the server, in the order of the function's columns."""

    refused: str | None
    moment: float
    last_seq: int | None
    """The state before the call, also in the next two fields; None if no task was new."""
    waiting: int | None
    queued: int | None
    is_fifo: bool | None
    wake_at: float | None
    known_at: list[int] | None
    """Which tasks have a key that is known, counted from 1; and the tasks that they stand for."""
    known_tasks: list[int] | None
    known_statuses: list[str] | None
    known_sequences: list[int] | None
    known_reasons: list[str | None] | None
    known_lanes: list[str | None] | None
    lanes: list[str | None] | None
    """Of a pool with lanes: the lane of each new task, its number there, and how many wait."""
    sequences: list[int | None] | None
    positions: list[int] | None
    simple: list[int] | None
    """What a submit of one task must know of the pool; None = it goes with lists, too."""
    heard: bool | None
    """Whether there are workers to notify; None if they need not be."""


class OneSubmitAnswer(NamedTuple):
    """The answer to a submit of one task, in the order of the function's columns."""

    refused: str | None
    moment: float
    last_seq: int
    waiting: int
    queued: int
    wake_at: float | None
    heard: bool | None


class SimplePool:
    """What a submit of one task must know of a pool whose settings bound only what runs."""

    __slots__ = ("is_fifo", "sent")

    def __init__(self, said: list[int]) -> None:
        *numbers, is_fifo = said
        self.is_fifo = bool(is_fifo)
        self.sent = [*map(sent, numbers), sent("t" if is_fifo else "f")]


class OneSubmit:
    """One call: one new task that is due, for a simple pool."""

    def __init__(
        self, pool: str, simple: SimplePool, new: NewTask, now: float | None, message: _Message
    ) -> None:
        self._pool, self._simple, self._new, self._now = pool, simple, new, now
        self._message = message

    def arguments(self, at_most: Callable[[], float | None]) -> list[Sent]:
        """Return the arguments of the function."""
        new, now, latest, message = self._new, self._now, at_most(), self._message
        key = new.idempotency_key
        return [
            _NULL if now is None else sent(rounded(now)),
            _NULL if latest is None else sent(latest),
            *self._simple.sent,
            (b"%d" % new.id, TEXT),
            (body_of(new), BINARY),
            sent(plain_text(new)),
            _NULL if new.key is None else sent(new.key),
            (b"%d" % new.priority, TEXT),
            *(
                (_NULL, _NULL, _NULL)
                if key is None
                else (sent(key), sent(new.call.function), sent(new.fingerprint))
            ),
            *((_NULL, _NULL) if message is None else map(sent, message)),
        ]

    def answer(self, said: OneSubmitAnswer) -> SubmitAnswer:
        """Return the answer to the submit."""
        admission = Admission(
            task=self._new.id,
            status=_QUEUED,
            sequence=said.last_seq + 1,
            position=said.waiting if self._simple.is_fifo else None,
            depth=said.queued + 1,
        )
        wakes = () if said.wake_at is None else (Wake(self._pool, said.wake_at),)
        return SubmitAnswer(batches=(BatchAnswer(admissions=(admission,)),), wakes=wakes)


_NULL = sent(None)


def only_task(submits: Sequence[Sequence[Batch]]) -> NewTask | None:
    """Return the only task of these submits, if it is due and of no run."""
    if len(submits) > 1 or len(submits[0]) > 1 or len(submits[0][0].tasks) > 1:
        return None
    (new,) = submits[0][0].tasks
    is_plain = not new.delay and new.run_at is None and new.expires_in is None and new.run is None
    return new if is_plain else None


def _if_any(values: list[Any]) -> Sent:
    """Return a list for the server; an empty one if no task has a value: None, 0 or ''."""
    return array(values if any(values) else [])


def _idempotency(tasks: Sequence[NewTask], some: Sequence[NewTask]) -> list[Sent]:
    """Return the keys of tasks, how long they answer, and the calls that they stand for."""
    return [
        array([new.idempotency_key for new in tasks]),
        array(collapsed([str(new.dedupe) for new in some])),
        array(collapsed([new.call.function for new in some])),
        array([new.fingerprint for new in tasks]),
    ]


def _admissions(
    submits: Sequence[Sequence[Batch]], ids: packed[int], answer: FastSubmitAnswer
) -> Iterator[Sequence[Admission]]:
    """Yield the admissions of each batch."""
    in_order = not answer.known_at and answer.lanes is None and answer.sequences is None
    if in_order and len(submits) == len(submits[0]) == 1:
        yield InOrder(
            ids,
            sequence=(answer.last_seq or 0) + 1,
            position=answer.waiting if answer.is_fifo else None,
            depth=(answer.queued or 0) + 1,
        )
        return
    singly = _singly(submits, answer)
    for batches in submits:
        for batch in batches:
            yield tuple([next(singly) for _ in batch.tasks])


def _singly(submits: Sequence[Sequence[Batch]], answer: FastSubmitAnswer) -> Iterator[Admission]:
    """Yield the admission of each task."""
    known = {at: index for index, at in enumerate(answer.known_at or ())}
    last_seq, waiting, queued = answer.last_seq or 0, answer.waiting or 0, answer.queued or 0
    number = 0
    tasks = (new for batches in submits for batch in batches for new in batch.tasks)
    for at, new in enumerate(tasks, 1):
        if at in known:
            yield _known(answer, known[at], new)
            continue
        number += 1
        lane = None if answer.lanes is None else answer.lanes[number - 1]
        position = waiting + number - 1 if answer.is_fifo else None
        if lane is not None and answer.positions is not None:
            position = answer.positions[number - 1]
        in_lane = None if answer.sequences is None else answer.sequences[number - 1]
        yield Admission(
            task=new.id,
            status=_QUEUED,
            lane=lane,
            sequence=last_seq + number if in_lane is None else in_lane,
            position=position,
            depth=queued + number,
        )


def _batch_answer(batch: Batch, admissions: Sequence[Admission], moment: float) -> BatchAnswer:
    if batch.run is None:
        return BatchAnswer(admissions=admissions)
    new = sum(not one.duplicate for one in admissions)
    run = Run(new=batch.run, opened_at=moment, live=new, total=new)
    return BatchAnswer(admissions=admissions, run=run_view(run))


def _known(answer: FastSubmitAnswer, index: int, new: NewTask) -> Admission:
    """Return the admission of a task whose key stands for another."""
    task = (answer.known_tasks or ())[index]
    return Admission(
        task=task,
        status=Status((answer.known_statuses or ())[index]),
        duplicate=task != new.id,
        lane=(answer.known_lanes or ())[index],
        sequence=(answer.known_sequences or ())[index],
        reason=(answer.known_reasons or ())[index],
    )


def why_not_submit(batches: Sequence[Batch]) -> str | None:
    """Return why the server cannot store these tasks itself; None if it may be able to."""
    pool = None
    for batch in batches:
        if not batch.tasks:
            return "empty batch"
        tasks = batch.tasks[:1] if batch.alike else batch.tasks
        if batch.run is not None and any(new.run != batch.run.id for new in tasks):
            return "opens a run for others"
        if batch.run is not None and batch.run.on_complete is not None:
            return "run with a callback"
        if batch.again:
            return "sent again"
        pool = pool or batch.tasks[0].pool
        if pool != batch.tasks[0].pool:
            return "several pools"
        for new in tasks:
            if _is_plainest(new):
                continue
            reason = _why_not_store(new)
            if reason is not None:
                return reason
    return None


def _is_plainest(new: NewTask) -> bool:
    """Return whether nothing at all hangs on a task, as on most."""
    return (
        new.idempotency_key is None
        and new.owner is None
        and new.on_complete is None
        and new.run is None
        and new.run_at is None
        and new.expires_in is None
        and not new.delay
    )


def _why_not_store(new: NewTask) -> str | None:
    if new.dedupe.of_waiting and new.idempotency_key is not None:
        return "dedupe"
    if not math.isfinite((new.run_at or 0.0) + new.delay + (new.expires_in or 0.0)):
        return "not a number"
    if is_plain(new):
        return None
    if new.owner is not None:
        return "closure"
    return "callback" if new.on_complete is not None else "key of a run"
