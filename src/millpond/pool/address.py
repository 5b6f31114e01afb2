"""Addresses: which store a URL means, and how it is shown to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def file_of(url: str | None) -> Path | None:
    """Return the file that a URL names, None for memory; BadStoreURL for what names no store."""
    if url is None:
        return None
    from millpond.store.sqlite.url import path_of  # noqa: PLC0415 - memory needs nothing of it

    return path_of(url)


def shown(url: str | None) -> str:
    """Return a URL as it may stand in a log: without a password, and without what follows a `?`."""
    if url is None:
        return "memory"
    scheme, strokes, rest = url.partition("://")
    # The last @ ends the password, whatever else is in it: better too little than some of it.
    who, at, place = rest.rpartition("@")
    user, colon, _ = who.partition(":")
    path = place.partition("?")[0].partition("#")[0]
    return f"{scheme}{strokes}{user}{':***' if colon else ''}{at}{path}"
