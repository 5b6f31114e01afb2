"""Plain text: what others chose, such as names and messages, made fit for a terminal."""

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
