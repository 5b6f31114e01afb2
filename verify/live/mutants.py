"""Mistakes of a runtime, made on purpose: those that real workers made, and ours did before."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from millpond.core.lifecycle import Status
from millpond.runtime.fleet.poll import Polling
from millpond.runtime.waiting.results import Waiting
from millpond.runtime.waiting.task_result import TaskResult
from millpond.runtime.worker.announce import Announcer
from millpond.runtime.worker.lease_guard import LeaseGuard
from millpond.runtime.worker.queues import Queues
from millpond.runtime.worker.turn import Turns
from millpond.runtime.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond.core.plan import Wake
    from millpond.runtime.jobs.job import Job


@contextmanager
def handlers_outlive_their_lease() -> Iterator[None]:
    """A worker that cannot renew lets its handlers go on."""
    with patch.object(LeaseGuard, "_unsafe", lambda _: None):
        yield


@contextmanager
def settlements_lost_with_their_answer() -> Iterator[None]:
    """A settle that failed is not retried."""
    fail = Turns._failed

    def failed(turns: Turns, _ended: object, ask: Any, error: BaseException) -> None:  # noqa: ANN401
        fail(turns, [], ask, error)

    with patch.object(Turns, "_failed", failed):
        yield


@contextmanager
def leases_lost_with_their_answer() -> Iterator[None]:
    """Tasks leased by a call whose answer was lost are not given back."""

    async def forget(turns: Turns) -> None:
        turns._state.unsure = False

    with patch.object(Turns, "_disown", forget):
        yield


@contextmanager
def nothing_but_hints() -> Iterator[None]:
    """A process learns only from the answers to its own calls."""

    async def look_away(_: Polling) -> None:
        pass

    with patch.object(Polling, "_round", look_away):
        yield


@contextmanager
def ends_heard_only_at_home() -> Iterator[None]:
    """A waiter hears only of results that its own process stored."""

    async def look_away(_: Waiting) -> None:
        pass

    with patch.object(Waiting, "look", look_away):
        yield


@contextmanager
def the_latest_word_counts() -> Iterator[None]:
    """The moment named last is the one to wake up at, even if an earlier one was named before."""

    def woken(queues: Queues, wake: Wake) -> None:
        watch = queues._watches.get(wake.pool)
        if watch is not None:
            watch._ask_at = wake.at
            queues._empty.discard(wake.pool)
            queues._look_at(wake.pool, watch)

    with patch.object(Queues, "woken", woken):
        yield


@contextmanager
def a_stale_settle_is_reported_as_the_end() -> Iterator[None]:
    """A waiter gets the result of a handler whose settle came too late."""

    def stale(announcer: Announcer, job: Job) -> None:
        announcer._waiting.ended(job.id, TaskResult(Status.COMPLETED, job.leased.fence.attempt))

    with patch.object(Announcer, "stale", stale):
        yield


@contextmanager
def a_fenced_worker_goes_on() -> Iterator[None]:
    """A worker that lost its leases does not stop its handlers."""
    with patch.object(Worker, "lost_registration", lambda _: None):
        yield


LIVE_MUTANTS: tuple[Callable[[], Any], ...] = (
    handlers_outlive_their_lease,
    settlements_lost_with_their_answer,
    leases_lost_with_their_answer,
    nothing_but_hints,
    ends_heard_only_at_home,
    the_latest_word_counts,
    a_stale_settle_is_reported_as_the_end,
    a_fenced_worker_goes_on,
)
