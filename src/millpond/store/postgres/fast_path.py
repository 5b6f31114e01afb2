"""The server fast path: one call ends attempts of plain tasks and starts the next ones.

What the verbs would do with many rows, back and forth, the function `millpond_settle_and_lease`
does where the rows are. It does the same or nothing: what is not plain is left to the verbs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from millpond.core.lease import Leased
from millpond.core.lease import tokens as drawn
from millpond.core.lifecycle import Status, Transition, advance
from millpond.core.plan import Wake
from millpond.core.run import Run
from millpond.core.run import view as run_view
from millpond.core.settle import Settled
from millpond.core.task import CALLBACKS, UNREADABLE, Fence
from millpond.core.ticks import rounded
from millpond.store.postgres.encoding import BINARY, TEXT, array, sent
from millpond.store.postgres.unit_of_work import is_plain, plain_text
from millpond.store.protocol import (
    Admission,
    BatchAnswer,
    Drained,
    Hint,
    LeaseAnswer,
    SettleAnswer,
    SubmitAnswer,
)
from millpond.store.sql.audit import of_each
from millpond.store.sql.codec import SEQS, body_of, new_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millpond.core.lease import LeaseRequest
    from millpond.core.settle import Settlement
    from millpond.core.task import NewTask
    from millpond.store.postgres.encoding import Sent
    from millpond.store.protocol import Batch

_COMPLETE, _APPLIED, _COMPLETED = Transition.COMPLETE, Settled.APPLIED, Status.COMPLETED
_QUEUED = Status.QUEUED
_AFTER = {
    event: advance(Status.RUNNING, event)
    for event in (_COMPLETE, Transition.FAIL, Transition.RETRY, Transition.RELEASE)
}
"""How attempts may end here, and the status that the task has then."""

T = TypeVar("T")

_Message: TypeAlias = "tuple[str, str] | None"
"""The notification of a commit, and its channel."""


class SettleAndLeaseAnswer(msgspec.Struct, frozen=True):
    """The answer of the server, in the order of the function's columns."""

    refused: str | None
    moment: float
    pool: str
    live: int
    running: int
    has_room: bool
    processed: int
    next_at: float | None
    give_back: bool
    starting: int
    """How many of the following were started; the others are prefetched."""
    tokens: list[int] | None
    """Which of the first were prefetched before."""
    ids: list[int] | None
    places: list[int] | None
    submitted: list[float] | None
    """A single value stands for all; also in the next fields."""
    dues: list[float] | None
    bodies: list[bytes] | None
    finished_runs: list[int] | None
    attempts: list[int] | None
    """How many attempts each had before; None = none."""
    first_started_at: list[float | None] | None
    wake_at: float | None
    """When tasks that went back to the queue can start."""
    lanes: list[str | None] | None
    """Of a pool with lanes: the lane of each task, and its number there."""
    sequences: list[int | None] | None
    dry_lanes: list[str] | None
    """The lanes that the ends left empty, and how many tasks each processed; None = no lanes."""
    dry_processed: list[int] | None
    was_full: bool
    """Whether a worker may sleep because the pool had no room."""
    simple: list[int] | None
    """What a call of a simple pool must know: its number, the digest of its settings, its limit."""
    ends_awaited: bool
    """Whether a process may wait for the end of a task."""


class SettleAndLease:
    """One call: the settlements, and the lease request."""

    def __init__(
        self,
        settlements: Sequence[Settlement],
        then: LeaseRequest | None,
        now: float | None,
        entropy: int,
    ) -> None:
        self.settlements = settlements
        self.then = then
        self.now = None if now is None else rounded(now)
        self.token = next(drawn(entropy))
        self.unreadable: list[Fence] = []
        """Started tasks whose body is damaged: the verbs must end them."""

    def arguments(self, at_most: Callable[[], float | None]) -> list[Sent]:
        """Return the arguments of `millpond_settle_and_lease`."""
        then = self.then
        return [
            *self._ends(at_most),
            *_outcomes(self.settlements),
            *self._successors(),
            sent(None if then is None else then.pool),
            sent(None if then is None else then.worker),
            sent(self.token),
            sent(0 if then is None else then.want),
            sent(0 if then is None else then.ahead),
        ]

    @property
    def is_simple(self) -> bool:
        """Whether it only ends first attempts that completed, and asks for tasks to start."""
        return (
            self.then is not None
            and not self.then.ahead
            and _all_complete(self.settlements)
            and not any(one.successor for one in self.settlements)
        )

    def simple_arguments(
        self, simple: Sequence[Sent], at_most: Callable[[], float | None]
    ) -> list[Sent]:
        """Return the arguments of `millpond_step_simple`, for a pool of which that is known."""
        then = self.then
        assert then is not None  # noqa: S101 - it is simple
        return [
            *self._ends(at_most),
            *simple,
            sent(then.worker),
            sent(self.token),
            sent(then.want),
        ]

    def _ends(self, at_most: Callable[[], float | None]) -> list[Sent]:
        ending = self.settlements
        results = [one.result for one in ending]
        same = alike(results)
        return [
            sent(self.now),
            sent(at_most()),
            array([one.fence.task for one in ending]),
            array(_collapsed([one.fence.token for one in ending])),
            sent(results[0] if ending and same else None),
            sent(None) if same else array(results),
        ]

    def _successors(self) -> tuple[Sent, Sent]:
        successors = [one.successor for one in self.settlements]
        if not any(successors):
            return sent(None), sent(None)
        tokens = [None if one is None else one.token for one in successors]
        return (
            array([None if one is None else one.task for one in successors]),
            array(_collapsed(tokens)),
        )

    def settled(self, answer: SettleAndLeaseAnswer) -> SettleAnswer:
        """Return the answer to a settle."""
        ending = self.settlements
        count = len(ending)
        after = tuple([_AFTER[one.event] for one in ending])
        return SettleAnswer(
            settled=(_APPLIED,) * count,
            after=after,
            started=tuple([None if one.successor is None else _APPLIED for one in ending]),
            follow_ups=((),) * count,
            lease=None if self.then is None else self.leased(answer),
            finished_runs=tuple(answer.finished_runs or ()),
            wakes=self._wakes(answer, after.count(_QUEUED)),
            ended=tuple(
                [
                    one.fence.task
                    for one, status in zip(ending, after, strict=True)
                    if status is not _QUEUED
                ]
            ),
            emptied=self._emptied(answer),
        )

    def hint(self, answer: SettleAndLeaseAnswer, settled: SettleAnswer) -> Hint:
        """Return what other processes need to hear of the answer to a settle.

        Not the ends, if no process waits for any. Not that the pool has tasks to start, if it had
        room before: then no worker sleeps because it was full, and one that sleeps because it was
        empty gets a hint from the process that submits. Tasks that go back to the queue are new.
        """
        sleepers = answer.was_full or _QUEUED in settled.after
        return Hint(
            wakes=settled.wakes if sleepers else (),
            ended=settled.ended if answer.ends_awaited else (),
            finished_runs=settled.finished_runs,
        )

    def _emptied(self, answer: SettleAndLeaseAnswer) -> tuple[Drained, ...]:
        """Return the lanes that have run dry, or the pool if it has no lanes."""
        name = answer.pool
        if answer.dry_lanes is not None:
            dry = zip(answer.dry_lanes, answer.dry_processed or (), strict=True)
            return tuple([Drained(pool=name, lane=lane, processed=count) for lane, count in dry])
        if not self.settlements or answer.live or name.endswith(CALLBACKS):
            return ()
        return (Drained(pool=name, lane=None, processed=answer.processed),)

    def _wakes(self, answer: SettleAndLeaseAnswer, back: int) -> tuple[Wake, ...]:
        """Return when the pool has something to start; `back` tasks went back to its queue."""
        # When the first of them ended what is started now waited, in the queue or held ahead.
        relayed = sum(one.successor is not None for one in self.settlements)
        waited = answer.live - back > answer.running - answer.starting - relayed
        at = answer.moment if waited else answer.wake_at
        return (
            ()
            if at is None or not answer.has_room or not self.settlements
            else (Wake(answer.pool, at),)
        )

    def leased(self, answer: SettleAndLeaseAnswer) -> LeaseAnswer:
        """Return the answer to a lease."""
        tasks = self._tasks(answer) if answer.ids else []
        return LeaseAnswer(
            leased=tuple(tasks[: answer.starting]),
            claimed=tuple(tasks[answer.starting :]),
            give_back=answer.give_back,
            next_at=answer.next_at,
            drained=answer.live == answer.running,
        )

    def _tasks(self, answer: SettleAndLeaseAnswer) -> list[Leased]:
        pool, token, begun = answer.pool, self.token, answer.tokens or ()
        tasks = []
        count = len(answer.ids or ())
        rows = enumerate(
            zip(
                answer.ids or (),
                answer.places or (),
                answer.bodies or (),
                of_each(answer.submitted or [], count),
                of_each(answer.dues or [], count),
                answer.attempts or [0] * count,
                answer.first_started_at or [None] * count,
                answer.lanes or [None] * count,
                answer.sequences or [None] * count,
                strict=True,
            )
        )
        for index, (identifier, place, body, submitted_at, due, attempts, first, *lane) in rows:
            new = new_of(body, identifier, pool)
            claimed = token if index >= len(begun) else begun[index]
            fence = Fence(identifier, attempts + 1, claimed)
            call = new.call
            if call.function == UNREADABLE:
                # Its end is told to the verbs: whoever ran it would say the same.
                self.unreadable.append(fence)
            tasks.append(
                Leased(
                    fence=fence,
                    pool=pool,
                    call=call,
                    key=new.key,
                    lane=lane[0],
                    sequence=place & SEQS if lane[1] is None else lane[1],
                    max_attempts=new.attempts,
                    timeout=new.timeout,
                    run=new.run,
                    weight=new.weight,
                    submitted_at=submitted_at,
                    due=due,
                    first_started_at=answer.moment
                    if first is None and index < answer.starting
                    else first,
                    labels=new.labels,
                    options=new.options,
                )
            )
        return tasks


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
        self._now = None if now is None else rounded(now)

    def arguments(self, at_most: Callable[[], float | None]) -> list[Sent]:
        """Return the arguments of the function."""
        tasks = [new for batches in self._submits for batch in batches for new in batch.tasks]
        keys, shares = [new.key for new in tasks], [new.share for new in tasks]
        return [
            sent(self._now),
            sent(at_most()),
            sent(self._pool),
            array([new.id for new in tasks]),
            array([body_of(new) for new in tasks]),
            array(_collapsed([plain_text(new) for new in tasks])),
            _if_any(keys),
            array(_collapsed([new.priority for new in tasks])),
            sent(None) if shares == keys else _if_any(shares),
            _if_any([new.delay for new in tasks]),
            _if_any([new.run_at for new in tasks]),
            _if_any([new.expires_in for new in tasks]),
            *_idempotency(tasks),
            _if_any([new.run for new in tasks]),
            sent(self._opened()),
            *map(sent, self._message),
        ]

    def _opened(self) -> str | None:
        """Return the runs to open, as JSON; None if there is none."""
        runs = [
            batch.run for batches in self._submits for batch in batches if batch.run is not None
        ]
        return msgspec.json.encode(runs).decode() if runs else None

    def answers(self, answer: FastSubmitAnswer) -> list[SubmitAnswer]:
        """Return the answer to each submit."""
        wakes = () if answer.wake_at is None else (Wake(self._pool, answer.wake_at),)
        admissions = _admissions(self._submits, answer)
        return [
            SubmitAnswer(
                batches=tuple(
                    [
                        _batch_answer(
                            batch, tuple([next(admissions) for _ in batch.tasks]), answer.moment
                        )
                        for batch in batches
                    ]
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


def _idempotency(tasks: Sequence[NewTask]) -> list[Sent]:
    """Return the keys of tasks, how long they answer, and the calls that they stand for."""
    keys = [new.idempotency_key for new in tasks]
    if not any(keys):
        return [array([])] * 4
    return [
        array(keys),
        array(_collapsed([str(new.dedupe) for new in tasks])),
        array(_collapsed([new.call.function for new in tasks])),
        array([new.fingerprint for new in tasks]),
    ]


def _admissions(
    submits: Sequence[Sequence[Batch]], answer: FastSubmitAnswer
) -> Iterator[Admission]:
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


def _batch_answer(batch: Batch, admissions: tuple[Admission, ...], moment: float) -> BatchAnswer:
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
        if batch.run is not None and any(new.run != batch.run.id for new in batch.tasks):
            return "opens a run for others"
        if batch.run is not None and batch.run.on_complete is not None:
            return "run with a callback"
        if batch.again:
            return "sent again"
        pool = pool or batch.tasks[0].pool
        if pool != batch.tasks[0].pool:
            return "several pools"
        for new in batch.tasks:
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


def _collapsed(values: list[T]) -> list[T]:
    return values[:1] if alike(values) else values


def alike(values: Sequence[object]) -> bool:
    """Return whether all values are equal."""
    return len(values) < 2 or values.count(values[0]) == len(values)


def why_not_settle(settlements: Sequence[Settlement]) -> str | None:
    """Return why the server cannot do these settlements itself; None if it may be able to."""
    for one in settlements:
        if one.event is not _COMPLETE and (reason := _why_not_end(one)) is not None:
            return reason
        if one.follow_ups:
            return "follow-ups"
        if not one.spend and one.event is _COMPLETE:
            return "not spent"
        if one.weight is not None:
            return "weight"
        if one.successor is not None and one.successor.attempt != 1:
            return "retried"
    return None


def _why_not_end(one: Settlement) -> str | None:
    """Return why the server cannot end an attempt that did not complete."""
    if one.event not in _AFTER:
        return str(one.event)
    return "parked" if one.parked else "hold" if one.hold is not None else None


def _all_complete(settlements: Sequence[Settlement]) -> bool:
    """Return whether all of these are first attempts that completed."""
    return all(one.event is _COMPLETE and one.fence.attempt == 1 for one in settlements)


def _outcomes(settlements: Sequence[Settlement]) -> tuple[Sent, Sent]:
    """Return how attempts end, and their errors; nothing if all complete a first attempt."""
    if _all_complete(settlements):
        return sent(None), sent(None)
    ends = [
        {
            "event": one.event,
            "attempt": one.fence.attempt,
            "spend": one.spend,
            "begun": one.begun,
            "delay": one.delay,
            "reason": one.reason,
        }
        for one in settlements
    ]
    errors = [one.error for one in settlements]
    return sent(msgspec.json.encode(ends).decode()), array(errors)


def answer_of(row: tuple[Any, ...]) -> SettleAndLeaseAnswer:
    """Return the answer in a row of the function."""
    return SettleAndLeaseAnswer(*row)
