"""The name of a pool that has none: the place in the code where it is declared.

    mail = mp.pool()        # in module shop.tasks: the pool is named shop.tasks.mail

The name follows from the module and the variable, not from a line number: it is the same in every
process and after every edit that keeps both.
"""

from __future__ import annotations

import dis
import sys
from os.path import basename, splitext
from types import FrameType

from millpond.errors import ConfigError

_OURS = "millpond.pool."

_STORES = ("STORE_NAME", "STORE_GLOBAL", "STORE_FAST", "STORE_DEREF", "STORE_ATTR")
"""Instructions that give a value a name."""

_BETWEEN = (
    "CACHE",
    "PRECALL",
    "CALL",
    "CALL_KW",
    "CALL_FUNCTION_EX",
    "COPY",
    "LOAD_FAST",
    "LOAD_FAST_BORROW",
    "LOAD_DEREF",
    "EXTENDED_ARG",
)
"""Instructions between a call and the store of its value; self is loaded for `self.mail = ...`."""


def name_from_code() -> str:
    """Return the name of the place that calls: module, function and variable."""
    frame = _caller()
    variable = None if frame is None else _assigned(frame)
    if frame is None or variable is None:
        raise ConfigError(
            "name",
            None,
            'is needed where the pool is not assigned to a variable: mp.pool("mail"), or '
            "mail = mp.pool()",
        )
    function = frame.f_code.co_qualname.replace(".<locals>", "")
    parts = [_module(frame), *([] if function == "<module>" else [function]), variable]
    return ".".join(parts)


def _caller() -> FrameType | None:
    """Return the innermost frame that is not ours."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.stack reads every source file
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame = frame.f_back
    return frame


def _assigned(frame: FrameType) -> str | None:
    """Return the variable or attribute that the value of the current call is assigned to."""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset <= frame.f_lasti or instruction.opname in _BETWEEN:
            continue
        is_store = instruction.opname in _STORES
        return str(instruction.argval) if is_store else None
    return None


def _module(frame: FrameType) -> str:
    """Return the name under which other processes import the module of a frame."""
    known = frame.f_globals
    name = str(known.get("__name__", ""))
    if name != "__main__":
        return name
    spec = known.get("__spec__")
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = known.get("__file__")
    # pathlib would be imported for this alone.
    return splitext(basename(file))[0] if file else "main"  # noqa: PTH119, PTH122
