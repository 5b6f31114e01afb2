"""A function's annotations as types, also where they are written as text."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, get_type_hints

from millpond.errors import ConfigError

Hint: TypeAlias = Any
"""What an annotation means: a type, or one of the many things that are written as one."""


def hints_of(fn: Callable[..., object], task: str) -> dict[str, Hint]:
    """Return the type of each annotated parameter, and of "return".

    Text is read where the function was written: in its module, in its closure, and in the
    functions around it while they still run. A name that is in none of them is a ConfigError.
    """
    inner = _function(fn)
    if not getattr(inner, "__annotations__", None):
        return {}
    around = dict(_around(inner))
    try:
        return get_type_hints(inner, localns=around, include_extras=True)
    except Exception as error:  # text is an expression and may raise anything
        raise _blamed(inner, around, task, error) from error


def _function(fn: Callable[..., object]) -> Callable[..., object]:
    """Return the function that carries the annotations."""
    inner: Any = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    found: Callable[..., object] = getattr(inner, "__func__", inner)
    return found


def _around(fn: Callable[..., object]) -> Iterator[tuple[str, object]]:
    """Give the names around a function, the nearest last."""
    fn = inspect.unwrap(fn)
    code = getattr(fn, "__code__", None)
    if code is None:
        return
    frames = []
    frame = sys._getframe()  # noqa: SLF001 - only a frame knows a class that is local
    while (outer := frame.f_back) is not None:
        if outer.f_locals is not outer.f_globals and _holds(outer.f_code, code):
            frames.append(outer)
        frame = outer
    for outer in reversed(frames):
        yield from outer.f_locals.items()
    for name, cell in zip(code.co_freevars, getattr(fn, "__closure__", None) or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # not assigned yet


def _holds(outer: types.CodeType, inner: types.CodeType) -> bool:
    """Whether a piece of code was written within another."""
    return any(
        const is inner or _holds(const, inner)
        for const in outer.co_consts
        if isinstance(const, types.CodeType)
    )


def _blamed(
    fn: Callable[..., object], around: dict[str, object], task: str, error: Exception
) -> ConfigError:
    """Find the annotation that cannot be read."""
    scope = getattr(inspect.unwrap(fn), "__globals__", {})
    for name, annotation in fn.__annotations__.items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            get_type_hints(alone, scope, around, include_extras=True)
        except Exception as reason:  # noqa: BLE001 - as above
            return ConfigError(f"{task}({name})", str(annotation), _reason(reason))
    return ConfigError(f"{task}(...)", "annotations", _reason(error))


def _reason(error: Exception) -> str:
    if isinstance(error, NameError):
        return (
            f"names {error.name}, which is not there at run time: "
            "import it outside TYPE_CHECKING, and define it before the task"
        )
    return f"cannot be read: {error}"
