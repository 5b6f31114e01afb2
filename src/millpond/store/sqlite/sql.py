"""The statements, each by its name, from the `.sql` files in the folder beside this one."""

from __future__ import annotations

import re
from importlib.resources import files

_NAMED = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def statements(*only: str) -> dict[str, str]:
    """Return every statement by its name, or those of some of the files."""
    found: dict[str, str] = {}
    for file in files("millpond.store.sqlite").joinpath("sql").iterdir():
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


SQL = statements()
