"""The functions of the server: SQL files, installed by their digest under versioned names.

The files in `functions/` say `millpond_submit`; the server has `millpond_submit_1`. A release that
changes a function raises VERSION. Its functions then stand beside those of the releases before, so
that their workers go on calling their own during a rolling deploy. A later migration drops the old.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

VERSION = 1
"""The version of the functions of this release."""

RELEASED: dict[int, str] = {}
"""The digests of versions that were released: a release never changes them."""

PUBLIC = ("submit", "status", "millpond_enter")
"""Functions that other programs call by name and with grants: they have no version."""

_FIRST = "types.sql"
_MADE = re.compile(r"^CREATE (FUNCTION|TYPE) (\w+)", re.MULTILINE)
_OURS = re.compile(r"\bmillpond_\w+")


@cache
def sources() -> dict[str, str]:
    """Return the text of each file as it is written, in the order of installation."""
    folder = files("millpond.store.postgres").joinpath("functions")
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    names.sort(key=lambda name: name != _FIRST)
    return {name: folder.joinpath(name).read_text("utf-8").replace("\r\n", "\n") for name in names}


@cache
def made_names() -> dict[str, str]:
    """Return the kind of everything that the files make, by its name in the files."""
    return {name: kind for text in sources().values() for kind, name in _MADE.findall(text)}


def installed_name(name: str) -> str:
    """Return the name that something of these files has on the server; other names stay."""
    versions = name in made_names() and name not in PUBLIC
    return f"{name}_{VERSION}" if versions else name


def versioned(text: str) -> str:
    """Return a text in which each function and type has the name that it has on the server."""
    return _OURS.sub(lambda found: installed_name(found[0]), text)


@cache
def installed_texts() -> dict[str, str]:
    """Return the text of each file as it is installed."""
    return {name: versioned(text) for name, text in sources().items()}


@cache
def digest() -> str:
    """Return the digest of all functions of this release."""
    texts = "\n".join(f"-- {name}\n{text}" for name, text in installed_texts().items())
    return hashlib.sha256(texts.encode()).hexdigest()


def installation(*, public: bool) -> str:
    """Return the statements that drop the functions of this version and create them again.

    `public`: make the public functions, too; the newest version has them.
    """
    parts = [_DROP.format(version=VERSION)]
    for name, text in installed_texts().items():
        if name == "public.sql":
            if public:
                parts.append(text.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
        else:
            parts.append(text)
    return "\n".join(parts)


_DROP = """\
DO $drop$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT p.oid::regprocedure AS name FROM pg_proc AS p
                WHERE p.pronamespace = quote_ident(current_schema())::regnamespace
                  AND p.proname ~ '^millpond_.*_{version}$' LOOP
        EXECUTE format('DROP FUNCTION %s', one.name);
    END LOOP;
    FOR one IN SELECT t.oid::regtype AS name
                 FROM pg_type AS t JOIN pg_class AS c ON c.oid = t.typrelid
                WHERE t.typnamespace = quote_ident(current_schema())::regnamespace
                  AND c.relkind = 'c' AND t.typname ~ '^millpond_.*_{version}$' LOOP
        EXECUTE format('DROP TYPE %s', one.name);
    END LOOP;
END
$drop$;
"""
