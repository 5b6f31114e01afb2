"""The server fast path: one call completes plain tasks and starts the next ones.

What the verbs would do with many rows, back and forth, the function `millpond_settle_and_lease`
does where the rows are. It does the same or nothing: what is not plain is left to the verbs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millpond.core.lease import Leased
from millpond.core.lease import tokens as drawn
from millpond.core.lifecycle import Status, Transition
from millpond.core.plan import Wake
from millpond.core.run import Run
from millpond.core.run import view as run_view
from millpond.core.settle import Settled
from millpond.core.task import CALLBACKS, UNREADABLE, Fence
from millpond.core.ticks import rounded
from millpond.store.postgres.encoding import array, sent
from millpond.store.postgres.unit_of_work import is_plain, plain_text
from millpond.store.protocol import (
    Admission,
    BatchAnswer,
    Drained,
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

T = TypeVar("T")


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
        """Return the arguments of the function."""
        ending, then = self.settlements, self.then
        results = [one.result for one in ending]
        tokens = [one.fence.token for one in ending]
        same = alike(results)
        return [
            sent(self.now),
            sent(at_most()),
            array([one.fence.task for one in ending]),
            array(_collapsed(tokens)),
            sent(results[0] if ending and same else None),
            sent(None) if same else array(results),
            *self._successors(),
            sent(None if then is None else then.pool),
            sent(None if then is None else then.worker),
            sent(self.token),
            sent(0 if then is None else then.want),
            sent(0 if then is None else then.ahead),
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

    def settled(self, told: SettleAndLeaseAnswer) -> SettleAnswer:
        """Return the answer to a settle."""
        ending = self.settlements
        count = len(ending)
        wakes: tuple[Wake, ...] = ()
        emptied: tuple[Drained, ...] = ()
        if ending:
            # When the first of them ended what is started now waited, in the queue or held ahead.
            relayed = sum(one.successor is not None for one in ending)
            if told.live > told.running - told.starting - relayed and told.has_room:
                wakes = (Wake(told.pool, told.moment),)
            if not told.live and not told.pool.endswith(CALLBACKS):
                emptied = (Drained(pool=told.pool, lane=None, processed=told.processed),)
        return SettleAnswer(
            settled=(_APPLIED,) * count,
            after=(_COMPLETED,) * count,
            started=tuple([None if one.successor is None else _APPLIED for one in ending]),
            follow_ups=((),) * count,
            lease=None if self.then is None else self.leased(told),
            finished_runs=tuple(told.finished_runs or ()),
            wakes=wakes,
            ended=tuple([one.fence.task for one in ending]),
            emptied=emptied,
        )

    def leased(self, told: SettleAndLeaseAnswer) -> LeaseAnswer:
        """Return the answer to a lease."""
        tasks = self._tasks(told) if told.ids else []
        return LeaseAnswer(
            leased=tuple(tasks[: told.starting]),
            claimed=tuple(tasks[told.starting :]),
            give_back=told.give_back,
            next_at=told.next_at,
            drained=told.live == told.running,
        )

    def _tasks(self, told: SettleAndLeaseAnswer) -> list[Leased]:
        pool, token, begun = told.pool, self.token, told.tokens or ()
        tasks = []
        count = len(told.ids or ())
        for index, (identifier, place, body, submitted_at, due) in enumerate(
            zip(
                told.ids or (),
                told.places or (),
                told.bodies or (),
                of_each(told.submitted or [], count),
                of_each(told.dues or [], count),
                strict=True,
            )
        ):
            new = new_of(body, identifier, pool)
            fence = Fence(identifier, 1, token if index >= len(begun) else begun[index])
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
                    lane=None,
                    sequence=place & SEQS,
                    max_attempts=new.attempts,
                    timeout=new.timeout,
                    run=new.run,
                    weight=new.weight,
                    submitted_at=submitted_at,
                    due=due,
                    first_started_at=told.moment if index < told.starting else None,
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


def _if_any(values: list[Any]) -> Sent:
    """Return a list for the server; an empty one if no task has a value."""
    return array(values if any(value is not None and value != 0 for value in values) else [])


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


def _admissions(submits: Sequence[Sequence[Batch]], told: FastSubmitAnswer) -> Iterator[Admission]:
    """Yield the admission of each task."""
    known = {at: index for index, at in enumerate(told.known_at or ())}
    last_seq, waiting, queued = told.last_seq or 0, told.waiting or 0, told.queued or 0
    number = 0
    tasks = (new for batches in submits for batch in batches for new in batch.tasks)
    for at, new in enumerate(tasks, 1):
        if at in known:
            yield _known(told, known[at], new)
            continue
        number += 1
        yield Admission(
            task=new.id,
            status=_QUEUED,
            sequence=last_seq + number,
            position=waiting + number - 1 if told.is_fifo else None,
            depth=queued + number,
        )


def _batch_answer(batch: Batch, admissions: tuple[Admission, ...], moment: float) -> BatchAnswer:
    if batch.run is None:
        return BatchAnswer(admissions=admissions)
    new = sum(not one.duplicate for one in admissions)
    run = Run(new=batch.run, opened_at=moment, live=new, total=new)
    return BatchAnswer(admissions=admissions, run=run_view(run))


def _known(told: FastSubmitAnswer, index: int, new: NewTask) -> Admission:
    """Return the admission of a task whose key stands for another."""
    task = (told.known_tasks or ())[index]
    return Admission(
        task=task,
        status=Status((told.known_statuses or ())[index]),
        duplicate=task != new.id,
        sequence=(told.known_sequences or ())[index],
        reason=(told.known_reasons or ())[index],
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
            reason = _why_not_store(new)
            if reason is not None:
                return reason
    return None


def _why_not_store(new: NewTask) -> str | None:
    if new.delay or new.run_at is not None:
        # The verbs note where the queue of delayed tasks begins, so that dead rows are passed over.
        return "delay"
    if not math.isfinite(new.expires_in or 0.0):
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
    return not values or values.count(values[0]) == len(values)


def why_not_settle(settlements: Sequence[Settlement]) -> str | None:
    """Return why the server cannot do these settlements itself; None if it may be able to."""
    for one in settlements:
        if one.event is not _COMPLETE:
            return str(one.event)
        if one.fence.attempt != 1:
            return "retried"
        if one.follow_ups:
            return "follow-ups"
        if not one.spend:
            return "not spent"
        if one.weight is not None:
            return "weight"
    return None


def answer_of(row: tuple[Any, ...]) -> SettleAndLeaseAnswer:
    """Return the answer in a row of the function."""
    return SettleAndLeaseAnswer(*row)
