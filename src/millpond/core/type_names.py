"""Names of exception types, as they are stored with tasks and policies.

A type of this library is stored under a name that no move of its module changes: `millpond.GiveUp`,
`millpond.errors.PoolFull`. Earlier versions stored the module that a type was defined in, such as
`millpond.core.wish.GiveUp`: those names are read as aliases.
"""

from __future__ import annotations

_ROOT, _ERRORS = "millpond", "millpond.errors"


def qualified_name(kind: type) -> str:
    """Return the name of a type as it is stored: with its module, but for builtins."""
    module, name = kind.__module__, kind.__qualname__
    return name if module == "builtins" else public_name(f"{module}.{name}")


def public_name(stored: str) -> str:
    """Return a stored name without a module path of this library; names of users stay."""
    module, _, name = stored.rpartition(".")
    if module == _ERRORS or module.partition(".")[0] != _ROOT:
        return stored
    return f"{_ROOT}.{name}"


def comparable_name(stored: str) -> str:
    """Return a form that is the same for all names under which a type was ever stored."""
    public = public_name(stored)
    return public.replace(f"{_ERRORS}.", f"{_ROOT}.", 1) if public.startswith(_ERRORS) else public
