"""URLs of SQLite stores: `sqlite:///work.db` is relative, `sqlite:////var/lib/work.db` absolute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, unquote_to_bytes

from millpond.errors import BadStoreURL, NotSupported

SCHEME = "sqlite"

_TO_COME = frozenset({"postgres", "postgresql"})
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PASSWORD = re.compile(r"(:)[^:@/]*@")
"""A refused URL may end in logs, so its password is removed."""
_ADVICE = (
    "write sqlite:///work.db (in the current folder), sqlite:////var/lib/work.db or "
    "postgresql://user:password@host/database; Millpond() without a URL keeps its pools in memory"
)


def path_of(url: str) -> Path:
    """Return the path of a URL, relative or absolute; the file is not accessed."""
    if not isinstance(url, str):
        _refuse(url, "is not a text")
    if "://" not in url and "=" in url:
        _refuse(
            url,
            "is a list of keywords (a DSN), and a URL is needed: write "
            "postgresql://user:password@host/database",
        )
    if any(ord(character) <= 32 or ord(character) == 127 for character in url):
        _refuse(url, "has a space or a control character; write a space in a file name as %20")
    scheme, colon, rest = url.partition(":")
    if scheme.lower() in _TO_COME:
        raise NotSupported(
            "there is no PostgreSQL store yet: use sqlite:///work.db, or memory (url=None)",
            feature="store",
        )
    if url and not colon:
        _refuse(url, f"lacks a scheme; a file is written sqlite:///{quote(url)}")
    if scheme.lower() != SCHEME:
        _refuse(url, "names no kind of store this release has")
    if not rest.startswith("//"):
        _refuse(url, "lacks the slashes after its scheme")
    return _file(url, _path(url, rest.removeprefix("//")))


def _path(url: str, rest: str) -> str:
    """Return the decoded path of a URL that has no other parts."""
    host, _, path = rest.partition("/")
    if host:
        _refuse(url, "names a host, and a SQLite store is a file of this machine")
    if "?" in path:
        _refuse(url, "has options, and there are none: give durability= and migrate= to Millpond")
    if "#" in path:
        _refuse(url, "has a fragment; write a # in a file name as %23")
    if _PERCENT.search(path):
        _refuse(url, "has a % that begins no code; write a % in a file name as %25")
    try:
        return unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        _refuse(url, "does not decode to UTF-8")


def _file(url: str, name: str) -> Path:
    if ":memory:" in name:
        _refuse(url, "asks for a database in memory: use Millpond() for pools in memory")
    if not name or name.isspace():
        _refuse(url, "names no file")
    if "\0" in name:
        _refuse(url, "has a zero byte in its path")
    path = Path(name)
    if name.endswith("/") or path.name in {"", ".."}:
        _refuse(url, "names a folder; add the name of a file")
    return path


def _shown(url: str) -> str:
    if "=" in url:
        # Keywords or options: any of their values may be a secret.
        url = f"{url.partition('=')[0]}=***"
    return _PASSWORD.sub(r"\1***@", url)


def _refuse(url: object, reason: str) -> NoReturn:
    shown = _shown(url) if isinstance(url, str) else url
    text = ascii(shown)
    advice = "" if "sqlite:///" in reason else f"; {_ADVICE}"
    raise BadStoreURL(
        f"the store URL {text if len(text) < 200 else text[:197] + '...'} {reason}{advice}",
        url=shown,
        reason=reason,
    )
