"""Work: what a user submits, checked: a call, a registered function, or a plain function."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any

from millpond.pool.internals import internals_of
from millpond.pool.named_call import NamedCall
from millpond.pool.registered import Invocation
from millpond.pool.task import BoundCall, Optioned, TaskFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def as_work(work: object) -> Invocation | NamedCall | Callable[[], Any]:
    """Return a call or a closure; a registered function itself means a call without arguments."""
    if isinstance(work, TaskFunction):
        return Invocation(internals_of(work), (), {})
    if isinstance(work, BoundCall):
        return internals_of(work)
    if isinstance(work, (Invocation, NamedCall)):
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
            # Without this Python warns that it was never awaited.
            work.close()
        raise TypeError(
            "submit() takes a call or a function, not a coroutine: give it fn.bind(...) of a task, "
            "or functools.partial(fn, ...)"
        )
    raise TypeError(f"submit() takes a call or a function of no arguments, not {work!r}")


def misplaced_arguments(verb: str, work: object, given: tuple[object, ...]) -> TypeError:
    """Return the error of `pool.submit(fn, 1)`: it names the right call."""
    if isinstance(work, BoundCall):
        return TypeError(
            f"{verb}() takes one call: to submit several, use pool.submit_many([...]); options are "
            "given by name, such as priority=5"
        )
    name = getattr(work, "__name__", None) or "fn"
    if verb == "submit_many":
        right = f"pool.submit_many({name}.each(items))"
        if not isinstance(work, (TaskFunction, Optioned)):
            right = f"pool.submit_many(functools.partial({name}, item) for item in items)"
        return TypeError(f"submit_many() takes calls, not a function and its items: use {right}")
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
    """Return an argument for a message; `...` for a long one."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else "..."


LONGEST_SHOWN = 40
"""Characters of the longest argument that a message repeats."""


def _needed(fn: Callable[..., Any]) -> str | None:
    """Return the first required argument of a plain function, if it has one."""
    if type(fn) is not FunctionType:
        return None
    code = fn.__code__
    free = code.co_argcount - len(fn.__defaults__ or ())
    if free > 0:
        return code.co_varnames[0]
    words = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    given = fn.__kwdefaults__ or {}
    return next((word for word in words if word not in given), None)


def seed_of_run(seed: Iterable[BoundCall[Any]]) -> list[BoundCall[Any]]:
    """Return the calls that a run begins with; a single one must be in a list."""
    if isinstance(seed, (BoundCall, TaskFunction)):
        raise TypeError(f"a run is seeded with a list of calls: [{seed!r}]")
    return list(seed)
