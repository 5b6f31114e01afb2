"""Generates the pages of the public classes from their signatures and docstrings.

`tools/reference_pages.py` says what is on which page. A class that users call has a section with a
table of its attributes and an entry for each method. A value that users read is only a table.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools import options, values
from tools.reference_pages import PAGES, Class, Fixture, Function, Page, Value
from tools.signatures import plain, result_of_operator, signature_of

OPERATORS = {
    "__call__": "{0}(...)",
    "__await__": "await {0}",
    "__aenter__": "async with {0}",
    "__aiter__": "async for ... in {0}",
}
"""Special methods that users call by an operator; shown where they have a docstring."""


class Method(NamedTuple):
    """A public method: its name, the function, and its docstring."""

    name: str
    function: Callable[..., Any]
    text: str


def docstring(thing: object, name: str) -> str:
    """Return the docstring of a class or function; raise if it has none."""
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    if not text:
        raise values.Undocumented(f"{name} has no docstring")
    return text


def methods(kind: type) -> Iterator[Method]:
    """Yield the public methods of a class, those of its bases first."""
    found: dict[str, Callable[..., Any]] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("millpond."):
            found |= {name: one for name, one in vars(base).items() if inspect.isfunction(one)}
    for name, function in found.items():
        if name in OPERATORS and function.__doc__:
            yield Method(name, function, docstring(function, name))
        elif not name.startswith("_") and name not in values.INTERNAL:
            yield Method(name, function, docstring(function, f"{kind.__name__}.{name}"))


@functools.cache
def option_tables() -> list[str]:
    """Return the headings of the page of options."""
    page = options.page(Path(__file__).parents[1])
    return re.findall(r"^## (.+)$", page, re.MULTILINE)


def link_to_options(title: str) -> list[str]:
    """Return a link to the table of a call's options, where there is one."""
    for heading in option_tables():
        if f"{title}(...)" in heading.replace("@", "").split(", "):
            slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            return ["", f"[What each option means](options.md#{slug})."]
    return []


def code(line: str) -> list[str]:
    """Return a line of Python that is no example to run."""
    return ["", "```py", line, "```"]


def method_entry(part: Class, method: Method, after: str = "") -> list[str]:
    """Return one method: its heading, its signature and its docstring."""
    title = f"{part.name}.{method.name}"
    if method.name in OPERATORS:
        title = OPERATORS[method.name].format(part.name)
        line = title + result_of_operator(method.function)
    else:
        line = signature_of(title, method.function, part.kind.__name__)
    text = [*method.text.splitlines(), *(["", after] if after else [])]
    return ["", f"### {title}", *code(line), "", *text, *link_to_options(title)]


def attributes(kind: type) -> dict[str, tuple[str, str]]:
    """Return the type and the meaning of each public attribute."""
    found = values.members(kind, methods=False)
    return {name: (plain(annotation) or "Any", text) for name, annotation, text in found}


def attribute_table(rows: dict[str, tuple[str, str]]) -> list[str]:
    """Return the table of attributes."""
    return ["", *values.table((name, *row) for name, row in rows.items())] if rows else []


def for_threads(part: Class, twin: type) -> list[str]:
    """Return the paragraph about the class for threads, and the attributes that differ there."""
    own, other = attributes(part.kind), attributes(twin)
    absent = (own.keys() | {one.name for one in methods(part.kind)}) - other.keys()
    absent -= {one.name for one in methods(twin)} | {*OPERATORS, "sync"}
    text = f"{part.for_threads or f'`{part.name}.sync` is a'} `{twin.__name__}`, for threads: "
    text += "the same attributes and methods, without `await`."
    text += "".join(f" It has no `{name}`." for name in sorted(absent))
    different = {name: row for name, row in other.items() if own.get(name, ("",))[0] != row[0]}
    text += " These attributes differ:" if different else ""
    return ["", *textwrap.wrap(text, 100), *attribute_table(different)]


def class_section(part: Class) -> list[str]:
    """Return the section of a class: docstring, constructor, attributes, methods."""
    name = part.kind.__name__
    lines = ["", f"## {name}", "", *docstring(part.kind, name).splitlines()]
    if part.made:
        lines += [*code(signature_of(name, part.kind)), *link_to_options(name)]
    lines += attribute_table(attributes(part.kind))
    lines += for_threads(part, part.twin) if part.twin else []
    lines += [line for method in methods(part.kind) for line in method_entry(part, method)]
    if part.twin:
        only = f"Only a `{part.twin.__name__}` has it."
        new = (one for one in methods(part.twin) if not hasattr(part.kind, one.name))
        lines += [line for method in new for line in method_entry(part, method, only)]
    return lines


def section(part: Class | Value | Function | Fixture) -> list[str]:
    """Return the section of any part."""
    match part:
        case Class():
            return class_section(part)
        case Value(kind, source):
            return values.section(kind, source)
        case Function(function) | Fixture(function):
            name = function.__name__
            line = signature_of(name, function)
    if isinstance(part, Fixture):
        line = re.sub(r".* -> (?:Iterator\[)?(\w+)\]?", rf"def test_it({name}: \1): ...", line)
    return ["", f"## {name}", *code(line), "", *docstring(function, name).splitlines()]


def text_of(page: Page) -> str:
    """Return a whole page."""
    head = "<!-- Generated by `make docs` from the signatures and docstrings. -->"
    lines = [head, f"# {page.title}", "", *page.intro.strip().splitlines()]
    for part in page.parts:
        lines += section(part)
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Return every page by its name in docs/reference."""
    return {name: text_of(page) for name, page in PAGES.items()}
