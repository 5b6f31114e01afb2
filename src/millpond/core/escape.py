"""Escape text from outside in log lines and on terminals: no control characters."""

from __future__ import annotations

_KEPT = frozenset("\n\t")


class MultilineText(str):
    """A text of Millpond itself whose line breaks are kept."""

    __slots__ = ()


def plain(text: str, *, lines: bool = False) -> str:
    """Return the text with all characters escaped that a terminal would obey or hide.

    With `lines`, line ends and tabs are kept.
    """
    if text.isprintable():
        return text
    kept = _KEPT if lines else frozenset()
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)
