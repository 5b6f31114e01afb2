"""Text from outside in a log line: it must not look like another line, nor drive a terminal."""

from __future__ import annotations

_KEPT = frozenset("\n\t")


class MultilineText(str):
    """A text of ours with several lines, whose line ends are meant."""

    __slots__ = ()


def one_line(text: str) -> str:
    """Return a text with everything escaped that does not print, line ends too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def several_lines(text: str) -> str:
    """Return a text with everything escaped that does not print, but for line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else ascii(c)[1:-1] for c in text)
