"""New tasks: from a call or a closure with options to the task that the store takes."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.spec import OrderKind
from millpond.core.task import Call, Dedupe, NewTask
from millpond.errors import ConfigError
from millpond.pool.declared_pool import attempts_of
from millpond.pool.named_call import NamedCall
from millpond.pool.payload.codec import plain_result
from millpond.pool.payload.signature import fingerprint
from millpond.pool.registered import is_async
from millpond.runtime.jobs.job import Closure, Where, current_job
from millpond.runtime.jobs.policy import Carried, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from millpond.core.backoff import Retry
    from millpond.pool.declared_pool import DeclaredPool
    from millpond.pool.registered import Invocation
    from millpond.runtime.observe.probe import Probes

MOST_NAMES = 1_000
"""How many names of closures are kept encoded."""

_NO_LABELS: dict[str, str] = {}


def new_task(
    pool: DeclaredPool,
    call: Invocation,
    options: Mapping[str, Any],
    *,
    run: int | None = None,
) -> NewTask:
    """Return the task for a call; raise for arguments and options that cannot be stored."""
    if pool.spec.strict and call.registered.batch is not None:
        raise ConfigError(
            "work",
            call,
            f"is of a batch task and cannot go into pool {pool.name!r}: lanes run one at a time",
        )
    given = call.options_within(options)
    encoded = call.encode()
    key = given.get("key")
    if key is None:
        key = call.key()
    retry = given.get("retry")
    return _task(pool, encoded, given, key, call, retry, run=run)


def new_named_task(
    pool: DeclaredPool,
    call: NamedCall,
    options: Mapping[str, Any],
    *,
    run: int | None = None,
) -> NewTask:
    """Return the task for a call by name; the options of its function are not known here."""
    return _task(
        pool, call.encode(), options, options.get("key"), call, options.get("retry"), run=run
    )


def new_closure(
    pool: DeclaredPool,
    fn: Callable[[], Any],
    options: Mapping[str, Any],
    *,
    run: int | None = None,
    where: Where | None = None,
) -> tuple[NewTask, Closure]:
    """Return the task for a closure, and its code, which stays in this process."""
    retry: Policy | None = options.get("retry") if options else None
    if where is None:
        where = Where.LOOP if is_async(fn) else Where.THREAD
    closure = Closure(fn, copy_context(), where, retry, _encoder(pool))
    encoded = _call_of(fn)
    if options or pool.spec.order.kind is OrderKind.FAIR:
        key = options.get("key") if options else None
        owner = pool.runtime.owner
        return _task(pool, encoded, options, key, None, retry, run=run, owner=owner), closure
    runtime = pool.runtime
    probes = runtime.hooks.probes
    job = current_job.get()
    new = NewTask(
        id=runtime.new_id(),
        pool=pool.spec.name,
        call=encoded,
        attempts=pool.attempts,
        owner=runtime.owner,
        run=run,
        submitted_by="user" if job is None else f"task:{job.id}",
        options=b"" if probes is None else _carried(None, probes),
    )
    return new, closure


_CALLS: dict[str, Call] = {}


def _encoder(pool: DeclaredPool) -> Callable[[Any], bytes] | None:
    """Return what encodes results of closures; None where they stay in this process anyway."""
    if not pool.runtime.shared:
        return None
    return partial(plain_result, largest=pool.owner.max_payload)


def _call_of(fn: Callable[[], Any]) -> Call:
    """Return what the store records of a closure: its name, for people to read."""
    named = fn.func if type(fn) is partial else fn
    name: str = getattr(named, "__qualname__", "") or type(named).__qualname__
    call = _CALLS.get(name)
    if call is None:
        # People read it, and nothing depends on its end.
        call = Call(check.cut(name.replace("\0", "?"), bounds.MAX_FUNCTION))
        if len(_CALLS) < MOST_NAMES:
            _CALLS[name] = call
    return call


def _task(
    pool: DeclaredPool,
    encoded: Call,
    given: Mapping[str, Any],
    key: str | None,
    call: Invocation | NamedCall | None,
    retry: Policy | None,
    *,
    run: int | None,
    owner: str | None = None,
) -> NewTask:
    runtime = pool.runtime
    attempts = pool.attempts if retry is None else attempts_of(retry)
    order = pool.spec.order
    share = None
    if order.kind is OrderKind.FAIR:
        share = share_of(order.key, given, key, call)
    if not given:
        return NewTask(
            id=runtime.new_id(),
            pool=pool.spec.name,
            call=encoded,
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
        call=encoded,
        key=key,
        share=share,
        labels=given.get("labels", _NO_LABELS),
        priority=given.get("priority", 0),
        weight=given.get("weight", 1),
        delay=given.get("delay") or 0.0,
        run_at=given.get("run_at"),
        expires_in=given.get("expires_in"),
        timeout=given.get("timeout"),
        attempts=attempts,
        idempotency_key=idempotency_key,
        dedupe=dedupe,
        fingerprint=fingerprint(encoded.function, encoded.payload) if idempotency_key else 0,
        on_complete=None if callback is None else callback._as_callback(),  # noqa: SLF001 - of a Callback
        owner=owner,
        run=run,
        submitted_by=given.get("submitted_by") or _submitter(),
        options=_carried(_retry_to_carry(given, call), runtime.hooks.probes),
    )


def share_of(
    name: str, given: Mapping[str, Any], key: str | None, call: Invocation | NamedCall | None
) -> str | None:
    """Return the partition in a fair pool: labels, else the argument, else the key."""
    labelled: str | None = given.get("labels", _NO_LABELS).get(name)
    if labelled is not None:
        return labelled
    argument = call.argument(name) if call is not None else None
    return key if argument is None else str(argument)


def _submitter() -> str:
    job = current_job.get()
    return "user" if job is None else f"task:{job.id}"


def _carried(retry: Retry | None, probes: Probes | None) -> bytes:
    """Return what the task carries to its worker: its own retry policy, its trace."""
    trace = {} if probes is None else probes.carrier()
    if retry is None and not trace:
        return b""
    return msgspec.msgpack.encode(Carried(retry=retry, trace=trace))


def _retry_to_carry(given: Mapping[str, Any], call: Invocation | NamedCall | None) -> Retry | None:
    """Return the policy that was given with the call, which its worker cannot know otherwise."""
    retry: Policy | None = given.get("retry")
    if retry is None or call is None:
        return None
    if not isinstance(call, NamedCall) and retry is call.registered.defaults.get("retry"):
        return None
    if callable(retry):
        raise ConfigError(
            "retry", retry, "given with a call must be a Retry: a function cannot be stored"
        )
    return retry
