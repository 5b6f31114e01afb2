"""Load statements by name from the `.sql` files in the folder `queries`.

They are written once for every database, in what all of them understand. Four phrases are not SQL,
and each dialect says them in its own words:

    x IN ids(?), x IN names(?)   x is among the numbers, the texts of one argument
    numbered(?) AS j             the numbers of one argument: j.value, and from 0 on, j.key
    sentence('... %s ...', x)    a text with values in it

What cannot be said in common words a dialect says in a file of its own, under the same name.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMED = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_statements(package: str, *only: str) -> dict[str, str]:
    """Return the statements in the `queries` folder of a package, or those of some of its files."""
    found: dict[str, str] = {}
    for file in files(package).joinpath("queries").iterdir():
        if not file.name.endswith(".sql") or (only and file.name not in only):
            continue
        parts = _NAMED.split(file.read_text("utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            # Comments are for readers, and the statement is a key of the driver's cache.
            lines = (line.split("--")[0].strip() for line in text.splitlines())
            statement = " ".join(line for line in lines if line).rstrip(";")
            if found.setdefault(name, statement) is not statement:
                message = f"two statements are named {name}"
                raise ValueError(message)
    return found


def in_dialect(say: Callable[[str], str], own: str, *only: str) -> dict[str, str]:
    """Return every statement in a dialect; those of the package `own` override the shared ones.

    If files of that package are named, only those are looked into.
    """
    shared = load_statements("millpond.store.sql")
    return {**{name: say(text) for name, text in shared.items()}, **load_statements(own, *only)}
