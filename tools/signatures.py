"""Signatures as a user writes them: `await pool.size() -> int`, in types that a user knows."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import typing
from collections.abc import Callable
from typing import Any

from tools import options
from tools.reference_pages import ALIASES

WIDTH = 88
"""A signature that is longer has one parameter in each line."""

SHORTER = {
    r"\b(?:typing|collections\.abc|datetime|check)\.": "",
    r"\bWork\[": "BoundCall[",
    r"\bWorkOnItem\[": "CallableWithItem[",
    r"\bUnpack\[(?:Submit)?Options\]": "Options",
    r"\bAbstract(Async)?ContextManager\b": r"\1ContextManager",
    r"\bCoroutine\[Any, Any, (\w+)\]": r"Awaitable[\1]",
    r"\b(\w*Handle|BoundCall|Mapped|Iterable)\[Any\]": r"\1",
    r"\b(\w*TaskFunction|Optioned)\[(?:[^][]|\[[^][]*\])*\]": r"\1",
    r"\b([RF])_co\b": r"\1",
    r"\[\*Ts\]": "...",
    r"^(?:P\.\w+|\*Ts|Any|None)$": "",
    **{rf"\b{name}\b": text for name, text in ALIASES.items()},
}
"""How annotations of the source become the types that a user would write."""


def plain(annotation: object, owner: str = "") -> str:
    """Return a type as a user would write it; nothing for Any and None."""
    text = "" if annotation is inspect.Parameter.empty else options.as_written(annotation)
    text = text.replace("'", '"')
    for pattern, shorter in {**SHORTER, r"\bSelf\b": owner}.items():
        text = re.sub(pattern, shorter, text)
    return text


def typed_by_overloads(function: Callable[..., Any]) -> inspect.Signature:
    """Return a signature; where it says Any, with the types of the first and last overload."""
    signature = inspect.signature(function)
    overloads = [inspect.signature(one) for one in typing.get_overloads(inspect.unwrap(function))]
    if not overloads:
        return signature
    given = []
    for name, one in signature.parameters.items():
        ends = [each.parameters.get(name) for each in (overloads[0], overloads[-1])]
        types = dict.fromkeys(str(each.annotation) for each in ends if each)
        any_type = "Any" in str(one.annotation) and all(ends)
        given.append(one.replace(annotation=" | ".join(types)) if any_type else one)
    returns = overloads[0].return_annotation
    return signature.replace(parameters=given, return_annotation=returns)


def written(one: inspect.Parameter) -> str:
    """Return one parameter with its type and default."""
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(one.kind.name, "")
    annotation = plain(one.annotation)
    text = f"{stars}{one.name}" + (f": {annotation}" if annotation else "")
    if one.default is one.empty:
        return text
    default = repr(one.default)
    if isinstance(one.default, str):
        default = json.dumps(str(one.default))
    elif callable(one.default):
        default = f"{one.default.__module__}.{one.default.__name__}"
    return f"{text} = {default}" if annotation else f"{text}={default}"


def parameters(signature: inspect.Signature, hidden: set[str]) -> list[str]:
    """Return the parameters as written, with `/` and `*` between them."""
    given = [one for one in signature.parameters.values() if one.name not in hidden]
    found = [written(one) for one in given]
    kinds = [one.kind for one in given]
    named = inspect.Parameter.KEYWORD_ONLY
    if named in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        found.insert(kinds.index(named), "*")
    if only := kinds.count(inspect.Parameter.POSITIONAL_ONLY):
        found.insert(only, "/")
    return found


def is_context_manager(function: Callable[..., Any]) -> bool:
    """Return whether contextlib made a context manager of a generator."""
    if function.__code__.co_filename == contextlib.__file__:
        return True
    inner = getattr(function, "__wrapped__", None)
    return inner is not None and is_context_manager(inner)


def call_of(function: Callable[..., Any], returns: str) -> tuple[str, str]:
    """Return what stands before a call (`await`, `async with`), and what the call gives."""
    if inspect.isfunction(function) and is_context_manager(function):
        returns = returns.replace("Iterator", "ContextManager")
    for before, pattern in (
        ("await ", r"Awaitable\[(.*)\]"),
        ("async with ", r"AsyncContextManager\[(.*)\]"),
        ("with ", r"ContextManager\[(.*)\]"),
    ):
        if found := re.fullmatch(pattern, returns):
            return before, found[1]
    return ("await " if inspect.iscoroutinefunction(inspect.unwrap(function)) else ""), returns


def signature_of(name: str, function: Callable[..., Any], owner: str = "") -> str:
    """Return the call as a user writes it, with types and the type of its result."""
    signature = typed_by_overloads(function)
    hidden = {"self", "misplaced"}
    before, returns = call_of(function, plain(signature.return_annotation, owner))
    if name.endswith("task"):
        before, returns, hidden = "@", "TaskFunction", {*hidden, "fn"}
    given = parameters(signature, hidden)
    given = given[1:] if given[:1] == ["/"] else given
    after = f" -> {returns}" if returns else ""
    line = f"{before}{name}({', '.join(given)}){after}"
    if len(line) <= WIDTH:
        return line
    return f"{before}{name}(\n" + "".join(f"    {one},\n" for one in given) + f"){after}"


def result_of_operator(function: Callable[..., Any]) -> str:
    """Return what `await` or each turn of `async for` gives."""
    returns = plain(inspect.signature(function).return_annotation)
    pattern = r"Generator\[Any, None, (.*)\]|Async(?:Iterator|Generator)\[(.*?)(?:, None)?\]"
    found = re.fullmatch(pattern, returns)
    return f" -> {found[1] or found[2]}" if found else ""
