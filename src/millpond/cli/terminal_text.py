"""Escape names and messages that others chose, before a terminal shows them."""

from __future__ import annotations

LINES = frozenset("\n\t")
"""Control characters that a text of several lines keeps."""


def plain(text: str, *, lines: bool = False) -> str:
    """Return the text with all characters escaped that a terminal would obey or hide.

    With `lines`, line ends and tabs are kept.
    """
    if text.isprintable():
        return text
    kept = LINES if lines else frozenset()
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)
