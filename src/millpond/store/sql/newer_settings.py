"""Settings of a newer version: an unknown option is an error, never ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millpond.errors import ConfigError, NewerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

S = TypeVar("S", bound=msgspec.Struct)


def understood(text: str, decode: Callable[[str], S], what: str) -> S:
    """Return the settings of a stored text; raise NewerPool for the first unknown option."""
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError) as error:
        # It is as good as one that only another version understands: it is left alone.
        raise _newer(None, what, f"(damaged: {error})") from error
    try:
        spec = decode(text)
    except (msgspec.ValidationError, ConfigError) as error:
        raise _newer(raw, what, str(error)) from error
    unknown = next(_unknown_fields(raw, msgspec.to_builtins(spec)), None)
    if unknown is not None:
        raise _newer(raw, what, unknown)
    return spec


def _unknown_fields(raw: Any, known: Any, where: str = "") -> Iterator[str]:  # noqa: ANN401 - JSON
    """Yield the unknown stored fields, by their path."""
    if isinstance(raw, dict) and isinstance(known, dict):
        for name, value in raw.items():
            if name in known:
                yield from _unknown_fields(value, known[name], f"{where}{name}.")
            else:
                yield f"{where}{name}"
    elif isinstance(raw, list) and isinstance(known, (list, tuple)):
        for at, (value, one) in enumerate(zip(raw, known, strict=False)):
            yield from _unknown_fields(value, one, f"{where}{at}.")


def _newer(raw: Any, what: str, option: str) -> NewerPool:  # noqa: ANN401 - JSON
    name = str(raw.get("name")) if isinstance(raw, dict) else "?"
    return NewerPool(
        f"{what} {name!r} was declared by a newer version of Millpond, with an option that this "
        f"version does not know: {option}. This process leaves the {what} alone; update it",
        pool=name,
        option=option,
    )


def shares_newer(pool: str, budget: NewerPool) -> NewerPool:
    """Return the error for a pool that shares a budget which only a newer version understands."""
    return NewerPool(
        f"pool {pool!r} shares budget {budget.pool!r}, which was declared by a newer version of "
        f"Millpond, with an option that this version does not know: {budget.option}. This process "
        "leaves the pool alone; update it",
        pool=pool,
        option=f"budgets.{budget.pool}.{budget.option}",
    )
