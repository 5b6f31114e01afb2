"""Plain text: what others chose (names, messages, addresses), made fit for a terminal."""

from __future__ import annotations

LINES = frozenset("\n\t")
"""What a text of several lines may hold beside what can be printed."""


def plain(text: str, *, lines: bool = False) -> str:
    """Return the text with everything escaped that a terminal would obey or hide.

    Line ends are escaped too, unless it is a text of several `lines`.
    """
    if text.isprintable():
        return text
    kept = LINES if lines else frozenset()
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


def without_secrets(url: str) -> str:
    """Return a store's address as it may be shown: no password, and no query that may hold one."""
    scheme, strokes, rest = url.partition("://")
    # The last @ ends the password, whatever else is in it; what is shown must not be more of it.
    user, at, place = rest.rpartition("@")
    path = place.partition("?")[0].partition("#")[0]
    return plain(f"{scheme}{strokes}{user.partition(':')[0]}{at}{path}")
