"""The outcome of a run: what a return, a timeout or an interruption means for the attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.core.admit import Reason
from millpond.core.settle import Interrupted, Outcome, Raised, Stopped, Succeeded
from millpond.runtime.ctrl_c import is_ctrl_c
from millpond.runtime.error_info import describe
from millpond.runtime.jobs.job import CancelReason, Closure, Job
from millpond.runtime.jobs.outcome import BadResult, Encoded, raised

if TYPE_CHECKING:
    import asyncio

_NOTHING_TO_STORE = Succeeded()
"""The result of a closure stays in this process, and a closure submits no follow-ups."""

_RETURNED_NONE = Succeeded(b"null")


def succeeded(job: Job, value: Any) -> Outcome:  # noqa: ANN401 - what the handler returned
    """Return the outcome of a handler that returned."""
    if job.committed:
        return _NOTHING_TO_STORE
    body = job.body
    if isinstance(body, Closure):
        return _of_closure(body, value)
    follow_ups = tuple(job.follow_ups) if job.follow_ups else ()
    if type(value) is Encoded:
        return Succeeded(value.data or None, follow_ups)
    try:
        return Succeeded(body.encode_result(value), follow_ups)
    except BadResult as error:
        return Raised(describe(error), final=True, reason="bad_result")
    except BaseException as error:
        # A class of the user may exit while it is encoded.
        if is_ctrl_c(error):
            raise
        return Raised(describe(error), final=True, reason="bad_result")


def _of_closure(body: Closure, value: Any) -> Succeeded:  # noqa: ANN401 - what it returned
    """Return the outcome of a closure; a result that cannot be stored stays in this process."""
    if value is None:
        return _RETURNED_NONE
    if body.encode_result is None:
        return _NOTHING_TO_STORE
    try:
        return Succeeded(body.encode_result(value))
    except BadResult:
        return _NOTHING_TO_STORE


def timed_out(job: Job, stopped: BaseException | None = None) -> tuple[TimeoutError, Outcome]:
    """Return the error of an attempt that ran for too long, and its outcome.

    Its cause is the exception that stopped the handler: its traceback shows where it was.
    """
    seconds = job.leased.timeout or 0.0
    error = TimeoutError(f"the attempt ran for longer than {seconds:g} s")
    error.__cause__ = stopped
    return error, raised(error, job)


def interrupted(job: Job, *, begun: bool) -> Interrupted:
    """Return the outcome of an attempt that its worker stops."""
    lost = job.why is CancelReason.LEASE_LOST
    return Interrupted(begun, Reason.LEASE_LOST if lost else Reason.STOPPED)


def cancelled(job: Job, error: asyncio.CancelledError) -> Outcome:
    """Return the outcome of a handler that was cancelled."""
    if job.timed_out:
        return timed_out(job)[1]
    match job.why:
        case CancelReason.CANCEL:
            return Stopped()
        case CancelReason.STOP | CancelReason.LEASE_LOST:
            return interrupted(job, begun=job.began)
        case _:
            # The worker did not cancel it: something inside the handler was cancelled.
            return raised(error, job)
