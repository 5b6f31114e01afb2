"""Escape text from outside in log lines: no line breaks, no terminal control characters."""

from __future__ import annotations

_KEPT = frozenset("\n\t")


class MultilineText(str):
    """A text of Millpond itself whose line breaks are kept."""

    __slots__ = ()


def one_line(text: str) -> str:
    """Return a text with all non-printing characters escaped, line breaks too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def several_lines(text: str) -> str:
    """Return a text with all non-printing characters escaped except line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else ascii(c)[1:-1] for c in text)
