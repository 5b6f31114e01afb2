"""Settling: how an attempt ends, and the next status of its task."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.admit import Reason
from millpond.core.backoff import Retry, delay
from millpond.core.handler_signals import Scope
from millpond.core.lifecycle import Transition
from millpond.core.task import CALLBACKS, Call, Fence, NewTask
from millpond.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from millpond.core.lease import Leased
    from millpond.core.run import Run
    from millpond.core.task import Task


class Succeeded(msgspec.Struct, frozen=True):
    """The handler returned."""

    result: bytes | None = None
    follow_ups: tuple[NewTask, ...] = ()


class Raised(msgspec.Struct, frozen=True):
    """The handler raised or ran out of time."""

    error: bytes = b""
    final: bool = False
    """Whether it is never retried: GiveUp, an excluded type, a result that cannot be stored."""
    retry_in: float | None = None
    """RetryLater or Throttled named the delay itself."""
    spend: bool = True
    reason: str | None = None
    """Why it is final, where the handler did not decide that."""
    hold: Scope | None = None
    """Throttled: what every worker holds back for `retry_in` seconds."""


class Interrupted(msgspec.Struct, frozen=True):
    """The worker stopped: the attempt is released, not charged.

    A task with one attempt whose handler had begun does not start again: it ends as failed.
    """

    begun: bool = True
    """Whether the handler may have begun."""
    reason: str = Reason.STOPPED
    """Why such a task failed: its worker stopped, or could not keep its lease."""


class Stopped(msgspec.Struct, frozen=True):
    """The handler ended because it was cancelled, or ended its task as cancelled itself."""

    error: bytes | None = None
    """What the handler said, where it decided so itself."""


class Unfit(msgspec.Struct, frozen=True):
    """This worker cannot run it: it does not know the function, or cannot read the task."""

    corrupt: bool
    """The stored body is damaged: no worker can read it."""
    misfit: bool = False
    """The arguments do not fit this worker's version of the function."""
    error: bytes | None = None


Outcome: TypeAlias = Succeeded | Raised | Interrupted | Stopped | Unfit


_RETRY, _COMPLETE = Transition.RETRY, Transition.COMPLETE

ENDINGS = frozenset(
    {
        Transition.COMPLETE,
        Transition.FAIL,
        Transition.CANCEL,
        Transition.RETRY,
        Transition.RELEASE,
        Transition.CORRUPT,
    }
)


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one attempt ends, as the worker reports it to the store."""

    fence: Fence
    event: Transition
    spend: bool = True
    delay: float = 0.0
    result: bytes | None = None
    error: bytes | None = None
    reason: str | None = None
    parked: bool = False
    misfit: bool = False
    """Parked because its arguments do not fit its worker's version of the function."""
    follow_ups: tuple[NewTask, ...] = ()
    successor: Fence | None = None
    """The prefetched task that started in the slot of this attempt."""
    weight: int | None = None
    """The actual weight of the attempt, for rates by weight; None = as charged at its start."""
    hold: Scope | None = None
    """Hold the task's key, or its pool, back for `hold_for` seconds; not with a completion."""
    hold_for: float = 0.0
    begun: bool = True
    """Whether the handler may have begun; only a release asks."""

    def __post_init__(self) -> None:
        # A member of an enum is slow to look up.
        if self.event is not _COMPLETE and self.event not in ENDINGS:
            raise ConfigError("event", str(self.event), "does not end an attempt")
        if self.weight is not None:
            check.integer("weight", self.weight)
        if self.hold is not None:
            check.one_of("hold", self.hold, ("key", "pool"))
            check.seconds("hold_for", self.hold_for)
            if self.event is Transition.COMPLETE:
                raise ConfigError("hold", self.hold, "cannot be had with a completion")
        if self.delay.__class__ is not float or self.delay != 0.0:
            check.seconds("delay", self.delay)


class Settled(StrEnum):
    """The store's answer to a settlement."""

    APPLIED = "applied"
    STALE = "stale"
    """The fence is not current any more: nothing was changed."""


def settle(
    lease: Leased,
    outcome: Outcome,
    policy: Retry,
    *,
    jitter: float,
    now: float | None = None,
    started_at: float | None = None,
    successor: Fence | None = None,
) -> Settlement:
    """Decide how an attempt ends; `jitter` is in [0, 1).

    `now`, and when this attempt began, are for `give_up_after`. `successor` was started in
    its slot.
    """
    if isinstance(outcome, Succeeded):
        return Settlement(
            fence=lease.fence,
            event=_COMPLETE,
            result=outcome.result,
            follow_ups=outcome.follow_ups,
            successor=successor,
        )
    decided = _not_a_success(lease, outcome, policy, jitter, now, started_at)
    return decided if successor is None else msgspec.structs.replace(decided, successor=successor)


def _not_a_success(
    lease: Leased,
    outcome: Raised | Interrupted | Stopped | Unfit,
    policy: Retry,
    jitter: float,
    now: float | None,
    started_at: float | None,
) -> Settlement:
    fence = lease.fence
    match outcome:
        case Raised():
            return _after_error(lease, outcome, policy, jitter, now, started_at)
        case Interrupted(begun=begun, reason=reason):
            # For a task with one attempt the store decides: event_in_force.
            return Settlement(
                fence=fence, event=Transition.RELEASE, spend=False, begun=begun, reason=reason
            )
        case Stopped(error=error):
            return Settlement(fence=fence, event=Transition.CANCEL, error=error)
        case Unfit(corrupt=True, error=error):
            return Settlement(fence=fence, event=Transition.CORRUPT, spend=False, error=error)
        case Unfit(misfit=misfit, error=error):
            return Settlement(
                fence=fence,
                event=Transition.RELEASE,
                spend=False,
                parked=True,
                misfit=misfit,
                error=error,
                begun=False,
            )


def _after_error(
    lease: Leased,
    raised: Raised,
    policy: Retry,
    jitter: float,
    now: float | None,
    started_at: float | None,
) -> Settlement:
    attempt = lease.fence.attempt
    exhausted = raised.spend and attempt >= lease.max_attempts
    if raised.final or exhausted:
        return Settlement(
            fence=lease.fence, event=Transition.FAIL, error=raised.error, reason=raised.reason
        )
    wait = raised.retry_in
    hold, hold_for = raised.hold, wait if raised.hold and wait is not None else 0.0
    if wait is None:
        wait = delay(policy, attempt, jitter=jitter)
    patience = policy.give_up_after
    first = lease.first_started_at if lease.first_started_at is not None else started_at
    if (
        patience is not None
        and first is not None
        and now is not None
        and now + wait > first + patience
    ):
        # Not tried again later than promised, even if attempts are left.
        return Settlement(
            fence=lease.fence,
            event=Transition.FAIL,
            error=raised.error,
            hold=hold,
            hold_for=hold_for,
        )
    return Settlement(
        fence=lease.fence,
        event=Transition.RETRY,
        spend=raised.spend,
        delay=wait,
        error=raised.error,
        hold=hold,
        hold_for=hold_for,
    )


def event_in_force(task: Task, settlement: Settlement) -> Transition:
    """Return the event a settlement means for the task as the store knows it.

    A cancelled task is not tried again, whatever its handler raised, but one that still returned
    is completed. If no attempts are left, a retry becomes a failure, also where the handler asked
    for the retry. An attempt that began and was given back is the last of a task that has one.
    A closure that its own process cannot run has lost its code.
    """
    event = settlement.event
    if settlement.parked and task.new.owner is not None:
        # The only process that could have had the code of a closure does not have it.
        return Transition.STALE
    if task.cancel_requested and event in (Transition.RETRY, Transition.RELEASE, Transition.FAIL):
        return Transition.CANCEL
    if event is _RETRY and settlement.spend and task.attempt >= task.new.attempts:
        return Transition.FAIL
    return Transition.FAIL if ends_the_only_attempt(task, settlement) else event


def ends_the_only_attempt(task: Task, settlement: Settlement) -> bool:
    """Return whether a task goes back whose only attempt began: at most once means it."""
    begun = settlement.begun and not settlement.parked
    return settlement.event is Transition.RELEASE and begun and task.new.attempts == 1


def is_charged(settlement: Settlement, event: Transition) -> bool:
    """Return whether the attempt counts, given the event its settlement meant for the task."""
    return settlement.spend or event is Transition.FAIL


def event_of_leaving(task: Task) -> Transition:
    """Return the transition of a running task whose worker deregistered without settling it.

    The worker settles every task that never began, so the handler of this one may have begun.
    """
    if task.cancel_requested:
        return Transition.CANCEL
    return Transition.FAIL if task.new.attempts == 1 else Transition.RELEASE


def event_of_return(task: Task) -> Transition:
    """Return the transition of a prefetched task that goes back unstarted."""
    return Transition.CANCEL if task.cancel_requested else Transition.RELEASE


def event_of_loss(task: Task) -> Transition:
    """Return the transition of a lost lease: it is charged, so the last attempt fails the task."""
    if task.new.owner is not None:
        return Transition.STALE
    if task.cancel_requested:
        return Transition.CANCEL
    return Transition.LOSE if task.attempt < task.new.attempts else Transition.EXHAUST


CALLBACK_ATTEMPTS = 25


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="task"):
    """How a task ended: the argument of its on_complete callback."""

    task: int
    pool: str
    function: str
    key: str | None
    labels: dict[str, str]
    status: str
    reason: str | None
    attempt: int
    result: bytes | None
    error: bytes | None
    options: bytes = b""
    """The task's own runtime options."""


class RunEnding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="run"):
    """How a run ended: the argument of its on_complete callback."""

    run: int
    pool: str
    name: str | None
    total: int
    ended: dict[str, int]
    stopped: str | None
    opened_at: float
    finished_at: float
    tasks: tuple[Ending, ...] = ()
    """Its first tasks, in the order in which they were submitted."""


def _ending(task: Task, options: bytes = b"") -> Ending:
    return Ending(
        task=task.new.id,
        pool=task.new.pool,
        function=task.new.call.function,
        key=task.new.key,
        labels=task.new.labels,
        status=task.status,
        reason=task.reason,
        attempt=task.attempt,
        result=task.result,
        error=task.error,
        options=options,
    )


def callback(task: Task, identifier: int) -> NewTask:
    """Return the on_complete callback of an ended task, as a new task."""
    return NewTask(
        id=identifier,
        pool=task.new.pool + CALLBACKS,
        call=task.new.on_complete or Call(""),
        attempts=CALLBACK_ATTEMPTS,
        run=task.new.run,
        submitted_by=f"task:{task.new.id}",
        options=msgspec.msgpack.encode(_ending(task, task.new.options)),
    )


def run_callback(run: Run, call: Call, tasks: Iterable[Task], identifier: int) -> NewTask:
    """Return the on_complete callback of an ended run, as a new task.

    It has the ends of the first `tasks`: as many as their results and errors leave room for.
    """
    ending = RunEnding(
        run=run.new.id,
        pool=run.new.pool,
        name=run.new.name,
        total=run.total,
        ended=dict(sorted(run.ended.items())),
        stopped=run.stopped,
        opened_at=run.opened_at,
        finished_at=run.finished_at or 0.0,
        tasks=tuple(_fitting(tasks)),
    )
    return NewTask(
        id=identifier,
        pool=run.new.pool + CALLBACKS,
        call=call,
        attempts=CALLBACK_ATTEMPTS,
        submitted_by=f"run:{run.new.id}",
        options=msgspec.msgpack.encode(ending),
    )


def _fitting(tasks: Iterable[Task]) -> Iterator[Ending]:
    left = bounds.MAX_PAYLOAD
    for task in tasks:
        left -= len(task.result or b"") + len(task.error or b"")
        if left < 0:
            return
        yield _ending(task)
