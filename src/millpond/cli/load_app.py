"""Load the Millpond of `module:app`, or refuse with the reason."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.cli.exits import Exit, Refusal
from millpond.pool.internals import internals_of
from millpond.pool.millpond import Millpond
from millpond.pool.task import TaskFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType, TracebackType

USUAL_NAMES = ("app", "mp")
"""The names to try if a module has several and none is given."""

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")


def load(target: str) -> Millpond:
    """Return the Millpond of `module:name`, or of `module` alone if there is only one.

    The name may be that of a function without arguments that returns one. The modules that the
    Millpond `imports` are imported too, so that all its pools and tasks are known.
    """
    name, _, attribute = target.partition(":")
    _check(target, name)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _import(name)
    mp = _resolve(module, attribute) if attribute else _find_only(module)
    for one in internals_of(mp).imports:
        _import(one)
    return mp


def _check(target: str, name: str) -> None:
    """Refuse a target that is not a module, with a suggestion."""
    is_file = name.endswith(".py") or "/" in name
    if _DOTTED.match(name) and not is_file:
        return
    hint = ""
    if is_file:
        module_name = ".".join(
            part for part in Path(name).with_suffix("").parts if part not in "./"
        )
        hint = f"; write the module as in `import`: {target.replace(name, module_name, 1)}"
    raise Refusal(Exit.USAGE, f"{target!r} is not module:name{hint}")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            # The module exists, and imports one that does not.
            raise _app_failed(f"importing {name} failed", error) from None
        message = f"no module named {error.name!r}; looked in {Path.cwd()} and on the Python path"
        raise Refusal(Exit.APP, message) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything
        raise _app_failed(f"importing {name} failed", error) from None


def _resolve(module: ModuleType, attribute: str) -> Millpond:
    """Return the Millpond that a dotted name of a module refers to."""
    if attribute.endswith("()"):
        module_name = f"{module.__name__}:{attribute.removesuffix('()')}"
        raise Refusal(Exit.USAGE, f"name a function without parentheses: {module_name}")
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            message = f"module {module.__name__} has no {attribute!r}{_offers(module)}"
            raise Refusal(Exit.APP, message) from None
    if isinstance(found, Millpond):
        return found
    if callable(found) and not isinstance(found, (type, TaskFunction)):
        return _call_factory(f"{module.__name__}:{attribute}", found)
    message = f"{module.__name__}:{attribute} is {_kind(found)}, not a Millpond{_offers(module)}"
    raise Refusal(Exit.APP, message)


def _call_factory(name: str, make: Callable[[], object]) -> Millpond:
    """Call a factory, and return its Millpond."""
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        message = f"{name} takes arguments ({error}); a worker calls it with none"
        raise Refusal(Exit.APP, message) from None
    except ValueError:
        pass  # Some built-in functions have no signature; calling it will show.
    try:
        made = make()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - so may a function
        raise _app_failed(f"{name}() failed", error) from None
    if isinstance(made, Millpond):
        return made
    if inspect.iscoroutine(made):
        made.close()
    raise Refusal(Exit.APP, f"{name}() returned a value {_kind(made)}, not a Millpond")


def _find_only(module: ModuleType) -> Millpond:
    """Return the only Millpond of a module, or of several the one with a usual name."""
    found = _millponds(module)
    if len({id(mp) for mp in found.values()}) == 1:
        return next(iter(found.values()))
    for name in USUAL_NAMES:
        if name in found:
            return found[name]
    if found:
        message = f"module {module.__name__} has several Millponds{_offers(module)}"
    else:
        message = (
            f"module {module.__name__} has no Millpond; name the function that makes one "
            f"({module.__name__}:function), or the module that has it"
        )
    raise Refusal(Exit.APP, message)


def _millponds(module: ModuleType) -> Mapping[str, Millpond]:
    return {name: one for name, one in vars(module).items() if isinstance(one, Millpond)}


def _offers(module: ModuleType) -> str:
    """Return a list of the module's Millponds, for an error message."""
    names = [f"{module.__name__}:{name}" for name in _millponds(module)]
    return f"; use one of: {', '.join(names)}" if names else ""


def _kind(value: object) -> str:
    if isinstance(value, TaskFunction):
        return "a task"
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of type {type(value).__name__}"


def _app_failed(what: str, error: BaseException) -> Refusal:
    """Return the refusal with the traceback of the user's code."""
    trace = error.__traceback__
    while trace is not None and _is_machinery(trace):
        trace = trace.tb_next
    trace_text = "".join(traceback.format_exception(type(error), error, trace))
    return Refusal(Exit.APP, f"{what}: {type(error).__name__}: {error}", trace_text)


def _is_machinery(trace: TracebackType) -> bool:
    """Return whether a frame belongs to us or to the import system."""
    file = trace.tb_frame.f_code.co_filename
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")
