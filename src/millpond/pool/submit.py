"""Submit: from a user's words to a task, and from a refusal to the error that explains it."""

from __future__ import annotations

import inspect
from contextvars import copy_context
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.admit import Reason, Refusal
from millpond.core.spec import OrderKind
from millpond.core.task import Call, Dedupe, NewTask
from millpond.errors import (
    BatchTooLarge,
    ConfigError,
    IdempotencyConflict,
    MillpondError,
    NoCapacity,
    PoolClosed,
    PoolFull,
    RunOverBudget,
    RunStopped,
    UnknownPool,
)
from millpond.pool.payload.codec import plain_result
from millpond.pool.payload.signature import fingerprint
from millpond.pool.task import BoundCall, Optioned, TaskFunction, is_async
from millpond.runtime.jobs.job import Closure, Where, current_job
from millpond.runtime.jobs.policy import DEFAULT_RETRY, Carried, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from millpond.core.backoff import Retry
    from millpond.pool.pool import Pool
    from millpond.runtime.observe.probe import Probes

MOST_NAMES = 1_000

UNLIMITED = 1_000_000
"""Attempts of a task whose own policy decides when to give up."""

_NOTHING: dict[str, str] = {}


def new_task(
    pool: Pool,
    work: BoundCall[Any],
    options: Mapping[str, Any],
    *,
    run: int | None = None,
) -> NewTask:
    """Return the task for a call; refuses what would not survive, or could not be."""
    if pool.spec.strict and work.function.takes_batches:
        raise ConfigError(
            "work",
            work,
            f"is of a batch task and cannot go into pool {pool.name!r}: lanes run one at a time",
        )
    given = work.given(options)
    call = work.encoded()
    key = given.get("key")
    if key is None:
        key = work.key()
    retry = given.get("retry")
    return _task(pool, call, given, key, work, retry, run=run)


def new_closure(
    pool: Pool,
    fn: Callable[[], Any],
    options: Mapping[str, Any],
    *,
    run: int | None = None,
    where: Where | None = None,
) -> tuple[NewTask, Closure]:
    """Return the task for a callable, and the code that stays here."""
    retry: Policy | None = options.get("retry") if options else None
    if where is None:
        where = Where.LOOP if is_async(fn) else Where.THREAD
    closure = Closure(fn, copy_context(), where, retry, _encoder(pool))
    call = _call_of(fn)
    if options or pool.spec.order.kind is OrderKind.FAIR:
        key = options.get("key") if options else None
        owner = pool.runtime.owner
        return _task(pool, call, options, key, None, retry, run=run, owner=owner), closure
    runtime = pool.runtime
    probes = runtime.hooks.probes
    job = current_job.get()
    new = NewTask(
        id=runtime.new_id(),
        pool=pool.spec.name,
        call=call,
        attempts=pool.attempts,
        owner=runtime.owner,
        run=run,
        submitted_by="user" if job is None else f"task:{job.id}",
        options=b"" if probes is None else _carried(None, probes),
    )
    return new, closure


_CALLS: dict[str, Call] = {}


def _encoder(pool: Pool) -> Callable[[Any], bytes] | None:
    """Return how results of closures are stored; None where they stay in this process anyway."""
    if not pool.runtime.shared:
        return None
    return partial(plain_result, largest=pool.millpond.max_payload)


def _call_of(fn: Callable[[], Any]) -> Call:
    """Return what is recorded of a closure: its name, for people to read."""
    named = fn.func if type(fn) is partial else fn
    name: str = getattr(named, "__qualname__", "") or type(named).__qualname__
    call = _CALLS.get(name)
    if call is None:
        # It is shown to people, and nothing hangs on its end.
        call = Call(check.cut(name.replace("\0", "?"), bounds.MAX_FUNCTION))
        if len(_CALLS) < MOST_NAMES:
            _CALLS[name] = call
    return call


def _task(
    pool: Pool,
    call: Call,
    given: Mapping[str, Any],
    key: str | None,
    work: BoundCall[Any] | None,
    retry: Policy | None,
    *,
    run: int | None,
    owner: str | None = None,
) -> NewTask:
    runtime = pool.runtime
    policy = retry or pool.retry or DEFAULT_RETRY
    attempts = getattr(policy, "attempts", UNLIMITED)
    order = pool.spec.order
    share = None
    if order.kind is OrderKind.FAIR:
        share = _share(order.key, given, key, work)
    if not given:
        return NewTask(
            id=runtime.new_id(),
            pool=pool.spec.name,
            call=call,
            key=key,
            share=share,
            attempts=attempts,
            owner=owner,
            run=run,
            submitted_by=_submitter(),
            options=b"" if runtime.hooks.probes is None else _carried(None, runtime.hooks.probes),
        )
    idempotency_key = given.get("idempotency_key")
    callback = given.get("on_complete")
    dedupe = Dedupe(given.get("dedupe", "forever"))
    if dedupe is Dedupe.RUN and run is None:
        raise ConfigError("dedupe", "run", "needs a run: submit through ctx, a run or a drain")
    return NewTask(
        id=runtime.new_id(),
        pool=pool.spec.name,
        call=call,
        key=key,
        share=share,
        labels=given.get("labels", _NOTHING),
        priority=given.get("priority", 0),
        weight=given.get("weight", 1),
        delay=given.get("delay") or 0.0,
        run_at=given.get("run_at"),
        expires_in=given.get("expires_in"),
        timeout=given.get("timeout"),
        attempts=attempts,
        idempotency_key=idempotency_key,
        dedupe=dedupe,
        fingerprint=fingerprint(call.function, call.payload) if idempotency_key else 0,
        on_complete=None if callback is None else callback.as_callback(),
        owner=owner,
        run=run,
        submitted_by=given.get("submitted_by") or _submitter(),
        options=_carried(_retry_to_carry(given, work), runtime.hooks.probes),
    )


def _share(
    name: str, given: Mapping[str, Any], key: str | None, work: BoundCall[Any] | None
) -> str | None:
    """Return the partition in a fair pool: labels, else the argument, else the key."""
    labelled: str | None = given.get("labels", _NOTHING).get(name)
    if labelled is not None:
        return labelled
    argument = work.argument(name) if work is not None else None
    return key if argument is None else str(argument)


def _submitter() -> str:
    job = current_job.get()
    return "user" if job is None else f"task:{job.id}"


def _carried(retry: Retry | None, probes: Probes | None) -> bytes:
    """Return what the task carries for whoever runs it: its own policy, the trace it is part of."""
    trace = {} if probes is None else probes.carrier()
    if retry is None and not trace:
        return b""
    return msgspec.msgpack.encode(Carried(retry=retry, trace=trace))


def _retry_to_carry(given: Mapping[str, Any], work: BoundCall[Any] | None) -> Retry | None:
    """Return the policy that was given with the call, and that nobody else would know."""
    retry: Policy | None = given.get("retry")
    if retry is None or work is None or retry is work.function.defaults.get("retry"):
        return None
    if callable(retry):
        raise ConfigError(
            "retry", retry, "given with a call must be a Retry: a function cannot be stored"
        )
    return retry


def as_work(
    work: object,
) -> BoundCall[Any] | Callable[[], Any]:
    """Return a call or a closure; a registered function itself means a call without arguments."""
    if isinstance(work, TaskFunction):
        return BoundCall(work, (), {})
    if isinstance(work, BoundCall):
        return work
    if callable(work):
        needed = _needed(work)
        if needed is not None:
            raise TypeError(
                f"submit() takes a function of no arguments, and {work!r} needs {needed!r}: use "
                "functools.partial(fn, ...), or register it and use fn.bind(...)"
            )
        return work
    if hasattr(work, "__await__"):
        if inspect.iscoroutine(work):
            # It was made for this, and nobody else will ever await it.
            work.close()
        raise TypeError(
            "submit() takes a call or a function, not a coroutine: give it fn.bind(...) of a task, "
            "or functools.partial(fn, ...)"
        )
    raise TypeError(f"submit() takes a call or a function of no arguments, not {work!r}")


def misplaced_arguments(verb: str, work: object, given: tuple[object, ...]) -> TypeError:
    """Return the error of `pool.submit(fn, 1)`: it names the call that was meant."""
    if isinstance(work, BoundCall):
        return TypeError(
            f"{verb}() takes one call: to submit several, use pool.submit_many([...]); options are "
            "given by name, such as priority=5"
        )
    name = getattr(work, "__name__", None) or "fn"
    if verb == "submit_many":
        meant = f"pool.submit_many({name}.each(items))"
        if not isinstance(work, (TaskFunction, Optioned)):
            meant = f"pool.submit_many(functools.partial({name}, item) for item in items)"
        return TypeError(f"submit_many() takes calls, not a function and its items: use {meant}")
    arguments = ", ".join(map(_shown, given))
    if isinstance(work, (TaskFunction, Optioned)):
        own = f", or {name}.submit({arguments})" if verb == "submit" else ""
        return TypeError(
            f"{verb}() takes a call, not a function and its arguments: use "
            f"pool.{verb}({name}.bind({arguments})){own}"
        )
    return TypeError(
        f"{verb}() takes a function of no arguments: use "
        f"pool.{verb}(functools.partial({name}, {arguments})), or register {name} with @pool.task "
        f"and use pool.{verb}({name}.bind({arguments}))"
    )


def _shown(value: object) -> str:
    """Return an argument as it can stand in a message; a long one is left out."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else "..."


LONGEST_SHOWN = 40
"""Characters of an argument that a message repeats."""


def _needed(fn: Callable[..., Any]) -> str | None:
    """Return the first argument a plain function cannot be called without."""
    if type(fn) is not FunctionType:
        return None
    code = fn.__code__
    free = code.co_argcount - len(fn.__defaults__ or ())
    if free > 0:
        return code.co_varnames[0]
    words = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    given = fn.__kwdefaults__ or {}
    return next((word for word in words if word not in given), None)


def refused(refusal: Refusal, size: int) -> MillpondError:
    """Return the error that explains a refusal."""
    pool = refusal.pool
    match refusal.reason:
        case Reason.QUEUE_FULL:
            part = "lane" if refusal.in_lane else "key"
            where = (
                f"{part} {refusal.lane!r} of pool {pool!r}" if refusal.lane else f"pool {pool!r}"
            )
            return PoolFull(
                f"{where} is full: {refusal.depth} of {refusal.bound} waiting; try again later, "
                "raise the bound, or choose another on_full",
                pool=pool,
                lane=refusal.lane,
                depth=refusal.depth,
                bound=refusal.bound,
            )
        case Reason.NO_CAPACITY:
            return NoCapacity(
                f"pool {pool!r} has no capacity now: {refusal.depth} of {refusal.bound} taken, or "
                "paused, or its key or rate does not allow a start",
                pool=pool,
                reason=str(refusal.reason),
            )
        case Reason.CLOSED:
            return PoolClosed(f"pool {pool!r} is closed and takes no more work", pool=pool)
        case Reason.BATCH_TOO_LARGE:
            return BatchTooLarge(
                f"a batch of {size} can never fit into pool {pool!r}, which holds "
                f"{refusal.bound}; submit it in parts",
                pool=pool,
                size=size,
                bound=refusal.bound,
            )
        case Reason.CONFLICT:
            return IdempotencyConflict(
                f"idempotency_key={refusal.key!r} of pool {pool!r} stands for task {refusal.task}, "
                "which has another function or other arguments",
                pool=pool,
                key=refusal.key,
                task_id=refusal.task,
            )
        case Reason.UNKNOWN_POOL:
            return UnknownPool(f"no pool named {pool!r} was declared", pool=pool)
        case Reason.OVER_BUDGET:
            return RunOverBudget(
                f"{size} task(s) more are beyond max_tasks of the run; none of them was stored",
                pool=pool,
                run=None,
                report=None,
                max_tasks=None,
            )
        case Reason.RUN_NOT_OPEN:
            return RunStopped(
                "the run has ended or was stopped, and takes no more tasks",
                pool=pool,
                run=None,
                report=None,
            )
        case Reason.CLOSURE_IN_LANES:
            return ConfigError(
                "work", "a closure", f"cannot go into pool {pool!r}, which has lanes: use a task"
            )
        case Reason.OWNER_GONE:
            return ConfigError(
                "work",
                "a closure",
                f"of pool {pool!r} runs in the process that submits it, and this one has no "
                "worker: open one with `async with mp.worker():`, or submit a task",
            )
        case Reason.WEIGHT_LIMIT:
            return ConfigError(
                "weight", refusal.bound, f"is the most that a rate of pool {pool!r} ever allows"
            )
        case _:
            return MillpondError(f"pool {pool!r} refused: {refusal.reason}")
