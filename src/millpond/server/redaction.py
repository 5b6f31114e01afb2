"""Payloads as they are shown: without what looks like a secret by its name."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import msgspec

HIDDEN = "[hidden]"
SECRET_WORDS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "authorization",
    "api_key",
    "apikey",
    "access_key",
    "private_key",
    "credential",
    "cookie",
    "session_id",
    "signature",
    "pwd",
    "bearer",
    "jwt",
)
"""Words in the names of entries that are not shown; - and _ and case make no difference."""

NAMES, VALUE = ("name", "key"), "value"
"""Entries that name a secret beside its value, as in {"name": "TOKEN", "value": "..."}."""

_URL_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]+@")

DEEPEST = 50
LONGEST_TEXT = 100_000
"""Characters of a payload that is no JSON, and of one text in it."""


def shown(stored: bytes | None, words: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - any JSON
    """Return stored JSON as it may be shown; what is no JSON is returned as text."""
    if not stored:
        return None
    try:
        value = msgspec.json.decode(stored)
    except (msgspec.MsgspecError, RecursionError):
        return stored.decode("utf-8", "replace")[:LONGEST_TEXT]
    return redacted(value, words)


def redacted(value: Any, words: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON data without the values of entries whose names sound like a secret."""
    secret = tuple(map(_plain, (*SECRET_WORDS, *words)))
    return _redacted(value, secret, 0)


def _redacted(value: Any, words: tuple[str, ...], depth: int) -> Any:  # noqa: ANN401
    if depth > DEEPEST:
        return HIDDEN
    if isinstance(value, dict):
        named = any(is_secret(str(value.get(name, "")), words) for name in NAMES)
        return {
            name: HIDDEN
            if is_secret(name, words) or (named and name == VALUE)
            else _redacted(one, words, depth + 1)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [_redacted(one, words, depth + 1) for one in value]
    return _redacted_text(value, words, depth) if isinstance(value, str) else value


def _redacted_text(text: str, words: tuple[str, ...], depth: int) -> str:
    """Return a text without passwords in addresses, and JSON in it without secrets."""
    if text[:1] in ("{", "["):
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            inner = msgspec.json.decode(text)
            hidden = _redacted(inner, words, depth + 1)
            return text[:LONGEST_TEXT] if hidden == inner else msgspec.json.encode(hidden).decode()
    return _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", text[:LONGEST_TEXT])


def is_secret(name: str, words: tuple[str, ...]) -> bool:
    """Return whether the name of an entry holds one of the words."""
    plain = _plain(name)
    return any(word in plain for word in words)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
