"""Options of a submit: one set of names, wherever a task is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from millpond.core import check
from millpond.core.backoff import Retry
from millpond.core.errors import ConfigError
from millpond.runtime.outcome import Policy

if TYPE_CHECKING:
    from millpond.pool.task import BoundCall

Seconds: TypeAlias = float | timedelta
Dedupes: TypeAlias = Literal["forever", "success", "inflight", "run"]


class Options(TypedDict, total=False):
    """What can be said about a task besides its work."""

    priority: int
    key: str
    labels: Mapping[str, str]
    idempotency_key: str
    dedupe: Dedupes
    delay: Seconds
    run_at: float | datetime
    expires_in: Seconds
    timeout: Seconds
    retry: Policy
    on_complete: BoundCall[Any]
    weight: int
    submitted_by: str


NAMES = frozenset(Options.__annotations__)


def checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options if each is known, of its type and possible; blame one by name if not."""
    if not options:
        return options
    unknown = options.keys() - NAMES
    if unknown:
        name = min(unknown)
        raise TypeError(f"submit() got an unexpected option {name!r}; it knows {_known()}")
    if "delay" in options and "run_at" in options:
        raise ConfigError("run_at", options["run_at"], "and delay exclude each other")
    return {name: _CHECKS[name](name, value) for name, value in options.items()}


def _known() -> str:
    return ", ".join(sorted(NAMES))


def _whole(name: str, value: object) -> int:
    return check.whole(name, value, least=-(2**31), most=2**31 - 1)


def _weight(name: str, value: object) -> int:
    return check.whole(name, value, least=1, most=2**31 - 1)


def _text(name: str, value: object) -> str | None:
    return None if value is None else check.text(name, value)


def _key(name: str, value: object) -> str | None:
    if value == "":
        raise ConfigError(name, value, "must not be empty")
    return _text(name, value)


def _labels(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ConfigError(name, value, "must map names to strings")
    for label, text in value.items():
        check.encodable(f"{name} key", check.text(f"{name} key", label))
        check.encodable(f"{name}[{label!r}]", check.text(f"{name}[{label!r}]", text))
    return dict(value)


def _dedupe(name: str, value: object) -> str:
    return check.one_of(name, value, ("forever", "success", "inflight", "run"))


def _seconds(name: str, value: object) -> float | None:
    return None if value is None else check.seconds(name, value)


def _positive(name: str, value: object) -> float | None:
    return None if value is None else check.seconds(name, value, above=0.0)


def moment(name: str, value: object) -> float | None:
    """Return a moment in seconds since 1970, given as that or as a datetime with a time zone."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigError(name, value.isoformat(), "needs a time zone")
        return value.timestamp()
    return None if value is None else check.number(name, value, least=float("-inf"))


def policy(name: str, value: object) -> Policy | None:
    """Return a retry policy: a Retry, or a function of attempt and error."""
    if value is None or isinstance(value, Retry):
        return value
    if callable(value):
        return value
    raise ConfigError(name, value, "must be a Retry or a function of (attempt, error)")


def _on_complete(name: str, value: object) -> object:
    if value is not None and not hasattr(value, "as_callback"):
        raise ConfigError(name, value, "must be a call, such as notify.bind(channel='#ops')")
    return value


_CHECKS: dict[str, Any] = {
    "priority": _whole,
    "key": _key,
    "labels": _labels,
    "idempotency_key": _key,
    "dedupe": _dedupe,
    "delay": _seconds,
    "run_at": moment,
    "expires_in": _positive,
    "timeout": _positive,
    "retry": policy,
    "on_complete": _on_complete,
    "weight": _weight,
    "submitted_by": _text,
}
