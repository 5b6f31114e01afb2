"""Make this process look like another operating system to Millpond's modules only.

What the modules of the standard library lack there is read from the types that come with mypy: a
name of Linux alone is missing, and a module of such names alone cannot be imported.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import mypy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_STUBS = Path(str(mypy.__file__)).parent / "typeshed" / "stdlib"
_import = builtins.__import__


class OtherModule(ModuleType):
    """A module of the standard library, without the names that another system lacks."""

    def __init__(self, real: ModuleType, lacks: frozenset[str], **instead: object) -> None:
        super().__init__(real.__name__)
        self._real, self._lacks = real, lacks
        self.__dict__.update(instead)

    def __getattr__(self, name: str) -> object:
        """Return the attribute of the real module, if the other system has it too."""
        if name in self._lacks:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} there")
        return getattr(self._real, name)


def pretend(system: str) -> None:
    """Let Millpond's modules, which must not be imported yet, find the modules of a system."""
    instead = {"sys": {"platform": system}, "os": {"name": "nt" if system == "win32" else "posix"}}

    @cache
    def other(name: str) -> ModuleType:
        here, there = (_names(name, one) for one in ("linux", system))
        if here and not there:
            raise ModuleNotFoundError(f"No module named {name!r} there", name=name)
        real = importlib.import_module(name)
        changed = here - there or name in instead
        return OtherModule(real, here - there, **instead.get(name, {})) if changed else real

    def importing(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the name it has
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        found = _import(name, globals, locals, fromlist or (), level)
        ours = str((globals or {}).get("__name__")).startswith("millpond")
        return other(name) if ours and not level and name in sys.stdlib_module_names else found

    builtins.__import__ = importing
    if system == "win32":
        for method in ("add_reader", "add_signal_handler", "add_writer"):
            setattr(asyncio.SelectorEventLoop, method, _not_there)


def _not_there(*_: object) -> None:
    raise NotImplementedError


@cache
def _names(module: str, system: str) -> frozenset[str]:
    """Return the names that the types say a module has on a system."""
    places = (_STUBS / f"{module}.pyi", _STUBS / module / "__init__.pyi")
    found = next((place for place in places if place.exists()), None)
    if found is None:
        return frozenset()
    stand_in = SimpleNamespace(platform=system, version_info=sys.version_info)
    return frozenset(_defined(ast.parse(found.read_text("utf-8")).body, stand_in))


def _defined(body: Sequence[ast.stmt], stand_in: SimpleNamespace) -> Iterator[str]:
    for one in body:
        match one:
            case ast.If():
                test = compile(ast.Expression(one.test), "<stub>", "eval")
                # The conditions of the types: they ask for the version and the platform.
                holds = eval(test, {"sys": stand_in})  # noqa: S307
                yield from _defined(one.body if holds else one.orelse, stand_in)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case ast.ImportFrom(names=names):
                yield from (alias.asname for alias in names if alias.asname)
            case _:
                pass
