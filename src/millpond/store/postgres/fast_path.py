"""The server fast path: one call ends attempts of plain tasks and starts the next ones.

What the verbs would do with many rows, back and forth, the function `millpond_settle_and_lease`
does where the rows are. It does the same or nothing: what is not plain is left to the verbs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.lease import Leased
from millpond.core.lease import tokens as drawn
from millpond.core.lifecycle import Status, Transition, advance
from millpond.core.plan import Wake
from millpond.core.settle import Settled
from millpond.core.task import CALLBACKS, UNREADABLE, Fence
from millpond.core.ticks import rounded
from millpond.store.postgres.encoding import alike, array, collapsed, sent
from millpond.store.protocol import (
    Drained,
    Hint,
    LeaseAnswer,
    SettleAnswer,
)
from millpond.store.sql.audit import of_each
from millpond.store.sql.codec import SEQS, new_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.core.lease import LeaseRequest
    from millpond.core.settle import Settlement
    from millpond.store.postgres.encoding import Sent

_COMPLETE, _APPLIED, _COMPLETED = Transition.COMPLETE, Settled.APPLIED, Status.COMPLETED
_QUEUED = Status.QUEUED
_AFTER = {
    event: advance(Status.RUNNING, event)
    for event in (_COMPLETE, Transition.FAIL, Transition.RETRY, Transition.RELEASE)
}
"""How attempts may end here, and the status that the task has then."""


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
            and all_complete(self.settlements)
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
            array(collapsed([one.fence.token for one in ending])),
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
            array(collapsed(tokens)),
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
        pool, begun = answer.pool, answer.tokens or []
        count = len(answer.ids or ())
        starting, none = answer.starting, [None] * count
        rows = zip(
            answer.ids or (),
            [*begun, *[self.token] * (count - len(begun))],
            answer.places or (),
            answer.bodies or (),
            of_each(answer.submitted or [], count),
            of_each(answer.dues or [], count),
            answer.attempts or [0] * count,
            answer.first_started_at or none,
            [answer.moment] * starting + [None] * (count - starting),
            answer.lanes or none,
            answer.sequences or none,
            strict=True,
        )
        tasks = []
        for task, token, place, body, submitted_at, due, attempts, first, now, lane, number in rows:
            new = new_of(body, task, pool)
            fence, call = Fence(task, attempts + 1, token), new.call
            if call.function == UNREADABLE:
                # The verbs end it, as its worker would: it cannot read the body either.
                self.unreadable.append(fence)
            tasks.append(
                Leased(
                    fence=fence,
                    pool=pool,
                    call=call,
                    key=new.key,
                    lane=lane,
                    sequence=place & SEQS if number is None else number,
                    max_attempts=new.attempts,
                    timeout=new.timeout,
                    run=new.run,
                    weight=new.weight,
                    submitted_at=submitted_at,
                    due=due,
                    first_started_at=now if first is None else first,
                    labels=new.labels,
                    options=new.options,
                )
            )
        return tasks


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


def all_complete(settlements: Sequence[Settlement]) -> bool:
    """Return whether all of these are first attempts that completed."""
    return all(one.event is _COMPLETE and one.fence.attempt == 1 for one in settlements)


def _outcomes(settlements: Sequence[Settlement]) -> tuple[Sent, Sent]:
    """Return how attempts end, and their errors; nothing if all complete a first attempt."""
    if all_complete(settlements):
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
