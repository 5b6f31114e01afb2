"""Options of a submit: the same names wherever a task is submitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, get_args

from millpond.core import bounds
from millpond.core import validation as check
from millpond.core.backoff import Retry
from millpond.core.task import Call, check_labels
from millpond.errors import ConfigError
from millpond.runtime.jobs.policy import Policy

Seconds: TypeAlias = float | timedelta
Dedupes: TypeAlias = Literal["forever", "success", "inflight", "run", "waiting", "replace"]


class Callback(Protocol):
    """A call that a task may have as `on_complete`: what `notify.bind(channel="#ops")` returns."""

    def _as_callback(self) -> Call: ...


class Options(TypedDict, total=False):
    """The options of one task."""

    priority: int
    key: str
    labels: Mapping[str, str]
    idempotency_key: str
    dedupe: Dedupes
    idempotency: Dedupes
    delay: Seconds
    run_at: float | datetime
    expires_in: Seconds
    timeout: Seconds
    retry: Policy
    on_complete: Callback
    weight: int
    submitted_by: str


class SubmitOptions(Options, total=False):
    """The options of one task, and those of its submit."""

    wait: Seconds | None
    connection: object


class UpdateOptions(TypedDict, total=False):
    """The options that an update of a waiting task may change."""

    priority: int
    labels: Mapping[str, str]
    delay: Seconds
    run_at: float | datetime
    expires_in: Seconds
    timeout: Seconds


NAMES = frozenset(Options.__annotations__)
CHANGEABLE = frozenset(UpdateOptions.__annotations__)


def checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options, converted; raise for an unknown name, a wrong type or a bad value."""
    if not options:
        return options
    unknown = options.keys() - NAMES
    if unknown:
        name = min(unknown)
        raise TypeError(f"submit() got an unexpected option {name!r}; {_instead(name)}")
    if "delay" in options and "run_at" in options:
        raise ConfigError("run_at", options["run_at"], "and delay exclude each other")
    found = {name: _CHECKS[name](name, value) for name, value in options.items()}
    if "idempotency" in found:
        if "dedupe" in found:
            raise ConfigError("idempotency", options["idempotency"], "is the same as dedupe")
        found["dedupe"] = found.pop("idempotency")
    return found


def checked_update(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of an update, converted; raise for one that cannot be changed."""
    for name in sorted(options.keys() & (NAMES - CHANGEABLE)):
        raise ConfigError(
            name, options[name], "of a task cannot be changed: cancel it, and submit another"
        )
    return checked(options)


_ELSEWHERE = {
    "progress": "pool.map(fn, items, progress=True) and pool.drain(calls, progress=True) have it",
    "max_concurrent": "it is an option of the pool: mp.pool(name, max_concurrent=...), or "
    "pool.resize(...)",
    "concurrency": "it is max_concurrent of the pool, or concurrency of mp.worker(...)",
    "rate": "it is an option of the pool: mp.pool(name, rate=Rate(...))",
    "queue": "it is an option of the pool: mp.pool(name, queue=...)",
    "lane": "a task's lane follows from its key: give key=...",
    "retries": "it is retry=Retry(attempts=...)",
    "max_retries": "it is retry=Retry(attempts=...)",
    "attempts": "it is retry=Retry(attempts=...)",
    "countdown": "it is delay, in seconds",
    "eta": "it is run_at, a datetime with a time zone",
    "expires": "it is expires_in, in seconds",
    "args": "arguments belong to the call: fn.bind(...)",
    "kwargs": "arguments belong to the call: fn.bind(...)",
    "executor": "it belongs to the task: @pool.task(executor=...)",
}
"""Names of other libraries and other places, and the advice for each."""


def _instead(name: str) -> str:
    """Return the advice for an unknown option."""
    advice = _ELSEWHERE.get(name)
    if advice is not None:
        return advice
    from difflib import get_close_matches  # noqa: PLC0415 - only for an error

    near = get_close_matches(name, NAMES, n=1)
    return f"did you mean {near[0]!r}? It knows {_known()}" if near else f"it knows {_known()}"


def _known() -> str:
    return ", ".join(sorted(NAMES))


def _labels(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ConfigError(name, value, "must map names to strings")
    check_labels(name, value)
    return dict(value)


def _dedupe(name: str, value: object) -> str:
    return check.one_of(name, value, get_args(Dedupes))


def moment(name: str, value: object) -> float | None:
    """Return a moment in seconds since 1970, given as that or as a datetime with a time zone."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigError(name, value.isoformat(), "needs a time zone")
        value = value.timestamp()
    return None if value is None else check.moment(name, value)


def policy(name: str, value: object) -> Policy | None:
    """Return a retry policy: a Retry, or a function of attempt and error."""
    if value is None or isinstance(value, Retry):
        return value
    if callable(value):
        return value
    raise ConfigError(name, value, "must be a Retry or a function of (attempt, error)")


def must_be_callback(name: str, value: object) -> object:
    """Return what a callback may be; ConfigError for anything else."""
    if not hasattr(value, "_as_callback"):
        raise ConfigError(name, value, "must be a call, such as notify.bind(channel='#ops')")
    return value


def _optional(of: Callable[..., Any], *most: int, **bound: float) -> Callable[[str, object], Any]:
    """Return a check that also takes None."""
    return lambda name, value: None if value is None else of(name, value, *most, **bound)


_key = _optional(check.storable, bounds.MAX_KEY)
_CHECKS: dict[str, Any] = {
    "priority": partial(check.integer, least=bounds.MIN_PRIORITY),
    "key": _key,
    "labels": _labels,
    "idempotency_key": _key,
    "dedupe": _dedupe,
    "idempotency": _dedupe,
    "delay": _optional(check.seconds),
    "run_at": moment,
    "expires_in": _optional(check.seconds, above=0.0),
    "timeout": _optional(check.seconds, above=0.0),
    "retry": policy,
    "on_complete": _optional(must_be_callback),
    "weight": partial(check.integer, least=1),
    "submitted_by": _optional(check.storable, bounds.MAX_SUBMITTED_BY, least=0),
}
